import { constants } from 'node:os';

const STOP_SIGNALS = (['SIGINT', 'SIGTERM', 'SIGHUP'] as const).filter((name) => name in constants.signals);

/** Somebody wants us to end: Ctrl-C, a scheduler, or a reader of our output that went away. */
export class StopRequest {
  /** Settles at the first request. */
  readonly requested: Promise<NodeJS.Signals>;
  #signal: NodeJS.Signals | undefined;
  #settle!: (signal: NodeJS.Signals) => void;
  #listener: ((signal: NodeJS.Signals) => void) | undefined;
  readonly #handler = (signal: NodeJS.Signals): void => this.request(signal);

  constructor() {
    this.requested = new Promise((settle) => {
      this.#settle = settle;
    });
    for (const name of STOP_SIGNALS) process.on(name, this.#handler);
  }

  /** The first request, if there was one. */
  get signal(): NodeJS.Signals | undefined {
    return this.#signal;
  }

  /** Called at every request, also at repeated ones. */
  set listener(listener: ((signal: NodeJS.Signals) => void) | undefined) {
    this.#listener = listener;
  }

  request(signal: NodeJS.Signals): void {
    this.#signal ??= signal;
    this.#settle(signal);
    this.#listener?.(signal);
  }

  /** Signals have their usual effect again. */
  close(): void {
    for (const name of STOP_SIGNALS) process.off(name, this.#handler);
  }
}
