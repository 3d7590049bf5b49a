import { invalidArgument, type CallPlace } from './call-place';

/**
 * The members of a new group, ascending.
 * @throws InvalidArgumentError unless `ranks` are one or more different ranks of the group
 */
export function checkMembers(ranks: readonly number[], place: CallPlace): readonly number[] {
  const refuse = (problem: string): never => {
    throw invalidArgument(
      place,
      `${problem}. Pass ranks of the group that it is called on (0 to ${place.size - 1}), each once, the same list on every rank`,
    );
  };
  if (!Array.isArray(ranks)) return refuse(`expected an array of ranks, got ${describeType(ranks)}`);
  if (ranks.length === 0) return refuse('expected at least one rank, got an empty list');
  const seen = new Set<number>();
  for (const member of ranks as readonly number[]) {
    if (!Number.isInteger(member)) return refuse(`expected whole numbers, got ${describeEntry(member)}`);
    if (member < 0 || member >= place.size) return refuse(`there is no rank ${member} in a group of ${place.size}`);
    if (seen.has(member)) return refuse(`rank ${member} is listed twice`);
    seen.add(member);
  }
  return [...seen].sort((a, b) => a - b);
}

/** @throws InvalidArgumentError unless `rank` is a rank of the group */
export function checkRoot(rank: number, what: 'src' | 'dst', place: CallPlace): void {
  if (Number.isInteger(rank) && rank >= 0 && rank < place.size) return;
  throw invalidArgument(
    place,
    `${what} is ${describeEntry(rank)}, expected a rank of the group, 0 to ${place.size - 1} (not a rank of the world)`,
  );
}

function describeEntry(value: unknown): string {
  return typeof value === 'number' ? String(value) : describeType(value);
}

function describeType(value: unknown): string {
  return value === null ? 'null' : `a value of type ${typeof value}`;
}
