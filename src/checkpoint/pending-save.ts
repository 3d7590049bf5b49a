import type { ProcessGroup } from '../process-group/process-group';
import { asError } from '../core/errors';
import { kept } from '../core/kept-promise';

/** A save that goes on while training does. */
export interface PendingCheckpoint {
  /** Where the checkpoint will be. */
  readonly path: string;
  /**
   * The path, once the checkpoint is complete; rejects with a CheckpointError, on every rank, if it could not be written.
   * A failure that nobody asks for here is thrown by the next save of the group instead.
   */
  readonly done: Promise<string>;
}

/** The last save in the background of each group, as seen from one of its ranks. */
const lastSaves = new WeakMap<ProcessGroup, BackgroundSave>();

export class BackgroundSave implements PendingCheckpoint {
  readonly path: string;
  readonly #done: Promise<string>;
  #isWatched = false;

  /** Register a save of `group` that is under way. */
  constructor(group: ProcessGroup, path: string, done: Promise<string>) {
    this.path = path;
    this.#done = kept(done);
    lastSaves.set(group, this);
  }

  get done(): Promise<string> {
    this.#isWatched = true;
    return this.#done;
  }

  /** Settles, never badly, when it is over. */
  async over(): Promise<void> {
    await Promise.allSettled([this.#done]);
  }

  /** The failure, once it is over, if nobody has asked for it. */
  async unseenFailure(): Promise<Error | undefined> {
    try {
      await this.#done;
      return undefined;
    } catch (error) {
      return this.#isWatched ? undefined : asError(error);
    }
  }
}

/** Wait until an earlier save of the group in the background is over, well or not. */
export async function earlierSaveOver(group: ProcessGroup): Promise<void> {
  await lastSaves.get(group)?.over();
}

/**
 * Wait until an earlier save of the group in the background is over.
 * @returns its failure, if nobody has heard of it yet
 */
export async function earlierFailure(group: ProcessGroup): Promise<Error | undefined> {
  const earlier = lastSaves.get(group);
  lastSaves.delete(group);
  return earlier?.unseenFailure();
}
