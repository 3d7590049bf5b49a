import { asError } from '../core/errors';
import { Work, type WorkInfo } from '../core/work';

/**
 * Keeps one rank's collectives on a group in the order in which they were called.
 *
 * [Note: calls in steps] Some calls take several collectives, one after the other: values travel after their sizes,
 * a scatter after its shape. A call made between two steps would come before the second step on a slow rank and after
 * it on a fast one, and the ranks would disagree, or mix their data. So it is launched when the steps are done.
 */
export class CallQueue {
  /** Settles, never badly, when what was called so far is launched or done; undefined if it is. */
  #tail: Promise<void> | undefined;

  /** Launch a call of one collective, now or when it is its turn; what `start` throws makes a Work that has failed. */
  launch(info: WorkInfo, start: () => Work): Work {
    if (this.#tail === undefined) return launchNow(info, start);
    const handle = Work.create(info);
    const settle = async (): Promise<void> => {
      try {
        await launchNow(info, start);
        handle.complete();
      } catch (thrown) {
        handle.fail(asError(thrown));
      }
    };
    void this.#append(async () => void settle()); // its turn is over when it is launched
    return handle.work;
  }

  /** Run a call of several collectives, now or when it is its turn. */
  inSteps<T>(run: () => Promise<T>): Promise<T> {
    return this.#append(run);
  }

  #append<T>(run: () => Promise<T>): Promise<T> {
    const result = this.#tail === undefined ? run() : this.#tail.then(run);
    const isOver = (): void => {
      if (this.#tail === tail) this.#tail = undefined;
    };
    const tail = result.then(isOver, isOver); // ahead of whoever awaits the result, so that the next call need not wait
    this.#tail = tail;
    return result;
  }
}

/** What `start` gives, or a Work that has failed with what it throws: a bad argument rejects, it does not throw. */
export function launchNow(info: WorkInfo, start: () => Work): Work {
  try {
    return start();
  } catch (thrown) {
    return Work.failed(info, asError(thrown));
  }
}
