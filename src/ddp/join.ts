/**
 * Uneven inputs: ranks that have run out take part in the others' collectives with zeros until all have.
 *
 * [Note: join protocol] While a join is on, every rank announces what it is about to do by one all-gather of its
 * status, and all ranks then do it together: a forward broadcasts the buffers, a synchronisation averages the
 * gradients. A rank without input announces 'out of input' again and again and follows the others with zeros. Once
 * every rank is out of input, the parameters and buffers of the last rank that had some (the highest one, if several)
 * are broadcast, since the others have not stepped with it.
 */
import { InvalidArgumentError } from '../core/errors';
import type { ProcessGroup } from '../process-group/process-group';
import { Tensor } from '../tensor/tensor';
import type { SyncAnnouncer } from './reducer';

export interface JoinOptions {
  /**
   * Divide sums by the size of the group even when ranks have run out (default), so that every sample weighs the
   * same; false divides by the number of ranks that still have input.
   */
  readonly divideByInitialWorldSize?: boolean | undefined;
  /** Reject on every rank as soon as one runs out, instead of going on. Default false. */
  readonly throwOnEarlyTermination?: boolean | undefined;
}

const Status = { OutOfInput: 0, Forward: 1, Sync: 2 } as const;
type Status = (typeof Status)[keyof typeof Status];
const STATUS_NAMES = ['is out of input', 'runs forward', 'synchronises gradients'] as const;

/** What a rank without input does in the others' stead. */
export interface JoinFollower {
  /** Receive the buffers of rank `source`. */
  forward(source: number): Promise<void>;
  /** Average zeros, dividing by `divisor`. */
  sync(divisor: number): Promise<void>;
}

export class Join implements SyncAnnouncer {
  readonly #group: ProcessGroup;
  readonly #options: JoinOptions;
  /** Rank whose parameters all ranks take in the end: the highest of those that acted last. */
  #lastActive: number;

  constructor(group: ProcessGroup, options: JoinOptions) {
    this.#group = group;
    this.#options = options;
    this.#lastActive = group.size - 1;
  }

  /** Announce a training forward; returns the rank whose buffers are used: the lowest that has input. */
  async announceForward(): Promise<number> {
    return this.#activeRanks(await this.#exchange(Status.Forward))[0] as number;
  }

  async announceSync(): Promise<number> {
    return this.#divisor(this.#activeRanks(await this.#exchange(Status.Sync)));
  }

  /** Follow the ranks that have input until none has; returns the rank whose parameters are the result. */
  async follow(follower: JoinFollower): Promise<number> {
    for (;;) {
      const statuses = await this.#exchange(Status.OutOfInput);
      const active = this.#activeRanks(statuses);
      if (active.length === 0) return this.#lastActive;
      const first = active[0] as number;
      if (statuses[first] === Status.Forward) await follower.forward(first);
      else await follower.sync(this.#divisor(active));
    }
  }

  #divisor(active: readonly number[]): number {
    return this.#options.divideByInitialWorldSize === false ? active.length : this.#group.size;
  }

  #activeRanks(statuses: readonly Status[]): number[] {
    const active = [...statuses.keys()].filter((rank) => statuses[rank] !== Status.OutOfInput);
    this.#lastActive = active.at(-1) ?? this.#lastActive;
    return active;
  }

  async #exchange(status: Status): Promise<Status[]> {
    const gathered = await this.#group.allGather(Tensor.from(Int32Array.of(status)));
    const statuses = Array.from(gathered.storage.buffer as Int32Array) as Status[];
    this.#refuseEarlyEnd(statuses);
    this.#refuseDifferentSteps(statuses);
    return statuses;
  }

  #refuseEarlyEnd(statuses: readonly Status[]): void {
    if (this.#options.throwOnEarlyTermination !== true) return;
    const out = [...statuses.keys()].filter((rank) => statuses[rank] === Status.OutOfInput);
    if (out.length === 0 || out.length === statuses.length) return;
    throw new InvalidArgumentError(
      `join: rank${out.length === 1 ? '' : 's'} ${out.join(', ')} ran out of input before the others, and throwOnEarlyTermination is set. Give every rank the same number of batches, or leave the option out.`,
      { rank: this.#group.rank, op: 'join', ranks: out },
    );
  }

  #refuseDifferentSteps(statuses: readonly Status[]): void {
    const acting = new Set(statuses.filter((status) => status !== Status.OutOfInput));
    if (acting.size <= 1) return;
    const each = statuses.map((status, rank) => `rank ${rank} ${STATUS_NAMES[status]}`).join(', ');
    throw new InvalidArgumentError(
      `join: the ranks are at different places: ${each}. Inside join every rank makes the same calls for each batch: forward, backward, step.`,
      { rank: this.#group.rank, op: 'join' },
    );
  }
}
