/** What a CollectiveMismatchError says, and whom it blames; the same words on every backend. */
import { CollectiveMismatchError, type ErrorContext } from '../core/errors';
import type { GroupRanks } from '../core/group-ranks';
import { describePointToPoint, type PointToPointCall } from './call';

/** What one rank called, and where; undefined: it has not called yet. */
export interface CalledByRank {
  readonly description: string;
  readonly sourceLine?: string | undefined;
}

/** An all-to-all in which what one rank sends is not what the other expects. */
export interface UnequalPair {
  readonly sender: number;
  readonly receiver: number;
}

export interface CollectiveMismatch {
  /** Identity of the group. */
  readonly group: string;
  readonly ranks: GroupRanks;
  readonly sequence: number;
  /** By rank. */
  readonly calls: readonly (CalledByRank | undefined)[];
  readonly pair?: UnequalPair | undefined;
}

/** One line a rank, what each called. */
export function collectiveMismatchError(mismatch: CollectiveMismatch, at: ErrorContext = {}): CollectiveMismatchError {
  const { group, ranks, sequence, calls, pair } = mismatch;
  const lines = calls.map((call, rank) => calledLine(ranks, rank, call));
  const message = [
    `the ranks of group ${group} disagree about collective ${sequence}${pair === undefined ? '' : ` (${describePair(ranks, pair)})`}:`,
    ...lines,
    'Every rank must make the same collectives, in the same order, with the same sizes, dtype, root and reduce op. The group cannot be used any more; build another.',
  ].join('\n');
  return new CollectiveMismatchError(message, { ...at, group, sequence, ...ranks.blame(disagreeing(calls, pair)) });
}

/** One side of a send and the receive that it meets. */
export interface MessageSide {
  readonly rank: number;
  readonly call: PointToPointCall;
  readonly sourceLine?: string | undefined;
}

/** @param heading and advice where the two do not disagree, but are out of order */
export function messageMismatchError(
  where: { readonly group: string; readonly ranks: GroupRanks },
  [sender, receiver]: readonly [MessageSide, MessageSide],
  at: ErrorContext = {},
  words: { readonly heading: string; readonly advice: string } = unequalMessage(where.group),
): CollectiveMismatchError {
  const { group, ranks } = where;
  const message = [
    words.heading,
    ...[sender, receiver].map(({ rank, call, sourceLine }) =>
      calledLine(ranks, rank, { description: describePointToPoint(call), sourceLine }),
    ),
    `${words.advice} The group cannot be used any more; build another.`,
  ].join('\n');
  return new CollectiveMismatchError(message, { ...at, group, ...ranks.blame([sender.rank, receiver.rank]) });
}

function unequalMessage(group: string): { readonly heading: string; readonly advice: string } {
  return {
    heading: `a send and the receive that it meets, in group ${group}, disagree:`,
    advice: 'Both must name the same dtype and number of elements.',
  };
}

function calledLine(ranks: GroupRanks, rank: number, call: CalledByRank | undefined): string {
  if (call === undefined) return `  ${ranks.name(rank)}: not called yet`;
  return `  ${ranks.name(rank)}: ${call.description}${call.sourceLine === undefined ? '' : ` at ${call.sourceLine}`}`;
}

function describePair(ranks: GroupRanks, { sender, receiver }: UnequalPair): string {
  return `what ${ranks.name(sender)} sends to ${ranks.name(receiver)} is not what rank ${receiver} receives from rank ${sender}`;
}

/**
 * The ranks to look at: those that called something else than most did; all that called where no call has a majority of
 * them. Ranks that have not called yet do not disagree.
 */
export function disagreeing(
  calls: readonly (CalledByRank | undefined)[],
  pair: UnequalPair | undefined,
): readonly number[] {
  if (pair !== undefined) return [pair.sender, pair.receiver];
  const called = calls.flatMap((call, rank) => (call === undefined ? [] : [{ rank, description: call.description }]));
  const ranksBy = new Map<string, number>();
  for (const { description } of called) ranksBy.set(description, (ranksBy.get(description) ?? 0) + 1);
  const most = [...ranksBy].find(([, count]) => 2 * count > called.length)?.[0];
  const others = called.filter(({ description }) => description !== most);
  return (others.length === 0 ? called : others).map(({ rank }) => rank);
}
