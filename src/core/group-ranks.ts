/** The ranks of a group, as messages and errors name them. */
import type { ErrorContext } from './errors';

/**
 * [Note: names of ranks] A rank is named by its number in the group that the message is about. Where its number in the
 * world is another one, that stands behind it: 'rank 1 (global rank 3)'.
 */
export class GroupRanks {
  /** Global rank of each rank of the group. */
  readonly globalRanks: readonly number[];

  constructor(globalRanks: readonly number[]) {
    this.globalRanks = globalRanks;
  }

  /** True if a rank has another number in the world. */
  get isRenumbered(): boolean {
    return this.globalRanks.some((globalRank, rank) => globalRank !== rank);
  }

  globalRankOf(rank: number): number {
    return this.globalRanks[rank] ?? rank;
  }

  /** As 'rank 1', or 'rank 1 (global rank 3)'. */
  name(rank: number): string {
    const global = this.globalRankOf(rank);
    return global === rank ? `rank ${rank}` : `rank ${rank} (global rank ${global})`;
  }

  /** As 'ranks 0, 1', or 'ranks 0, 1 (global ranks 2, 3)'. */
  names(ranks: readonly number[]): string {
    const word = `rank${ranks.length === 1 ? '' : 's'}`;
    const numbers = ranks.join(', ');
    const globals = ranks.map((rank) => this.globalRankOf(rank)).join(', ');
    return globals === numbers ? `${word} ${numbers}` : `${word} ${numbers} (global ${word} ${globals})`;
  }

  /** The same at the beginning of a sentence. */
  namesAtStart(ranks: readonly number[]): string {
    return `R${this.names(ranks).slice(1)}`;
  }

  /** The fields of an error's context for the ranks that are its cause. */
  blame(ranks: readonly number[]): Pick<ErrorContext, 'ranks' | 'globalRanks'> {
    return { ranks, globalRanks: ranks.map((rank) => this.globalRankOf(rank)) };
  }
}
