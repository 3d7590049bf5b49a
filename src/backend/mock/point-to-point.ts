/** Sends and receives of one group: rendezvous, first in first out per (source, destination, tag). */
import { copyBuffer, type HostBuffer } from '../../core/dtype';
import { describePointToPoint, type PointToPointCall } from '../call';
import type { CheckedPointToPoint } from '../check-point-to-point';
import { messageMismatchError, type MessageSide } from '../mismatch';
import { InFlightBuffers, lossOf, type BufferChange } from './in-flight';
import type { MemoryUse } from './memory-in-use';
import { MockCall, type CallOrigin } from './mock-call';
import type { MockGroup } from './mock-group';

/** One send or receive of a call. */
export class Transfer {
  readonly owner: PointToPointInFlight;
  readonly call: PointToPointCall;
  readonly data: HostBuffer;
  partner: Transfer | undefined;
  isDone = false;
  /** What a fault makes of what it sends. */
  corrupted: HostBuffer | undefined;
  #buffers: InFlightBuffers | undefined;

  constructor(owner: PointToPointInFlight, call: PointToPointCall, data: HostBuffer) {
    this.owner = owner;
    this.call = call;
    this.data = data;
  }

  get #contribution(): HostBuffer {
    return this.corrupted ?? this.#buffers?.contribution ?? this.data;
  }

  /** That its memory is gone, if it is. */
  findLoss(): BufferChange | undefined {
    const what = lossOf(this.data, this.call.count);
    return what === undefined ? undefined : { use: this.call.op === 'send' ? 'send' : 'receive', what };
  }

  #findChange(): BufferChange | undefined {
    return this.findLoss() ?? this.#buffers?.findChange();
  }

  /** It has to wait: from here on its buffer is the group's. */
  hold(): void {
    const { world } = this.owner.group;
    if (!world.isChecking) return;
    const isSend = this.call.op === 'send';
    this.#buffers = new InFlightBuffers({
      send: isSend ? this.data : undefined,
      recv: isSend ? undefined : this.data,
      isChecked: true,
      isRecvKept: true,
      pool: world.snapshots,
    });
  }

  /** Both sides are there: copy, unless a side has changed its buffer; its call then says so when all parts are done. */
  static move(send: Transfer, recv: Transfer): void {
    const sendChange = send.#findChange();
    if (sendChange !== undefined && send.#contribution === send.data) {
      return send.owner.group.failByLostMemory(send.owner, sendChange); // nobody knows what was in it
    }
    send.owner.change ??= sendChange;
    const recvChange = recv.#findChange();
    recv.owner.change ??= recvChange;
    if (recvChange === undefined) copyBuffer(recv.data, send.#contribution);
    for (const side of [send, recv]) {
      side.isDone = true;
      side.#buffers?.release();
      side.#buffers = undefined;
    }
  }

  restore(): void {
    this.#buffers?.restore();
  }
}

/** A send, a receive, or a batch of them. */
export class PointToPointInFlight extends MockCall {
  readonly transfers: readonly Transfer[];
  override readonly memoryUse: MemoryUse;
  /** The first buffer that its caller changed, if any. */
  change: BufferChange | undefined;

  constructor(origin: CallOrigin, checked: CheckedPointToPoint) {
    super(origin, undefined);
    this.memoryUse = memoryUseOf(checked);
    this.transfers = checked.parts.map((part) => new Transfer(this, part.call, part.data));
  }

  override describe(): string {
    const parts = this.transfers.map((transfer) => describePointToPoint(transfer.call));
    return this.op === 'batch' ? `batch(${parts.join(', ')})` : parts.join();
  }

  override missingRanks(): readonly number[] {
    const peers = this.transfers.flatMap(({ partner, call }) => (partner === undefined ? [call.peer] : []));
    return [...new Set(peers)];
  }

  override companions(): readonly MockCall[] {
    const partners = this.transfers.flatMap(({ partner }) => (partner === undefined ? [] : [partner.owner]));
    return [...new Set<MockCall>([this, ...partners])];
  }

  override corrupt(flip: (buffer: HostBuffer) => HostBuffer): void {
    for (const transfer of this.transfers) {
      if (transfer.call.op === 'send') transfer.corrupted = flip(transfer.data);
    }
  }

  override progress(): void {
    for (const transfer of this.transfers) moveIfReady(transfer);
    this.finishIfDone();
  }

  /** Tell the caller once every part has moved. */
  finishIfDone(): void {
    if (this.isComplete || !this.transfers.every((transfer) => transfer.isDone)) return;
    if (!this.group.world.order.isNext(this)) return; // an empty batch has no partner that would have to wait for it
    this.isComplete = true;
    this.group.world.schedule.deliver(() => this.#deliver());
  }

  #deliver(): void {
    for (const transfer of this.transfers) this.change ??= transfer.findLoss();
    if (this.change === undefined) this.complete();
    else this.failAsIs(this.group.changedBufferError(this, this.change));
  }

  protected override restoreBuffers(): void {
    for (const transfer of this.transfers) if (!transfer.isDone) transfer.restore();
  }
}

export function memoryUseOf({ parts }: CheckedPointToPoint): MemoryUse {
  const dataOf = (op: 'send' | 'recv'): HostBuffer[] =>
    parts.flatMap(({ call, data }) => (call.op === op ? [data] : []));
  return { reads: dataOf('send'), writes: dataOf('recv') };
}

/** Sends and receives that wait for their partner. */
export class PointToPointQueues {
  readonly #group: MockGroup;
  /** Per route: sends, or receives, never both. */
  readonly #waiting = new Map<string, Transfer[]>();

  constructor(group: MockGroup) {
    this.#group = group;
  }

  arrive(call: PointToPointInFlight): void {
    for (const transfer of call.transfers) {
      const loss = transfer.findLoss(); // while a fault held it up
      if (loss !== undefined) return this.#group.failByLostMemory(call, loss);
    }
    for (const transfer of call.transfers) if (!call.isSettled) this.#match(transfer);
    if (call.isSettled) return;
    call.progress();
    for (const transfer of call.transfers) if (!transfer.isDone) transfer.hold();
  }

  #match(transfer: Transfer): void {
    const route = this.#routeOf(transfer);
    const queue = this.#waiting.get(route);
    const first = queue?.[0];
    if (queue === undefined || first === undefined) {
      this.#waiting.set(route, [transfer]);
      return;
    }
    if (first.call.op === transfer.call.op) {
      queue.push(transfer);
      return;
    }
    queue.shift();
    if (queue.length === 0) this.#waiting.delete(route);
    transfer.partner = first;
    first.partner = transfer;
    if (!isSameMessage(transfer.call, first.call)) this.#failMismatch(transfer, first);
  }

  /** In portable mode tags do not tell messages apart: [Note: portable mode]. */
  #routeOf({ owner, call }: Transfer): string {
    const [from, to] = call.op === 'send' ? [owner.rank, call.peer] : [call.peer, owner.rank];
    return this.#group.world.order.isKept ? `${from}>${to}` : `${from}>${to}#${call.tag}`;
  }

  #failMismatch(a: Transfer, b: Transfer): void {
    const [send, recv] = a.call.op === 'send' ? [a, b] : [b, a];
    const { id: group, ranks } = this.#group;
    const sides = [sideOf(send), sideOf(recv)] as const;
    const words = send.call.tag === recv.call.tag ? undefined : messagesOutOfOrder(group);
    this.#group.fail((rank, call) => messageMismatchError({ group, ranks }, sides, { rank, op: call?.op }, words));
  }
}

function sideOf({ owner, call }: Transfer): MessageSide {
  return { rank: owner.rank, call, sourceLine: owner.sourceLine };
}

function messagesOutOfOrder(group: string): { readonly heading: string; readonly advice: string } {
  return {
    heading: `not portable: messages of group ${group} are received out of the order in which they are sent. NCCL ignores tags and pairs sends with receives in the order of issue, so the data would be mixed up:`,
    advice: 'Receive in the order of sending, whatever the tags.',
  };
}

function isSameMessage(a: PointToPointCall, b: PointToPointCall): boolean {
  return a.dtype === b.dtype && a.count === b.count && a.tag === b.tag;
}

/** Copy, if both sides are there and, in portable mode, have nothing older to do. */
function moveIfReady(transfer: Transfer): void {
  const { partner, owner } = transfer;
  if (partner === undefined || transfer.isDone || owner.isSettled || partner.owner.isSettled) return;
  const { world } = owner.group;
  if (!world.order.isNext(owner) || !world.order.isNext(partner.owner)) return;
  const [send, recv] = transfer.call.op === 'send' ? [transfer, partner] : [partner, transfer];
  Transfer.move(send, recv);
  send.owner.finishIfDone();
  recv.owner.finishIfDone();
}
