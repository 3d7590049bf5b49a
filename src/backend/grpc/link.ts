/**
 * The seam between the collectives and the bytes: ordered, reliable frames to and from each peer process.
 *
 * Kinds of data plane behind it: 'grpc' (streams with a raw-bytes codec), 'socket' (node:net), and later 'native' (a
 * thread of its own that works on the caller's memory).
 */
import type { FrameHeader } from './frame';

/** This process's end of the connection to one peer. */
export interface Link {
  /** The peer's rank in the world. */
  readonly peerRank: number;
  /**
   * Send one frame; frames leave in the order of the calls.
   *
   * Settles once `payload` may be changed again: its bytes were handed on, not necessarily received. Honours
   * backpressure: the caller keeps few frames in flight by awaiting. Rejects with PeerLostError once the link is gone.
   * @param payload header.payloadBytes bytes; left alone by the caller until the promise settles
   */
  send(header: FrameHeader, payload: Uint8Array | undefined): Promise<void>;
  /** Say goodbye and close; queued frames leave first. Idempotent. */
  close(): Promise<void>;
  /** Cut the connection now. */
  destroy(reason: Error): void;
}

/** What the collectives tell a link about what arrives on it. */
export interface LinkListener {
  /**
   * A header has arrived, in order. Return where its payload goes: exactly header.payloadBytes bytes, which the link
   * fills before the next frame of this link is looked at. Called once a frame; not for the collectives to block in.
   */
  onHeader(peerRank: number, header: FrameHeader): Uint8Array;
  /** The payload of the last header is in place (called for empty ones too). */
  onPayload(peerRank: number, header: FrameHeader): void;
  /**
   * No more frames will come. `reason` is undefined if the peer said goodbye or this side called close(), else why the
   * link is gone: a PeerLostError, or what destroy() was given. Called exactly once a link, never from within send(),
   * close() or destroy().
   */
  onClosed(peerRank: number, reason: Error | undefined): void;
}

/** Links to all other ranks of the job. */
export interface Mesh {
  /** This process's rank in the world. */
  readonly rank: number;
  readonly worldSize: number;
  /** 'grpc' or 'socket', and why it was chosen, for the log line. */
  readonly dataPlane: string;
  /** @param peerRank another rank of the world */
  link(peerRank: number): Link;
  /** Set once, before any frame is awaited; frames that arrive earlier wait. */
  listen(listener: LinkListener): void;
  /** Close all links and servers. Idempotent; afterwards nothing keeps the process alive. */
  close(): Promise<void>;
}
