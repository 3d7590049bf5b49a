/** One timer for all calls in flight of a process; set only as often as needed, never per call. */
import { nextTurn, systemClock, type Timer } from '../../core/clock';
import { runDetached } from '../../core/context';

/** A call that waits for others. */
export interface WatchedCall {
  /** When its time is over. */
  readonly dueMs: number;
  /** When to tell the peers that it waits for; Infinity when that is done. */
  probeMs: number;
  probe(): void;
  expire(): void;
}

/** A timer this late was held up by this process's own computing, and so was what the peers sent. */
const LATE_MS = 20;

export class DeadlineWatch {
  readonly #calls = new Set<WatchedCall>();
  #timer: Timer | undefined;
  #armedMs = Infinity;

  add(call: WatchedCall): void {
    this.#calls.add(call);
    this.#armFor(Math.min(call.dueMs, call.probeMs));
  }

  delete(call: WatchedCall): void {
    this.#calls.delete(call);
  }

  close(): void {
    this.#timer?.cancel();
    this.#timer = undefined;
    this.#calls.clear();
  }

  /** A timer that is due earlier serves as well; links keep the process alive, so the timer need not. */
  #armFor(dueMs: number): void {
    if (this.#timer !== undefined && this.#armedMs <= dueMs) return;
    this.#timer?.cancel();
    this.#armedMs = dueMs;
    const delayMs = Math.max(0, dueMs - systemClock.now());
    this.#timer = runDetached(() => systemClock.schedule(() => this.#onTimer(dueMs), delayMs));
  }

  /** What arrived while this process was computing is read first: nobody is blamed for our own delay. */
  #onTimer(dueMs: number): void {
    if (systemClock.now() - dueMs < LATE_MS) this.#tick();
    else this.#timer = nextTurn(() => (this.#timer = nextTurn(() => this.#tick())));
  }

  #tick(): void {
    this.#timer = undefined;
    const nowMs = systemClock.now();
    for (const call of [...this.#calls]) {
      if (call.dueMs <= nowMs) {
        this.#calls.delete(call);
        call.expire();
      } else if (call.probeMs <= nowMs) {
        call.probeMs = Infinity;
        call.probe();
      }
    }
    let nextMs = Infinity;
    for (const call of this.#calls) nextMs = Math.min(nextMs, call.dueMs, call.probeMs);
    if (nextMs < Infinity) this.#armFor(nextMs);
  }
}
