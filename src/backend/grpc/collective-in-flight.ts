/** One rank's call of a collective, from post to end. */
import type { HostBuffer } from '../../core/dtype';
import type { Place } from '../algorithms/schedule';
import { describeCollective, type CollectiveCall } from '../call';
import type { UnequalPair } from '../mismatch';
import type { OutgoingMessage } from './channel-outbox';
import type { CollectivePlan } from './collective-plan';
import { CollectiveRun, type RunHost } from './collective-run';
import type { EagerBudget } from './eager-budget';
import type { Words } from './fingerprint';
import { FrameKind } from './frame';
import { GrpcCall, type CallInfo, type OnEnded } from './grpc-call';
import type { ScratchPool } from '../../core/scratch-pool';

/** What a collective needs of its group. */
export interface CollectiveHost {
  readonly place: Place;
  readonly words: Words;
  readonly scratchPool: ScratchPool;
  readonly eagerBudget: EagerBudget;
  post(peer: number, message: OutgoingMessage): void;
  onEnded: OnEnded;
  /** All steps of its schedule are done. */
  onRunDone(): void;
  onDisagreement(call: CollectiveInFlight, pair?: UnequalPair): void;
  onExpired(call: CollectiveInFlight): void;
}

export class CollectiveInFlight extends GrpcCall {
  readonly fingerprint: Words;
  readonly run: CollectiveRun;
  /** Its result is there; it completes when all collectives before it have. */
  isRunDone = false;
  readonly #call: CollectiveCall;
  readonly #plan: CollectivePlan;
  readonly #host: CollectiveHost;
  readonly #scratch: HostBuffer | undefined;
  readonly #sequence: number;

  constructor(
    info: CallInfo & { readonly sequence: number },
    call: CollectiveCall,
    fingerprint: Words,
    plan: CollectivePlan,
    host: CollectiveHost,
  ) {
    super(info, host.onEnded);
    this.#call = call;
    this.#plan = plan;
    this.fingerprint = fingerprint;
    this.#host = host;
    this.#sequence = info.sequence;
    const { schedule, input, output, dtype, reduceOp } = plan;
    this.#scratch = dtype === undefined ? undefined : host.scratchPool.take(dtype, schedule.scratchLength);
    const buffers = { input, output, scratch: this.#scratch, dtype, reduceOp, size: host.place.size };
    this.run = new CollectiveRun(schedule, buffers, this.#runHost());
  }

  override describe(): string {
    return describeCollective(this.#call);
  }

  override awaitedPeers(): readonly number[] {
    return this.run.awaitedPeers;
  }

  /** A grant carries the fingerprint: two ranks that wait for each other in different calls find out by it. */
  override probe(): void {
    for (const peer of this.awaitedPeers()) this.#sendGrant(peer);
  }

  override expire(): void {
    this.#host.onExpired(this);
  }

  protected override stop(): void {
    this.run.stop();
  }

  #runHost(): RunHost {
    const isCancelled = (): boolean => this.run.isStopped && this.work.error !== undefined;
    return {
      eagerBudget: this.#host.eagerBudget,
      sendMessage: (peer, message, payload, onSent) => {
        const header = this.#header(FrameKind.Data, message);
        this.#host.post(peer, { header, messageBytes: payload.byteLength, payload, onSent, isCancelled });
      },
      sendGrant: (peer) => this.#sendGrant(peer),
      sendReport: (peer, numBytes) => {
        this.#host.post(peer, { header: this.#header(FrameKind.Ack, 0), messageBytes: numBytes, payload: undefined });
      },
      onDone: () => {
        const pair = this.#plan.unequalPair?.();
        if (pair !== undefined) return this.#host.onDisagreement(this, pair);
        this.isRunDone = true;
        // All that was expected is there. After a failure a frame may still be arriving; then it is not used again.
        if (this.#scratch !== undefined) this.#host.scratchPool.release(this.#scratch);
        this.#host.onRunDone();
      },
      onUnequalLength: (peer) => this.#host.onDisagreement(this, { sender: peer, receiver: this.info.rank }),
    };
  }

  #sendGrant(peer: number): void {
    this.#host.post(peer, { header: this.#header(FrameKind.Grant, 0), messageBytes: 0, payload: undefined });
  }

  #header(kind: FrameKind, message: number): OutgoingMessage['header'] {
    const { words } = this.#host;
    return {
      kind,
      isPointToPoint: false,
      groupHigh: words.high,
      groupLow: words.low,
      call: this.#sequence,
      message,
      fingerprintHigh: this.fingerprint.high,
      fingerprintLow: this.fingerprint.low,
    };
  }
}
