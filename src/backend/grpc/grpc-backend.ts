import { inspect } from 'node:util';
import { DEFAULT_TIMEOUT_MS, checkTimeout } from '../../core/deadline';
import { DTYPES } from '../../core/dtype';
import { asError } from '../../core/errors';
import { ReduceOp } from '../../core/reduce-op';
import type { BackendCapabilities, CallOptions } from '../backend';
import type { CallOp, PointToPointOp } from '../call';
import { CallSite } from '../../core/call-site';
import type { Caller } from '../check-arguments';
import type { CheckedCollective } from '../check-collective';
import type { CheckedPointToPoint } from '../check-point-to-point';
import { CheckedBackend } from '../checked-backend';
import { refuseLongTags } from '../tag-limit';
import type { CollectiveInFlight } from './collective-in-flight';
import { GrpcGroup } from './grpc-group';
import type { GrpcWorld } from './grpc-world';
import type { Mesh } from './link';
import type { MessagesInFlight } from './messages-in-flight';
import { RootGroup, type RootGroupOptions } from './root-group';
import type { StoreClient } from './store-client';

const CAPABILITIES: BackendCapabilities = {
  devices: ['cpu'],
  dtypes: DTYPES,
  reduceOps: Object.values(ReduceOp),
  progress: 'event-loop',
  bitwise: true,
};

export interface GrpcBackendOptions extends RootGroupOptions {
  /** False: an all-reduce may leave rank order where that is faster; subgroups too. Default true. */
  readonly deterministic?: boolean | undefined;
  /** Milliseconds that a call may wait where it does not say otherwise; default 10 minutes. */
  readonly timeoutMs?: number | undefined;
}

/** What the calls of a group and its subgroups go by. */
type CallDefaults = Pick<Caller, 'timeoutMs' | 'deterministic'>;

/**
 * A group whose ranks are processes, connected by a mesh of links. Reductions go in rank order, so results have the
 * mock's bits; all but those of an all-reduce with `deterministic: false`.
 *
 * A call that has failed may leave part of a frame still arriving in its receive buffer: its contents are undefined,
 * and the memory is the caller's own again when the backend is closed.
 */
export class GrpcBackend extends CheckedBackend {
  override readonly name = 'grpc';
  /** The world's, on its root group. */
  readonly store: StoreClient | undefined;
  readonly #world: GrpcWorld;
  readonly #group: GrpcGroup;
  /** Undefined for a subgroup. */
  readonly #root: RootGroup | undefined;
  readonly #children = new Set<GrpcBackend>();

  private constructor(
    world: GrpcWorld,
    group: GrpcGroup,
    { timeoutMs, deterministic }: CallDefaults,
    root: RootGroup | undefined,
  ) {
    const capabilities = deterministic === false ? { ...CAPABILITIES, bitwise: false } : CAPABILITIES;
    const { id, ranks, rank, size } = group;
    super({ id, ranks, caller: { rank, size, timeoutMs, deterministic, capabilities } });
    this.store = root?.store;
    this.#world = world;
    this.#group = group;
    this.#root = root;
  }

  /**
   * The world that the mesh connects. Closing the backend closes the mesh.
   * @throws InvalidArgumentError for a timeout that is not a positive number
   */
  static over(mesh: Mesh, options: GrpcBackendOptions = {}): GrpcBackend {
    const timeoutMs = checkTimeout(options.timeoutMs, DEFAULT_TIMEOUT_MS);
    const root = new RootGroup(mesh, options);
    return new GrpcBackend(root.world, root.group, { timeoutMs, deterministic: options.deterministic }, root);
  }

  /** As in `Backend`. Close the child when it is no longer needed; closing this group closes it too. */
  override async split(ranks: readonly number[], options?: CallOptions): Promise<GrpcBackend | undefined> {
    const checked = this.checkedSplit(ranks, options);
    const members = (checked.call.ranks ?? []).map((rank) => this.#group.members[rank] as number);
    const id = this.#group.nextChildId();
    await this.startCollective(checked).work;
    if (!members.includes(this.#world.rank)) return undefined;
    const group = new GrpcGroup(this.#world, id, members);
    const child = new GrpcBackend(this.#world, group, this.caller, undefined);
    this.#world.register(group);
    this.#children.add(child);
    if (this.#group.isClosed) child.#closeGroups(); // closed while the split was on its way
    return child;
  }

  override abort(reason: Error): void {
    this.#group.abort(asError(reason));
  }

  override async close(): Promise<void> {
    if (this.#root === undefined) this.#closeGroups();
    else await this.#root.close(() => this.#closeGroups());
  }

  /** As of `RootGroup`: tell all peers of this group that this process is about to end because of `error`. */
  announceLoss(error: Error): void {
    this.#world.announceLoss(this.#group, error);
  }

  /** @internal */
  protected override refusal(op: CallOp): Error | undefined {
    return this.#group.refusal(op);
  }

  /** @internal */
  protected override admitPointToPoint(checked: CheckedPointToPoint): void {
    refuseLongTags(checked);
  }

  /** @internal */
  protected override startCollective(checked: CheckedCollective): CollectiveInFlight {
    return this.#group.startCollective(checked, this.#callSite());
  }

  /** @internal */
  protected override startPointToPoint(op: PointToPointOp, checked: CheckedPointToPoint): MessagesInFlight {
    return this.#group.startPointToPoint(op, checked, this.#callSite());
  }

  #closeGroups(): void {
    for (const child of this.#children) child.#closeGroups();
    this.#children.clear();
    this.#group.close();
  }

  #callSite(): CallSite | undefined {
    return this.#world.hasCallSites ? CallSite.capture() : undefined;
  }

  [inspect.custom](): string {
    const state = this.#group.isClosed ? 'closed' : 'open';
    return `GrpcBackend <rank ${this.rank} of ${this.worldSize}, group ${this.#group.id}, ${state}>`;
  }
}
