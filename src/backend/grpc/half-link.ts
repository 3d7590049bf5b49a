/**
 * The two directions of a link.
 *
 * [Note: two connections] A pair of ranks has two connections, each of which carries frames one way: every rank
 * connects to every other one, and receives on the connections that it opened. gRPC needs that (only its clients can
 * widen the flow control window, see transport 'grpc'), node:net gains from it (only its clients can read into memory
 * of ours), and closing is simple: who has nothing unread on a connection can end it without cutting off what it said.
 */

/** The half on which this rank sends: a connection that the peer opened. */
export interface SendingHalf {
  /**
   * Send a frame, after those sent before.
   * Settles once both buffers may be changed again; rejects once the connection is gone.
   */
  send(header: Uint8Array, payload: Uint8Array | undefined): Promise<void>;
  /** Send what is left and end the connection; settles when nothing can be lost any more. Never rejects. */
  end(): Promise<void>;
  destroy(): void;
  /** `callback` is called once, when the connection is gone for whatever reason; at once if it is gone already. */
  onClosed(callback: (why: string) => void): void;
}

/** The half on which this rank receives: a connection that it opened. */
export interface ReceivingHalf {
  /**
   * Call `onBytes` with what has arrived and arrives, in slices that are valid during the call alone, and then
   * `onClosed` once. Before, nothing is read.
   */
  start(onBytes: (bytes: Uint8Array) => void, onClosed: (why: string) => void): void;
  destroy(): void;
}
