/** What all groups of one process share: the links to its peers, and where the frames that come on them go. */
import { systemClock } from '../../core/clock';
import { toWire } from '../../core/error-wire';
import { isLockstepError } from '../../core/errors';
import type { Logger } from '../../core/logger';
import type { CalledByRank } from '../mismatch';
import { Outbox, type OutgoingMessage } from './channel-outbox';
import { decodeControl, encodeControl } from './control-message';
import { DeadlineWatch } from './deadline-watch';
import { groupKey, type Words } from './fingerprint';
import { CHUNK_BYTES, FrameKind, type FrameHeader } from './frame';
import type { Loss } from './group-failure';
import type { GrpcGroup } from './grpc-group';
import type { LinkListener, Mesh } from './link';
import { ScratchPool } from '../../core/scratch-pool';

/** How long `close` waits for what is queued to leave; a peer that does not read cannot hold it up for longer. */
const FLUSH_MS = 1000;

interface EarlyFrame {
  readonly peerRank: number;
  readonly header: FrameHeader;
  readonly bytes: Uint8Array;
}

const NO_BYTES = new Uint8Array(0);

export class GrpcWorld implements LinkListener {
  readonly rank: number;
  readonly worldSize: number;
  readonly logger: Logger;
  /** Calls note where in the program they were made. */
  readonly hasCallSites: boolean;
  readonly scratchPool = new ScratchPool();
  readonly deadlines = new DeadlineWatch();
  readonly #mesh: Mesh;
  readonly #outboxes: readonly (Outbox | undefined)[];
  readonly #groups = new Map<number, GrpcGroup>();
  /** Frames of groups that this rank has not made yet, in the order of arrival. */
  readonly #early = new Map<number, EarlyFrame[]>();
  /**
   * Groups that this rank has closed: what still comes for them is dropped, but who asks what it called there, because
   * ranks disagree, is told.
   */
  readonly #closedGroups = new Map<number, (sequence: number) => CalledByRank | null>();
  /** Peers that are gone, and how they were lost; undefined: they said goodbye. */
  readonly #gone = new Map<number, Loss | undefined>();
  /** By peer: memory of the frame that is arriving, if no call had a place for it. */
  readonly #arriving: (Uint8Array | undefined)[];
  /** Payloads that nobody wants. */
  #discarded: Uint8Array | undefined;
  #isClosed = false;

  constructor(mesh: Mesh, logger: Logger, hasCallSites = false) {
    this.logger = logger;
    this.hasCallSites = hasCallSites;
    this.#mesh = mesh;
    this.rank = mesh.rank;
    this.worldSize = mesh.worldSize;
    this.#outboxes = Array.from({ length: mesh.worldSize }, (_unused, peer) =>
      peer === mesh.rank ? undefined : new Outbox(mesh.link(peer)),
    );
    this.#arriving = new Array<Uint8Array | undefined>(mesh.worldSize).fill(undefined);
  }

  /** Begin to listen; the first group must be there. */
  listen(): void {
    this.#mesh.listen(this);
  }

  /** A group is there: give it what came for it before. */
  register(group: GrpcGroup): void {
    const { key } = group;
    this.#groups.set(key, group);
    const early = this.#early.get(key) ?? [];
    this.#early.delete(key);
    for (const { peerRank, header, bytes } of early) group.receivedEarly(peerRank, header, bytes);
    for (const [peerRank, loss] of this.#gone) {
      if (!group.members.includes(peerRank)) continue;
      if (loss === undefined) group.noteDeparted(peerRank);
      else group.noteLost(peerRank, loss);
    }
  }

  /** @param describe what this rank called there, by sequence number */
  forget(group: GrpcGroup, describe: (sequence: number) => CalledByRank | null): void {
    this.#groups.delete(group.key);
    this.#closedGroups.set(group.key, describe);
  }

  /** The call in which this rank waits for others, in words: one of `group` if there is one. */
  waitsIn(group?: GrpcGroup): string | null {
    for (const each of [group, ...this.#groups.values()]) {
      const title = each?.waitsIn ?? null;
      if (title !== null) return title;
    }
    return null;
  }

  post(peerRank: number, message: OutgoingMessage): void {
    this.#outboxes[peerRank]?.post(message);
  }

  postControl(peerRank: number, { high, low }: Words, payload: Uint8Array): void {
    const header = {
      kind: FrameKind.Control,
      isPointToPoint: false,
      groupHigh: high,
      groupLow: low,
      call: 0,
      message: 0,
      fingerprintHigh: 0,
      fingerprintLow: 0,
    };
    this.post(peerRank, { header, messageBytes: payload.byteLength, payload });
  }

  /** A peer will never be heard of again. */
  loseRank(peerRank: number, loss: Loss): void {
    if (this.#isClosed || this.#gone.has(peerRank)) return;
    this.#gone.set(peerRank, loss);
    this.#outboxes[peerRank]?.breakOff();
    for (const group of [...this.#groups.values()])
      if (group.members.includes(peerRank)) group.noteLost(peerRank, loss);
  }

  onHeader(peerRank: number, header: FrameHeader): Uint8Array {
    this.#arriving[peerRank] = undefined;
    const key = groupKey(header.groupHigh, header.groupLow);
    const target = this.#groups.get(key)?.targetOf(peerRank, header);
    if (target !== undefined) return target;
    const { payloadBytes } = header;
    if (header.kind === FrameKind.Data && (this.#isClosed || this.#closedGroups.has(key))) {
      return this.#discard(payloadBytes);
    }
    // Memory of its own, not of Buffer's pool: aligned for every dtype.
    const bytes = payloadBytes === 0 ? NO_BYTES : new Uint8Array(payloadBytes);
    this.#arriving[peerRank] = bytes;
    return bytes;
  }

  onPayload(peerRank: number, header: FrameHeader): void {
    const bytes = this.#arriving[peerRank];
    this.#arriving[peerRank] = undefined;
    const key = groupKey(header.groupHigh, header.groupLow);
    const group = this.#groups.get(key);
    if (bytes === undefined) group?.received(peerRank, header);
    else if (group !== undefined) group.receivedEarly(peerRank, header, bytes);
    else if (header.kind === FrameKind.Control && this.#answerForNoGroup(peerRank, header, bytes)) return;
    else if (!this.#isClosed && !this.#closedGroups.has(key)) this.#keepEarly(key, { peerRank, header, bytes });
  }

  onClosed(peerRank: number, reason: Error | undefined): void {
    if (reason !== undefined) return this.loseRank(peerRank, { how: reason.message, cause: reason });
    if (this.#isClosed || this.#gone.has(peerRank)) return;
    this.#gone.set(peerRank, undefined);
    this.#outboxes[peerRank]?.breakOff();
    for (const group of [...this.#groups.values()]) if (group.members.includes(peerRank)) group.noteDeparted(peerRank);
  }

  /** Send what is queued, say goodbye, and let go of everything. */
  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.deadlines.close();
    await this.#flush();
    await this.#mesh.close();
  }

  /** This process is about to end because of `error`: tell all peers of `group`, without waiting for anything. */
  announceLoss(group: GrpcGroup, error: Error): void {
    if (this.#isClosed) return; // it has said goodbye
    const message = encodeControl({ type: 'lost', error: toWire(error) });
    for (const peerRank of group.members) {
      this.postControl(peerRank, group.words, message);
      this.#outboxes[peerRank]?.flushUrgent();
    }
  }

  async #flush(): Promise<void> {
    const idle = Promise.all(this.#outboxes.map(async (outbox) => outbox?.idle()));
    let giveUp = (): void => undefined;
    const limit = new Promise<void>((resolve) => (giveUp = resolve));
    const timer = systemClock.schedule(giveUp, FLUSH_MS, true);
    await Promise.race([idle, limit]);
    timer.cancel();
  }

  #keepEarly(key: number, frame: EarlyFrame): void {
    const early = this.#early.get(key);
    if (early === undefined) this.#early.set(key, [frame]);
    else early.push(frame);
  }

  /** Somebody asks what this rank called in a group that it has not made yet, or has closed. */
  #answerForNoGroup(peerRank: number, header: FrameHeader, bytes: Uint8Array): boolean {
    let message;
    try {
      message = decodeControl(bytes);
    } catch (error) {
      if (!isLockstepError(error)) throw error;
      return true; // nobody of this version sent it, and it concerns no group of ours
    }
    if (message.type !== 'question') return false;
    const describe = this.#closedGroups.get(groupKey(header.groupHigh, header.groupLow));
    const called = message.sequence === null ? null : (describe?.(message.sequence) ?? null);
    const answer = encodeControl({ type: 'answer', id: message.id, called, waitsIn: this.waitsIn() });
    this.postControl(peerRank, { high: header.groupHigh, low: header.groupLow }, answer);
    return true;
  }

  #discard(numBytes: number): Uint8Array {
    if (numBytes > 0) this.#discarded ??= new Uint8Array(CHUNK_BYTES);
    return this.#discarded?.subarray(0, numBytes) ?? NO_BYTES;
  }
}
