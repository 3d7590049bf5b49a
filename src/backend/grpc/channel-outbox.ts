/** What this rank has to send to one peer: messages in order, cut into frames, few of them on the way at a time. */
import { CHUNK_BYTES, FrameKind, type FrameHeader } from './frame';
import type { Link } from './link';

/**
 * Bytes that a sender may send before the receiver has posted the call, on one channel. They wait in the receiver's
 * memory; more needs a Grant.
 */
export const EAGER_BYTES = CHUNK_BYTES;

/** Frames handed to the link and not yet on their way: one to write, one to follow without a pause. */
const FRAMES_IN_FLIGHT = 4;

/** The part of a header that all frames of a message share. */
export type MessageHeader = Omit<FrameHeader, 'payloadBytes' | 'messageBytes'>;

export interface OutgoingMessage {
  readonly header: MessageHeader;
  /** Length of the whole message, of which `payload` may be a part. */
  readonly messageBytes: number;
  /** Left alone until `onSent`. */
  readonly payload: Uint8Array | undefined;
  /** Every byte was handed on. */
  readonly onSent?: (() => void) | undefined;
  /** True once nobody wants it any more; what is left of it is then not sent. */
  readonly isCancelled?: (() => boolean) | undefined;
}

interface Queued {
  readonly message: OutgoingMessage;
  offset: number;
  framesInFlight: number;
}

/** A queue that does not move its elements at every shift. */
class Fifo<T> {
  #items: T[] = [];
  #head = 0;

  get isEmpty(): boolean {
    return this.#head === this.#items.length;
  }

  push(item: T): void {
    this.#items.push(item);
  }

  peek(): T | undefined {
    return this.#items[this.#head];
  }

  shift(): void {
    this.#head += 1;
    if (this.#head === this.#items.length) this.clear();
  }

  clear(): void {
    this.#items = [];
    this.#head = 0;
  }
}

export class Outbox {
  readonly #link: Link;
  readonly #data = new Fifo<Queued>();
  /** Control, Grant and Ack frames overtake data, which may be much. */
  readonly #urgent = new Fifo<Queued>();
  #inFlight = 0;
  #isBroken = false;
  #onIdle: (() => void)[] = [];

  constructor(link: Link) {
    this.#link = link;
  }

  get link(): Link {
    return this.#link;
  }

  post(message: OutgoingMessage): void {
    if (this.#isBroken) return;
    const queue = message.header.kind === FrameKind.Data ? this.#data : this.#urgent;
    queue.push({ message, offset: 0, framesInFlight: 0 });
    this.#pump();
  }

  /** Hand all urgent frames to the link now, however many are on their way. */
  flushUrgent(): void {
    for (let queued = this.#urgent.peek(); queued !== undefined; queued = this.#urgent.peek()) {
      if (this.#sendFrame(queued)) this.#urgent.shift();
    }
  }

  /** The link is gone; nothing is sent any more. */
  breakOff(): void {
    this.#isBroken = true;
    this.#data.clear();
    this.#urgent.clear();
    this.#tellIdle();
  }

  /** Settles when everything was handed on, or the link is gone. */
  idle(): Promise<void> {
    if (this.#isIdle) return Promise.resolve();
    return new Promise((resolve) => this.#onIdle.push(resolve));
  }

  get #isIdle(): boolean {
    return this.#isBroken || (this.#inFlight === 0 && this.#data.isEmpty && this.#urgent.isEmpty);
  }

  #pump(): void {
    while (this.#inFlight < FRAMES_IN_FLIGHT) {
      const queue = this.#urgent.isEmpty ? this.#data : this.#urgent;
      const queued = queue.peek();
      if (queued === undefined) break;
      if (queued.message.isCancelled?.() === true) queue.shift();
      else if (this.#sendFrame(queued)) queue.shift();
    }
    if (this.#isIdle) this.#tellIdle();
  }

  /** True if that was the message's last frame. */
  #sendFrame(queued: Queued): boolean {
    const { header, messageBytes, payload } = queued.message;
    const total = payload?.byteLength ?? 0;
    const payloadBytes = Math.min(CHUNK_BYTES, total - queued.offset);
    const piece = payloadBytes === 0 ? undefined : payload?.subarray(queued.offset, queued.offset + payloadBytes);
    queued.offset += payloadBytes;
    queued.framesInFlight += 1;
    this.#inFlight += 1;
    const isLast = queued.offset === total;
    this.#link.send({ ...header, messageBytes, payloadBytes }, piece).then(
      () => {
        this.#inFlight -= 1;
        queued.framesInFlight -= 1;
        if (queued.framesInFlight === 0 && queued.offset === total) queued.message.onSent?.();
        this.#pump();
      },
      () => {
        // The link is gone, which its listener is told with the reason; what waits here fails by that.
        this.#inFlight -= 1;
        this.breakOff();
      },
    );
    return isLast;
  }

  #tellIdle(): void {
    const waiting = this.#onIdle;
    this.#onIdle = [];
    for (const tell of waiting) tell();
  }
}
