/** One Link made of its two halves: frames, goodbye, and the one answer to "why did it end". */
import { nextTurn, systemClock, type Timer } from '../../core/clock';
import { ClosedError, PeerLostError, asError, isLockstepError } from '../../core/errors';
import { withoutFullStop } from '../../core/full-stop';
import { FrameReader } from './frame-reader';
import { FrameKind, HEADER_BYTES, encodeHeader, type FrameHeader } from './frame';
import type { ReceivingHalf, SendingHalf } from './half-link';
import type { Link, LinkListener } from './link';

/** How long close() waits for a peer that does not take what is left: it computes, is stopped, or its machine is gone. */
const CLOSE_WAIT_MS = 5000;
/** How long, once all has left this process, the peer may take to end the connection: it may be stopped. */
const END_WAIT_MS = 1000;
/**
 * How long the receiving half may take to explain why the sending half broke. Both break within milliseconds when a
 * process dies; when it said goodbye, that is on the receiving half.
 */
const EXPLANATION_MS = 1000;

const NOTHING = new Uint8Array(0);

const NOBODY: LinkListener = {
  onHeader: (_peerRank, header) => new Uint8Array(header.payloadBytes),
  onPayload: () => undefined,
  onClosed: () => undefined,
};

const GOODBYE: FrameHeader = {
  kind: FrameKind.Goodbye,
  isPointToPoint: false,
  groupHigh: 0,
  groupLow: 0,
  call: 0,
  message: 0,
  fingerprintHigh: 0,
  fingerprintLow: 0,
  messageBytes: 0,
  payloadBytes: 0,
};

export class PeerLink implements Link {
  readonly peerRank: number;
  readonly #sending: SendingHalf;
  readonly #receiving: ReceivingHalf;
  /** Why frames cannot be sent any more. */
  #sendError: Error | undefined;
  /** Sends that failed and wait to be told why. */
  readonly #unexplained: ((reason: Error) => void)[] = [];
  #ended: { readonly reason: Error | undefined } | undefined;
  #listener: LinkListener | undefined;
  #closing: Promise<void> | undefined;
  #sendingBroke: string | undefined;
  #explanationTimer: Timer | undefined;

  constructor(peerRank: number, sending: SendingHalf, receiving: ReceivingHalf) {
    this.peerRank = peerRank;
    this.#sending = sending;
    this.#receiving = receiving;
    sending.onClosed((why) => {
      this.#sendingBroke = why;
      this.#awaitExplanation();
    });
  }

  /** Begin to receive. Called once. */
  listen(listener: LinkListener): void {
    this.#listener = listener;
    if (this.#ended !== undefined) {
      this.#tell(this.#ended.reason);
      return;
    }
    const reader = new FrameReader({
      onHeader: (header) => (header.kind === FrameKind.Goodbye ? NOTHING : listener.onHeader(this.peerRank, header)),
      onPayload: (header) => {
        if (header.kind === FrameKind.Goodbye) this.#peerLeft();
        else listener.onPayload(this.peerRank, header);
      },
    });
    this.#receiving.start(
      (bytes) => {
        if (this.#ended !== undefined) return;
        try {
          reader.push(bytes);
        } catch (error) {
          this.destroy(
            isLockstepError(error, 'LOCKSTEP_INVALID_ARGUMENT') ? this.#lost(error.message, error) : asError(error),
          );
        }
      },
      (why) => this.#end(this.#lost(reader.isBetweenFrames ? why : `${why} in the middle of a frame`)),
    );
    this.#awaitExplanation();
  }

  send(header: FrameHeader, payload: Uint8Array | undefined): Promise<void> {
    if (this.#sendError !== undefined) return Promise.reject(this.#sendError);
    const encoded = Buffer.allocUnsafe(HEADER_BYTES);
    encodeHeader(header, encoded);
    return this.#sending.send(encoded, payload).catch(() => this.#explain());
  }

  close(): Promise<void> {
    this.#closing ??= this.#ended === undefined ? this.#close() : Promise.resolve();
    return this.#closing;
  }

  async #close(): Promise<void> {
    this.#sendError = new ClosedError(`the link to rank ${this.peerRank} was closed by this process.`);
    if (this.#listener === undefined) this.listen(NOBODY); // the peer may be leaving too, which has to be read
    const encoded = new Uint8Array(HEADER_BYTES);
    encodeHeader(GOODBYE, encoded);
    const goodbye = this.#sending.send(encoded, undefined).catch(() => undefined); // then there is nobody to tell
    if (await isDoneWithin(goodbye, CLOSE_WAIT_MS)) await isDoneWithin(this.#sending.end(), END_WAIT_MS);
    this.#end(undefined);
  }

  destroy(reason: Error): void {
    this.#end(reason);
  }

  #peerLeft(): void {
    this.#sendError ??= new PeerLostError(`rank ${this.peerRank} has left: it closed its world.`, {
      ranks: [this.peerRank],
    });
    this.#end(undefined);
  }

  /** Once; whatever comes later is a consequence. */
  #end(reason: Error | undefined): void {
    if (this.#ended !== undefined) return;
    const told = this.#closing === undefined ? reason : undefined; // what goes wrong while we leave is of no interest
    this.#ended = { reason: told };
    const sendError = (this.#sendError ??= told ?? this.#lost('the link was closed'));
    this.#explanationTimer?.cancel();
    this.#sending.destroy();
    this.#receiving.destroy();
    for (const reject of this.#unexplained.splice(0)) reject(sendError);
    this.#tell(told);
  }

  #tell(reason: Error | undefined): void {
    const listener = this.#listener;
    if (listener !== undefined) queueMicrotask(() => listener.onClosed(this.peerRank, reason));
  }

  #lost(why: string, cause?: unknown): PeerLostError {
    return new PeerLostError(`rank ${this.peerRank} is lost: ${withoutFullStop(why)}.`, {
      ranks: [this.peerRank],
      cause,
    });
  }

  #awaitExplanation(): void {
    const why = this.#sendingBroke;
    if (why === undefined || this.#listener === undefined) return; // nothing is read yet, so nothing can explain it
    if (this.#ended !== undefined || this.#closing !== undefined) return;
    const giveUp = (): void => this.#end(this.#lost(why));
    // A turn more, so that after a long computation what has arrived meanwhile is read first.
    this.#explanationTimer = systemClock.schedule(() => nextTurn(giveUp), EXPLANATION_MS, true);
  }

  /** Rejects with why the link ended, as soon as that is known. */
  #explain(): Promise<never> {
    if (this.#ended !== undefined) return Promise.reject(this.#sendError ?? this.#lost('the link was closed'));
    return new Promise((_resolve, reject) => {
      this.#unexplained.push(reject);
    });
  }
}

function isDoneWithin(work: Promise<unknown>, timeoutMs: number): Promise<boolean> {
  return new Promise((resolve) => {
    const timer = systemClock.schedule(() => resolve(false), timeoutMs, true);
    void work.then(() => {
      timer.cancel();
      resolve(true);
    });
  });
}
