/** Messages that arrive one by one, for a handshake that asks for them one by one. */
export class MessageQueue {
  readonly #messages: Uint8Array[] = [];
  #waiting: { resolve(message: Uint8Array): void; reject(error: Error): void } | undefined;
  #failure: Error | undefined;

  push(message: Uint8Array): void {
    this.#messages.push(message);
    this.#deliver();
  }

  /** No more messages will come; those that have come can still be had. */
  fail(error: Error): void {
    this.#failure ??= error;
    this.#deliver();
  }

  /** The next message. One at a time. */
  receive(): Promise<Uint8Array> {
    return new Promise((resolve, reject) => {
      this.#waiting = { resolve, reject };
      this.#deliver();
    });
  }

  /** Messages that nobody asked for. */
  takeUnread(): readonly Uint8Array[] {
    return this.#messages.splice(0);
  }

  #deliver(): void {
    const waiting = this.#waiting;
    if (waiting === undefined) return;
    const message = this.#messages.shift();
    if (message === undefined && this.#failure === undefined) return;
    this.#waiting = undefined;
    if (message !== undefined) waiting.resolve(message);
    else if (this.#failure !== undefined) waiting.reject(this.#failure);
  }
}
