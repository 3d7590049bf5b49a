/** Meshes whose links are queues in this process, so that a backend can be tested without a network. */
import { setImmediate } from 'node:timers';
import { decodeHeader, encodeHeader, HEADER_BYTES, type FrameHeader } from '../../src/backend/grpc/frame';
import type { Link, LinkListener, Mesh } from '../../src/backend/grpc/link';
import { Generator } from '../../src/core/generator';
import { PeerLostError } from '../../src/core/errors';

interface Frame {
  readonly header: Uint8Array;
  /** Read only when the frame is delivered, as a socket may. */
  readonly payload: Uint8Array | undefined;
  readonly settle: { readonly done: () => void; readonly lost: (error: Error) => void };
}

/** One direction of one link. */
class Wire {
  readonly frames: Frame[] = [];
  readonly from: number;
  readonly to: number;
  /** 'open', or how it ended; an end is told after all frames before it. */
  end: { readonly reason: Error | undefined } | undefined;
  isEndTold = false;
  /** Nothing is delivered for now. */
  isHeld = false;
  /** A frame whose header was told and whose payload is on its way. */
  underway:
    { readonly frame: Frame; readonly header: FrameHeader; readonly target: Uint8Array; offset: number } | undefined;

  constructor(from: number, to: number) {
    this.from = from;
    this.to = to;
  }

  get isBusy(): boolean {
    if (this.isHeld) return false;
    return this.frames.length > 0 || this.underway !== undefined || (this.end !== undefined && !this.isEndTold);
  }
}

/** Delivers what is on all wires of a world, a step at a turn of the event loop or more, in an order given by a seed. */
class Network {
  readonly wires: Wire[][];
  readonly listeners: (LinkListener | undefined)[];
  readonly #random: Generator | undefined;
  #isScheduled = false;

  constructor(size: number, seed: number | undefined) {
    this.wires = Array.from({ length: size }, (_unused, from) =>
      Array.from({ length: size }, (_alsoUnused, to) => new Wire(from, to)),
    );
    this.listeners = new Array<LinkListener | undefined>(size).fill(undefined);
    this.#random = seed === undefined ? undefined : new Generator(seed);
  }

  wire(from: number, to: number): Wire {
    return this.wires[from]?.[to] as Wire;
  }

  wake(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    setImmediate(() => {
      this.#isScheduled = false;
      this.#turn();
    });
  }

  #turn(): void {
    const busy = this.wires.flat().filter((wire) => wire.isBusy && this.listeners[wire.to] !== undefined);
    if (this.#random === undefined) {
      for (const wire of busy) while (this.#step(wire));
    } else if (busy.length > 0) {
      const numSteps = 1 + this.#random.nextBelow(2 * busy.length);
      for (let i = 0; i < numSteps; i++) this.#step(busy[this.#random.nextBelow(busy.length)] as Wire);
    }
    if (this.wires.some((row) => row.some((wire) => wire.isBusy && this.listeners[wire.to] !== undefined))) this.wake();
  }

  /** A header, a piece of a payload, or an end; false if there is nothing. */
  #step(wire: Wire): boolean {
    const listener = this.listeners[wire.to] as LinkListener;
    if (wire.underway !== undefined) {
      this.#movePayload(wire, wire.underway, listener);
      return true;
    }
    const frame = wire.frames.shift();
    if (frame !== undefined) {
      const header = decodeHeader(frame.header);
      const target = listener.onHeader(wire.from, header);
      if (target.byteLength !== header.payloadBytes)
        throw new Error(`target of ${target.byteLength} bytes for ${header.payloadBytes}`);
      wire.underway = { frame, header, target, offset: 0 };
      return true;
    }
    if (wire.end === undefined || wire.isEndTold) return false;
    wire.isEndTold = true;
    listener.onClosed(wire.from, wire.end.reason);
    return false;
  }

  #movePayload(wire: Wire, underway: NonNullable<Wire['underway']>, listener: LinkListener): void {
    const { frame, header, target } = underway;
    const left = header.payloadBytes - underway.offset;
    const numBytes = this.#random === undefined ? left : Math.min(left, 1 + this.#random.nextBelow(64 * 1024));
    const payload = frame.payload ?? new Uint8Array(0);
    target.set(payload.subarray(underway.offset, underway.offset + numBytes), underway.offset);
    underway.offset += numBytes;
    if (underway.offset < header.payloadBytes) return;
    wire.underway = undefined;
    frame.settle.done();
    listener.onPayload(wire.from, header);
  }
}

class MemoryLink implements Link {
  readonly peerRank: number;
  readonly #network: Network;
  readonly #out: Wire;

  constructor(network: Network, rank: number, peerRank: number) {
    this.peerRank = peerRank;
    this.#network = network;
    this.#out = network.wire(rank, peerRank);
  }

  send(header: FrameHeader, payload: Uint8Array | undefined): Promise<void> {
    if (this.#out.end !== undefined)
      return Promise.reject(new PeerLostError(`the link to rank ${this.peerRank} is closed`));
    if ((payload?.byteLength ?? 0) !== header.payloadBytes)
      throw new Error('the payload is not as long as the header says');
    const bytes = new Uint8Array(HEADER_BYTES);
    encodeHeader(header, bytes);
    return new Promise((done, lost) => {
      const isBuffered = this.#out.isHeld; // as by a system: the sender may go on
      this.#out.frames.push({
        header: bytes,
        payload: isBuffered ? payload?.slice() : payload,
        settle: { done, lost },
      });
      if (isBuffered) done();
      this.#network.wake();
    });
  }

  async close(): Promise<void> {
    this.#out.end ??= { reason: undefined };
    this.#network.wake();
  }

  /** What is on the way is lost; the peer's own frames too. */
  destroy(reason: Error): void {
    if (this.#out.end?.reason !== undefined) return;
    this.#out.end = { reason };
    const lost = new PeerLostError(`the link to rank ${this.peerRank} was cut: ${reason.message}`);
    for (const frame of this.#out.frames.splice(0)) frame.settle.lost(lost);
    const back = this.#network.wire(this.peerRank, this.#out.from);
    for (const frame of back.frames.splice(0)) frame.settle.lost(lost);
    back.underway?.frame.settle.lost(lost);
    back.underway = undefined;
    back.end = { reason };
    back.isEndTold = true;
    this.#network.wake();
  }
}

export class MemoryMesh implements Mesh {
  readonly rank: number;
  readonly worldSize: number;
  readonly dataPlane = 'memory, for tests';
  readonly #network: Network;
  readonly #links: readonly MemoryLink[];

  constructor(network: Network, rank: number, worldSize: number) {
    this.rank = rank;
    this.worldSize = worldSize;
    this.#network = network;
    this.#links = Array.from({ length: worldSize }, (_unused, peer) => new MemoryLink(network, rank, peer));
  }

  link(peerRank: number): Link {
    if (peerRank === this.rank) throw new Error('a rank has no link to itself');
    return this.#links[peerRank] as Link;
  }

  listen(listener: LinkListener): void {
    this.#network.listeners[this.rank] = listener;
    this.#network.wake();
  }

  async close(): Promise<void> {
    for (const link of this.#links) if (link.peerRank !== this.rank) await link.close();
  }

  /** Read nothing from that peer until `release`. */
  hold(peerRank: number): void {
    this.#network.wire(peerRank, this.rank).isHeld = true;
  }

  release(peerRank: number): void {
    this.#network.wire(peerRank, this.rank).isHeld = false;
    this.#network.wake();
  }

  /** As if the process had died: no goodbye. */
  destroy(reason: Error): void {
    for (const link of this.#links) if (link.peerRank !== this.rank) link.destroy(reason);
  }
}

/**
 * The meshes of a new world, by rank.
 *
 * @param seed deliver in random order, payloads in pieces; undefined: everything at the next turn, link by link
 */
export function createMemoryMeshes(size: number, seed?: number): MemoryMesh[] {
  const network = new Network(size, seed);
  return Array.from({ length: size }, (_unused, rank) => new MemoryMesh(network, rank, size));
}
