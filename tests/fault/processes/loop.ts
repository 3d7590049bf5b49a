/** What the ranks of a fault test do until something happens: collectives of all kinds and sizes, one after another. */
import type { Backend } from '../../../src/backend/backend';
import { toWire, type WireError } from '../../../src/core/error-wire';
import { endingOf, type Ending } from '../../conformance/program';

export interface LoopArgs {
  /** Elements of the largest call; small ones come between. */
  readonly elements: number;
  /** Stop after so many rounds where nothing happens. */
  readonly rounds: number;
}

export interface LoopEnd {
  /** Rounds that were finished, each checked for its sum. */
  readonly rounds: number;
  /** What ended the loop; null: nothing did. */
  readonly error: WireError | null;
  /** When, in milliseconds since 1970: processes of one machine share that clock. */
  readonly endedAtMs: number;
  /** A later call on the world. */
  readonly later: Ending;
  /** An all-reduce of the ranks without the victim, after the failure. */
  readonly others: Ending;
}

async function oneRound(backend: Backend, elements: number, round: number): Promise<void> {
  const { rank, worldSize } = backend;
  const large = new Float32Array(elements).fill(rank + round);
  const small = Int32Array.of(rank);
  const next = (rank + 1) % worldSize;
  const previous = (rank + worldSize - 1) % worldSize;
  await backend.allReduce(small, 'Sum');
  if (small[0] !== (worldSize * (worldSize - 1)) / 2) throw new Error(`round ${round}: small sum ${small[0]}`);
  await backend.allReduce(large, 'Sum');
  const sum = (worldSize * (worldSize - 1)) / 2 + worldSize * round;
  if (large.some((value) => value !== sum)) throw new Error(`round ${round}: large sum is not ${sum}`);
  await backend.broadcast(large, round % worldSize);
  await backend.batch([
    { op: 'send', data: large.subarray(0, elements >> 1), peer: next },
    { op: 'recv', data: large.subarray(elements >> 1, 2 * (elements >> 1)), peer: previous },
  ]);
  const everybody = Array.from({ length: worldSize }, (_unused, each) => each);
  const group = await backend.split(everybody);
  await group?.barrier();
  await group?.close();
}

/** The group of all ranks but the victim, made before anything happens. */
export async function splitOff(backend: Backend, victim: number): Promise<Backend | undefined> {
  const rest = Array.from({ length: backend.worldSize }, (_unused, rank) => rank).filter((rank) => rank !== victim);
  const others = await backend.split(rest);
  await backend.barrier();
  return others;
}

/** @param others the group of all ranks but the one that the test means to lose; that one passes undefined */
export async function loop(
  backend: Backend,
  others: Backend | undefined,
  { elements, rounds }: LoopArgs,
): Promise<LoopEnd> {
  let round = 0;
  let error: WireError | null = null;
  try {
    for (; round < rounds; round++) await oneRound(backend, elements, round);
  } catch (thrown) {
    error = toWire(thrown);
  }
  const endedAtMs = Date.now();
  // A group that had no call in flight is told in its first one: here, if it was the group of a round that failed.
  await endingOf(backend.barrier());
  const later = await endingOf(backend.barrier());
  const sum = Int32Array.of(1);
  const ending = others === undefined ? ({ ok: true } as const) : await endingOf(others.allReduce(sum, 'Sum'));
  return { rounds: round, error, endedAtMs, later, others: ending };
}
