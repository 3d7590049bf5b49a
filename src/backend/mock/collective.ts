/** Collectives of one group: they match by sequence number, and complete once every rank has arrived. */
import type { HostBuffer } from '../../core/dtype';
import { describeCollective, findUnequalPair, isSameCollective } from '../call';
import type { CheckedCollective } from '../check-collective';
import { collectiveMismatchError, type CalledByRank } from '../mismatch';
import { InFlightBuffers, lossOf, type BufferChange } from './in-flight';
import type { MemoryUse } from './memory-in-use';
import { MockCall, type CallOrigin } from './mock-call';
import type { MockGroup } from './mock-group';
import { resultWriter, type ResultWriter } from './movement';

/** One rank's call of a collective. */
export class CollectiveInFlight extends MockCall {
  readonly checked: CheckedCollective;
  readonly meeting: Meeting;
  override readonly memoryUse: MemoryUse;
  readonly #sendLength: number;
  readonly #recvLength: number;
  #corrupted: HostBuffer | undefined;
  #buffers: InFlightBuffers | undefined;

  constructor(origin: CallOrigin, checked: CheckedCollective, meeting: Meeting) {
    super(origin, meeting.sequence);
    this.checked = checked;
    this.#sendLength = checked.send?.length ?? 0;
    this.#recvLength = checked.recv?.length ?? 0;
    this.memoryUse = memoryUseOf(checked);
    this.meeting = meeting;
  }

  override describe(): string {
    return describeCollective(this.checked.call);
  }

  override missingRanks(): readonly number[] {
    return this.meeting.missingRanks();
  }

  override companions(): readonly MockCall[] {
    return this.meeting.arrivedCalls();
  }

  override corrupt(flip: (buffer: HostBuffer) => HostBuffer): void {
    if (this.checked.send !== undefined) this.#corrupted = flip(this.checked.send);
  }

  override progress(): void {
    this.meeting.completeIfReady();
  }

  /** What it contributes, in a form that does not change. */
  get contribution(): HostBuffer | undefined {
    return this.#corrupted ?? this.#buffers?.contribution ?? this.checked.send;
  }

  /** The buffer whose memory is gone, if one is. */
  findLoss(): BufferChange | undefined {
    const { send, recv } = this.checked;
    const lostRecv = recv === undefined ? undefined : lossOf(recv, this.#recvLength);
    if (lostRecv !== undefined) return { use: send === recv ? 'both' : 'receive', what: lostRecv };
    const lostSend = send === undefined ? undefined : lossOf(send, this.#sendLength);
    return lostSend === undefined ? undefined : { use: 'send', what: lostSend };
  }

  /** The same, if nobody knows any more what it contributes. */
  findLostContribution(): BufferChange | undefined {
    const { send } = this.checked;
    if (send === undefined || this.contribution !== send || lossOf(send, this.#sendLength) === undefined)
      return undefined;
    return this.findLoss();
  }

  /** It has to wait: from here on its buffers are the group's. */
  hold(): void {
    const { world } = this.group;
    if (!world.isChecking && world.schedule.isImmediate) return;
    const { send, recv, call } = this.checked;
    this.#buffers = new InFlightBuffers({
      send,
      recv,
      isChecked: world.isChecking,
      isRecvKept: call.op === 'broadcast',
      pool: world.snapshots,
    });
  }

  /** Write its result and tell its caller. */
  deliver(write: ResultWriter): void {
    if (this.isSettled) return;
    const change = this.findLoss() ?? this.#buffers?.findChange();
    if (change !== undefined) {
      this.failAsIs(this.group.changedBufferError(this, change));
      return;
    }
    if (this.checked.recv !== undefined) write(this.rank, this.checked.recv);
    this.complete();
  }

  /** Nobody reads its contribution any more. */
  release(): void {
    this.#buffers?.release();
    this.#buffers = undefined;
  }

  protected override restoreBuffers(): void {
    this.#buffers?.restore();
  }
}

export function memoryUseOf({ send, recv }: CheckedCollective): MemoryUse {
  return { reads: send === undefined ? [] : [send], writes: recv === undefined ? [] : [recv] };
}

/** Where the ranks of a group meet: one collective, by its sequence number. */
export class Meeting {
  readonly sequence: number;
  /** The group that a split made, once it is complete. */
  child: MockGroup | undefined;
  readonly #group: MockGroup;
  readonly #calls: (CollectiveInFlight | undefined)[];
  #first: CollectiveInFlight | undefined;
  #numArrived = 0;
  #hasMismatch = false;
  #isComplete = false;

  constructor(group: MockGroup, sequence: number) {
    this.#group = group;
    this.sequence = sequence;
    this.#calls = new Array<CollectiveInFlight | undefined>(group.size).fill(undefined);
  }

  missingRanks(): readonly number[] {
    return this.#calls.flatMap((call, rank) => (call === undefined ? [rank] : []));
  }

  arrivedCalls(): readonly CollectiveInFlight[] {
    return this.#calls.filter((call) => call !== undefined);
  }

  /** A rank has come. It completes the collective if it is the last, and waits otherwise. */
  arrive(call: CollectiveInFlight): void {
    const loss = call.findLoss(); // while a fault held it up
    if (loss !== undefined) return this.#group.failByLostMemory(call, loss);
    this.#first ??= call;
    this.#calls[call.rank] = call;
    this.#numArrived += 1;
    if (!this.#hasMismatch && !this.#agrees(call)) {
      this.#hasMismatch = true;
      this.#group.world.decideLater(() => this.#failMismatch());
    }
    const isDeferred = !this.#group.world.schedule.isImmediate;
    if (isDeferred || !this.completeIfReady()) call.hold();
    if (isDeferred) this.completeIfReady();
  }

  #agrees({ checked: { call } }: CollectiveInFlight): boolean {
    const first = (this.#first as CollectiveInFlight).checked.call;
    return isSameCollective(first, call) && (call.op !== 'allToAll' || this.#unequalPair() === undefined);
  }

  /** Complete if all ranks are there and, in portable mode, have nothing older to do. */
  completeIfReady(): boolean {
    if (this.#isComplete) return true;
    if (this.#hasMismatch || this.#numArrived < this.#group.size) return false;
    const calls = this.#calls as CollectiveInFlight[];
    const { world } = this.#group;
    if (!calls.every((call) => world.order.isNext(call))) return false;
    for (const call of calls) {
      const loss = call.findLostContribution();
      if (loss === undefined) continue;
      this.#group.failByLostMemory(call, loss);
      return true;
    }
    this.#complete(calls);
    return true;
  }

  #complete(calls: readonly CollectiveInFlight[]): void {
    this.#isComplete = true;
    this.#group.retire(this);
    const { schedule } = this.#group.world;
    const { call } = (this.#first as CollectiveInFlight).checked;
    if (call.ranks !== undefined) this.child = this.#group.makeChild(call.ranks);
    const write = resultWriter(
      call,
      calls.map((each) => each.checked.call),
      calls.map((each) => each.contribution),
      schedule.isImmediate,
    );
    let numDelivered = 0;
    for (const each of calls) {
      each.isComplete = true;
      schedule.deliver(() => {
        each.deliver(write);
        numDelivered += 1;
        if (numDelivered === calls.length) for (const done of calls) done.release();
      });
    }
  }

  #unequalPair(): ReturnType<typeof findUnequalPair> {
    return findUnequalPair(this.#calls.map((call) => call?.checked.call));
  }

  /** Told when the microtasks have run, so that the list holds every rank that was on its way. */
  #failMismatch(): void {
    const { id: group, ranks } = this.#group;
    const calls = this.#calls.map((call): CalledByRank | undefined =>
      call === undefined ? undefined : { description: call.describe(), sourceLine: call.sourceLine },
    );
    const mismatch = { group, ranks, sequence: this.sequence, calls, pair: this.#unequalPair() };
    this.#group.fail((rank, call) => collectiveMismatchError(mismatch, { rank, op: call?.op }));
  }
}
