interface Launch {
  readonly ready: PromiseLike<unknown> | undefined;
  readonly run: () => void | Promise<void>;
}

/**
 * What gives work to a device, one after the other in the order of the program's calls.
 *
 * [Note: order of launches] All communicators of a device share one stream, so ranks that launch in different orders wait for
 * each other for ever. The one order that all ranks have is that of the program's calls, across all groups; a call that has to
 * wait before it is launched therefore holds up those after it, also of other groups.
 */
export class LaunchQueue {
  readonly #waiting: Launch[] = [];
  #isHeld = false;

  /**
   * @param run must not throw; later launches wait for the promise that it returns, which must not reject
   * @param ready what to wait for first; where it rejects, there is nothing to launch
   */
  add(run: Launch['run'], ready?: PromiseLike<unknown>): void {
    if (!this.#isHeld && ready === undefined) {
      const launched = run();
      if (launched !== undefined) void this.#runAll(launched);
      return;
    }
    this.#waiting.push({ ready, run });
    if (!this.#isHeld) void this.#runAll();
  }

  async #runAll(first?: Promise<void>): Promise<void> {
    this.#isHeld = true;
    await first;
    for (let next = this.#waiting.shift(); next !== undefined; next = this.#waiting.shift()) {
      if (await isFulfilled(next.ready)) await next.run();
    }
    this.#isHeld = false;
  }
}

async function isFulfilled(promise: PromiseLike<unknown> | undefined): Promise<boolean> {
  try {
    await promise;
    return true;
  } catch {
    return false; // who waits for the promise itself is told
  }
}
