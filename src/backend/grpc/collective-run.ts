/**
 * Executes one rank's schedule on the links to its peers.
 *
 * Everything happens inside the callbacks of links, step by step; no promise is made per step. Payloads land where the
 * schedule wants them: the caller's own memory, or scratch.
 */
import { byteSize, copyBuffer, viewBuffer, type DType, type HostBuffer } from '../../core/dtype';
import { invariant } from '../../core/invariant';
import { divideBuffer, reduceBuffers } from '../../core/reduce';
import { ReduceOp } from '../../core/reduce-op';
import type { ReceiveStep, ReduceStep, Region, Schedule, SendStep, Step } from '../algorithms/schedule';
import { EAGER_BYTES } from './channel-outbox';
import type { EagerBudget } from './eager-budget';
import type { FrameHeader } from './frame';

/** The group's side of a run. Peers are ranks of the group. */
export interface RunHost {
  readonly eagerBudget: EagerBudget;
  /** Send bytes as the channel's message of that number; `onSent` when they may be written again. */
  sendMessage(peer: number, message: number, bytes: Uint8Array, onSent: () => void): void;
  /** Tell a peer that it may send beyond the eager bytes. */
  sendGrant(peer: number): void;
  /** Tell a peer how many eager bytes were taken: [Note: eager budget]. */
  sendReport(peer: number, numBytes: number): void;
  onDone(): void;
  /** What a peer sends is not as long as what this rank receives. */
  onUnequalLength(peer: number): void;
}

export interface RunBuffers {
  readonly input: HostBuffer | undefined;
  readonly output: HostBuffer | undefined;
  readonly dtype: DType | undefined;
  readonly reduceOp: ReduceOp | undefined;
  /** Of the schedule's scratchLength. */
  readonly scratch: HostBuffer | undefined;
  /** Ranks that an average is over. */
  readonly size: number;
}

interface EarlyFrame {
  readonly header: FrameHeader;
  readonly bytes: Uint8Array;
}

/** Where the exchange with one peer stands. */
interface PeerState {
  /** Indexes of steps. */
  readonly sends: number[];
  readonly receives: number[];
  numSent: number;
  numReceived: number;
  /** Bytes of the current message that are in place. */
  offset: number;
  sendBytes: number;
  receiveBytes: number;
  /** Bytes counted as eager: [Note: eager budget]. */
  eagerBytes: number;
  isGranted: boolean;
  /** Frames that came before there was a place for them. */
  readonly early: EarlyFrame[];
}

const NO_BYTES = new Uint8Array(0);

export class CollectiveRun {
  readonly #steps: readonly Step[];
  readonly #host: RunHost;
  readonly #buffers: RunBuffers;
  readonly #elementBytes: number;
  /** Steps that each step still waits for. */
  readonly #numWaiting: number[];
  readonly #dependents: (number[] | undefined)[];
  readonly #peers = new Map<number, PeerState>();
  #numLeft: number;
  #isStopped = false;

  constructor(schedule: Schedule, buffers: RunBuffers, host: RunHost) {
    const { steps } = schedule;
    this.#steps = steps;
    this.#host = host;
    this.#buffers = buffers;
    const { dtype } = buffers;
    this.#elementBytes = dtype === undefined ? 1 : byteSize(dtype);
    this.#numLeft = steps.length;
    this.#numWaiting = steps.map((step) => step.after.length);
    this.#dependents = new Array<number[] | undefined>(steps.length).fill(undefined);
    steps.forEach((step, index) => this.#register(step, index));
  }

  /** Peers that this rank still has to hear from. */
  get awaitedPeers(): number[] {
    const awaited: number[] = [];
    for (const [peer, state] of this.#peers) {
      const isWaitingForGrant = !state.isGranted && state.numSent < state.sends.length && state.sendBytes > EAGER_BYTES;
      if (state.numReceived < state.receives.length || isWaitingForGrant) awaited.push(peer);
    }
    return awaited.sort((a, b) => a - b);
  }

  start(): void {
    for (const [peer, state] of this.#peers) if (state.receiveBytes > EAGER_BYTES) this.#host.sendGrant(peer);
    for (let index = 0; index < this.#steps.length && !this.#isStopped; index++) {
      if (this.#steps[index]?.after.length === 0) this.#begin(index);
    }
    if (this.#steps.length === 0) this.#host.onDone();
  }

  /** Nothing is sent, written or told any more. */
  stop(): void {
    this.#isStopped = true;
  }

  get isStopped(): boolean {
    return this.#isStopped;
  }

  /** A peer has posted the call. */
  grant(peer: number): void {
    const state = this.#peers.get(peer);
    if (state === undefined || state.isGranted || this.#isStopped) return;
    state.isGranted = true;
    if (state.sendBytes > EAGER_BYTES) this.#host.eagerBudget.release(peer, state.eagerBytes);
    this.#pumpSends(peer, state);
  }

  /** A peer has taken eager bytes of other calls: some of this one may follow. */
  resume(peer: number): void {
    const state = this.#peers.get(peer);
    if (state !== undefined && !this.#isStopped) this.#pumpSends(peer, state);
  }

  /** Where the frame's payload goes, if it can go there at once. */
  targetOf(peer: number, header: FrameHeader): Uint8Array | undefined {
    const state = this.#peers.get(peer);
    if (this.#isStopped || state === undefined || state.early.length > 0) return undefined;
    const step = this.#nextReceive(peer, state, header);
    if (step === undefined) return undefined;
    return this.#bytesOf(step.region).subarray(state.offset, state.offset + header.payloadBytes);
  }

  /** The payload is where `targetOf` said. */
  received(peer: number, header: FrameHeader): void {
    const state = this.#peers.get(peer);
    if (this.#isStopped || state === undefined) return;
    this.#advance(peer, state, header);
    if (state.early.length > 0) this.#drain(peer, state);
  }

  /** A frame whose payload had no place yet when it came. */
  receivedEarly(peer: number, header: FrameHeader, bytes: Uint8Array): void {
    const state = this.#peers.get(peer);
    invariant(state !== undefined, `a message of rank ${peer}, which has no part in this collective`);
    state.early.push({ header, bytes });
    this.#drain(peer, state);
  }

  #register(step: Step, index: number): void {
    for (const earlier of step.after) {
      const list = this.#dependents[earlier];
      if (list === undefined) this.#dependents[earlier] = [index];
      else list.push(index);
    }
    if (step.kind !== 'send' && step.kind !== 'receive') return;
    const state = this.#stateOf(step.peer);
    const bytes = step.region.length * this.#elementBytes;
    if (step.kind === 'send') {
      state.sends.push(index);
      state.sendBytes += bytes;
    } else {
      state.receives.push(index);
      state.receiveBytes += bytes;
    }
  }

  #stateOf(peer: number): PeerState {
    let state = this.#peers.get(peer);
    if (state === undefined) {
      state = {
        sends: [],
        receives: [],
        numSent: 0,
        numReceived: 0,
        offset: 0,
        sendBytes: 0,
        receiveBytes: 0,
        eagerBytes: 0,
        isGranted: false,
        early: [],
      };
      this.#peers.set(peer, state);
    }
    return state;
  }

  /** All that the step waited for is done. */
  #begin(index: number): void {
    const step = this.#steps[index] as Step;
    switch (step.kind) {
      case 'send':
        return this.#pumpSends(step.peer, this.#stateOf(step.peer));
      case 'receive':
        return this.#drain(step.peer, this.#stateOf(step.peer));
      case 'reduce':
        this.#reduce(step);
        return this.#finish(index);
      case 'finish':
        if (this.#buffers.reduceOp === ReduceOp.Average) divideBuffer(this.#viewOf(step.region), this.#buffers.size);
        return this.#finish(index);
      case 'copy':
        this.#copy(step.from, step.region);
        return this.#finish(index);
    }
  }

  #finish(index: number): void {
    if (this.#isStopped) return;
    this.#numLeft -= 1;
    for (const dependent of this.#dependents[index] ?? []) {
      const numWaiting = (this.#numWaiting[dependent] as number) - 1;
      this.#numWaiting[dependent] = numWaiting;
      if (numWaiting === 0) this.#begin(dependent);
    }
    if (this.#numLeft > 0 || this.#isStopped) return;
    this.#isStopped = true;
    for (const [peer, { receiveBytes }] of this.#peers) {
      const report = receiveBytes > EAGER_BYTES ? 0 : this.#host.eagerBudget.take(peer, receiveBytes);
      if (report > 0) this.#host.sendReport(peer, report);
    }
    this.#host.onDone();
  }

  /** Send what may be sent, in order. */
  #pumpSends(peer: number, state: PeerState): void {
    while (state.numSent < state.sends.length && !this.#isStopped) {
      const index = state.sends[state.numSent] as number;
      if (this.#numWaiting[index] !== 0) return;
      const bytes = this.#bytesOf((this.#steps[index] as SendStep).region);
      if (!this.#maySend(peer, state, bytes.byteLength)) return;
      this.#host.sendMessage(peer, state.numSent++, bytes, () => this.#finish(index));
    }
  }

  #maySend(peer: number, state: PeerState, numBytes: number): boolean {
    const isSmall = state.sendBytes <= EAGER_BYTES;
    if (state.isGranted && !isSmall) return true;
    if (!isSmall && state.eagerBytes + numBytes > EAGER_BYTES) return false;
    if (!this.#host.eagerBudget.hold(peer, numBytes, state.isGranted)) return false;
    state.eagerBytes += numBytes;
    return true;
  }

  /** The receive that the frame belongs to, if its memory is free. */
  #nextReceive(peer: number, state: PeerState, header: FrameHeader): ReceiveStep | undefined {
    const index = state.receives[state.numReceived];
    invariant(index !== undefined, `rank ${peer} sent more messages than this collective has`);
    const step = this.#steps[index] as ReceiveStep;
    if (step.region.length * this.#elementBytes !== header.messageBytes) {
      this.#host.onUnequalLength(peer);
      return undefined;
    }
    const isInOrder = header.message === state.numReceived && state.offset + header.payloadBytes <= header.messageBytes;
    invariant(isInOrder, `message ${header.message} of rank ${peer} came out of order`);
    return this.#numWaiting[index] === 0 ? step : undefined;
  }

  #advance(peer: number, state: PeerState, header: FrameHeader): void {
    state.offset += header.payloadBytes;
    if (state.offset < header.messageBytes) return;
    state.offset = 0;
    const index = state.receives[state.numReceived++];
    invariant(index !== undefined, `rank ${peer} sent more messages than this collective has`);
    this.#finish(index);
  }

  #drain(peer: number, state: PeerState): void {
    for (let first = state.early[0]; first !== undefined && !this.#isStopped; first = state.early[0]) {
      const step = this.#nextReceive(peer, state, first.header);
      if (step === undefined) return;
      this.#bytesOf(step.region).set(first.bytes, state.offset);
      state.early.shift();
      this.#advance(peer, state, first.header);
    }
  }

  #reduce({ inputs, region, isPartial }: ReduceStep): void {
    const { reduceOp } = this.#buffers;
    invariant(reduceOp !== undefined, 'a reduction must name its op');
    if (region.length === 0) return;
    const [first] = inputs;
    if (inputs.length === 1 && first !== undefined) return this.#copy(first, region); // often onto itself
    const views = inputs.map((input) => this.#viewOf(input));
    const isSumForNow = isPartial && reduceOp === ReduceOp.Average;
    reduceBuffers(this.#viewOf(region), views, isSumForNow ? ReduceOp.Sum : reduceOp);
  }

  #copy(from: Region, to: Region): void {
    if (from.length === 0) return;
    const [source, target] = [this.#viewOf(from), this.#viewOf(to)];
    const isInPlace = source.buffer === target.buffer && source.byteOffset === target.byteOffset;
    if (!isInPlace) copyBuffer(target, source);
  }

  #bytesOf({ space, start, length }: Region): Uint8Array {
    if (length === 0) return NO_BYTES;
    const { buffer, byteOffset } = this.#memory(space);
    return new Uint8Array(buffer, byteOffset + start * this.#elementBytes, length * this.#elementBytes);
  }

  #viewOf({ space, start, length }: Region): HostBuffer {
    return viewBuffer(this.#memory(space), start, length);
  }

  #memory(space: Region['space']): HostBuffer {
    const memory = this.#buffers[space];
    invariant(memory !== undefined, `this rank's part of the collective has no ${space}`);
    return memory;
  }
}
