/** A long random program of collectives, the same on every rank: what is called, on which group, how long, in what order. */
import { DTYPES, isFloatDType, type DType } from '../../src/core/dtype';
import { Generator } from '../../src/core/generator';
import { isBitOp, ReduceOp } from '../../src/core/reduce-op';

export const SOAK_OPS = [
  'allReduce',
  'broadcast',
  'allGather',
  'reduceScatter',
  'reduce',
  'gather',
  'scatter',
  'allToAll',
  'barrier',
  'sendRecv',
  'batch',
] as const;
export type SoakOp = (typeof SOAK_OPS)[number];

export interface SoakCall {
  readonly index: number;
  readonly op: SoakOp;
  /** Index into `SOAK_GROUPS`. */
  readonly group: number;
  readonly dtype: DType;
  readonly reduceOp: ReduceOp;
  /** Elements, per rank where a call has a part for each rank. */
  readonly count: number;
  /** Root, or the sender of a point-to-point message. */
  readonly root: number;
  /** Which part of the fill is sent, so that no two calls send the same. */
  readonly start: number;
}

/** Calls that are in flight together, and the order in which they are awaited. */
export interface SoakRound {
  readonly calls: readonly SoakCall[];
  readonly awaitOrder: readonly number[];
  /** The rank that comes late, and by how many milliseconds. */
  readonly lateRank: number;
  readonly lateMs: number;
}

export const SOAK_SIZE = 4;

/** Groups that overlap, in several orders of the ranks. */
export const SOAK_GROUPS: readonly (readonly number[])[] = [
  [0, 1, 2, 3],
  [3, 2, 1, 0],
  [0, 1, 2],
  [3, 1],
  [2, 3, 0],
];

export function soakPlan(seed: number, numCalls: number): SoakRound[] {
  const random = new Generator(seed);
  const rounds: SoakRound[] = [];
  for (let index = 0; index < numCalls;) {
    const together = Math.min(1 + random.nextBelow(4), numCalls - index);
    const calls = Array.from({ length: together }, () => randomCall(random, index++));
    rounds.push({
      calls,
      awaitOrder: random.permutation(together),
      lateRank: random.nextBelow(SOAK_SIZE),
      lateMs: random.nextBelow(4) === 0 ? random.nextBelow(8) : 0,
    });
  }
  return rounds;
}

function pick<Item>(random: Generator, items: readonly Item[]): Item {
  return items[random.nextBelow(items.length)] as Item;
}

/** Mostly small, sometimes more than what may be sent before the receiver asks for it. */
function randomCount(random: Generator): number {
  const kind = random.nextBelow(20);
  if (kind === 0) return 100_000 + random.nextBelow(200_000);
  return random.nextBelow(kind < 4 ? 20_000 : 40);
}

function randomCall(random: Generator, index: number): SoakCall {
  const group = random.nextBelow(SOAK_GROUPS.length);
  const dtype = pick(random, DTYPES);
  const reduceOps = Object.values(ReduceOp).filter((op) => !isBitOp(op) || !isFloatDType(dtype));
  return {
    index,
    op: pick(random, SOAK_OPS),
    group,
    dtype,
    reduceOp: pick(random, reduceOps),
    count: randomCount(random),
    root: random.nextBelow((SOAK_GROUPS[group] as readonly number[]).length),
    start: random.nextBelow(1000),
  };
}
