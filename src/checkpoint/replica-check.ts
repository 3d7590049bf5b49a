/**
 * Whether all ranks hold the same where they should, before each of them writes a share of it: ranks that train a plain module
 * each for itself have as many models, and a checkpoint of a bit of each is none.
 */
import { nextTurn } from '../core/clock';
import { bytesOf } from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import type { ProcessGroup } from '../process-group/process-group';
import type { JsonValue, TensorPart } from '../strategy/state-parts';
import { checksum } from './checksum';
import { CHUNK_BYTES, type Values } from './index-file';

/** Bytes after which heartbeats and sockets get their turn: a hundredth of a second. */
const BREAK_BYTES = 64 * CHUNK_BYTES;

/** What is held alike on all ranks. */
export interface Replicas {
  readonly tensors: readonly TensorPart[];
  readonly values: Values;
}

/** In short: a checksum for each of `names`, of its name, its form and its bits. Only checksums go to the other ranks. */
export interface ReplicaDigest {
  readonly names: readonly string[];
  readonly checksums: readonly string[];
}

/** One trip through the memory of all replicas; other work of the process comes in between. */
export async function digestOf({ tensors, values }: Replicas): Promise<ReplicaDigest> {
  const names: string[] = [];
  const checksums: string[] = [];
  for (const [name, value] of Object.entries(values)) {
    names.push(`the settings and steps of the ${name}`);
    checksums.push(checksum(Buffer.from(JSON.stringify(value))));
  }
  let sinceBreak = 0;
  for (const { name, shape, dtype, buffer } of tensors) {
    const bytes = bytesOf(buffer);
    let sum = checksum(Buffer.from(`${name} ${dtype} ${shape.join()}`));
    for (let at = 0; at < bytes.length; at += CHUNK_BYTES) {
      const chunk = bytes.subarray(at, at + CHUNK_BYTES);
      sum = checksum(chunk, sum);
      sinceBreak += chunk.length;
      if (sinceBreak < BREAK_BYTES) continue;
      sinceBreak = 0;
      await new Promise<void>((resolve) => nextTurn(resolve));
    }
    names.push(`'${name}'`);
    checksums.push(sum);
  }
  return { names, checksums };
}

/**
 * @param all each rank's checksums, by rank
 * @throws InvalidArgumentError, on every rank, naming the first that differ
 */
export function requireSameReplicas(
  { names }: ReplicaDigest,
  all: readonly (readonly string[])[],
  { name: groupName, rank }: ProcessGroup,
  op: string,
): void {
  const first = all[0] ?? [];
  for (const [other, checksums] of all.entries()) {
    const different = first.flatMap((sum, i) => (checksums[i] === sum ? [] : [names[i]]));
    const isAsLong = checksums.length === first.length;
    if (isAsLong && different.length === 0) continue;
    const what = isAsLong
      ? `other is ${different[0]}${different.length > 1 ? ` and ${different.length - 1} more` : ''}`
      : `it has ${checksums.length} tensors and settings, and rank 0 has ${first.length}`;
    throw new InvalidArgumentError(
      `${op}: rank ${other} of ${groupName} does not hold the same as rank 0: ${what}. Every rank writes a share of them, so they must be the same on all. Train them together (DistributedDataParallel, zeroWrap), or save from each rank alone, with a group of its own (group.split) and a directory of its own. Pass checkReplicas: false to save such a mixture all the same.`,
      { op, rank, ranks: [other] },
    );
  }
}

/**
 * Small states that every rank must have alike.
 * @param all by rank
 * @throws InvalidArgumentError, on every rank, naming the first path where they differ
 */
export function requireSameValues(all: readonly Values[], { name: groupName, rank }: ProcessGroup, op: string): void {
  for (const [other, values] of all.entries()) {
    const path = differenceOf(all[0], values, 'state');
    if (path === undefined) continue;
    throw new InvalidArgumentError(
      `${op}: ${path} is another one on rank ${other} of ${groupName} than on rank 0, of which the others would get it back. Make it the same on every rank, as by stepping the scheduler with a value that is averaged over all of them. What each rank has for itself goes into \`sampler\`. Pass checkReplicas: false to save rank 0's all the same.`,
      { op, rank, ranks: [other] },
    );
  }
}

/** The first path at which two values differ. */
function differenceOf(a: JsonValue | undefined, b: JsonValue | undefined, path: string): string | undefined {
  if (!isStructured(a) || !isStructured(b)) return Object.is(a, b) ? undefined : path;
  for (const key of new Set([...Object.keys(a), ...Object.keys(b)])) {
    const below = Array.isArray(a) ? `${path}[${key}]` : `${path}.${key}`;
    const difference = differenceOf(a[key], b[key], below);
    if (difference !== undefined) return difference;
  }
  return undefined;
}

function isStructured(value: JsonValue | undefined): value is Values {
  return typeof value === 'object' && value !== null;
}
