import { inspect } from 'node:util';
import { CallSite } from '../../core/call-site';
import { DEFAULT_TIMEOUT_MS, checkTimeout } from '../../core/deadline';
import { DTYPES, type DataBuffer } from '../../core/dtype';
import { asError } from '../../core/errors';
import { ReduceOp } from '../../core/reduce-op';
import type { BackendCapabilities, CallOptions } from '../backend';
import type { BackendStore } from '../backend-store';
import type { CallOp, PointToPointOp } from '../call';
import type { Caller } from '../check-arguments';
import type { CheckedCollective } from '../check-collective';
import type { CheckedPointToPoint } from '../check-point-to-point';
import { CheckedBackend, type StartedCall } from '../checked-backend';
import { refuseLongTags } from '../tag-limit';
import type { ControlPlane } from '../control-plane';
import type { Communicator } from './addon';
import { NcclBuffer } from './nccl-buffer';
import { NcclDevice } from './nccl-device';
import { NcclGroup, type NcclWorld } from './nccl-group';

export const CAPABILITIES: BackendCapabilities = {
  devices: ['cpu', 'cuda'],
  dtypes: DTYPES,
  reduceOps: [ReduceOp.Sum, ReduceOp.Product, ReduceOp.Min, ReduceOp.Max, ReduceOp.Average],
  integerAverage: false,
  progress: 'thread',
  bitwise: false,
};

/** What the calls of a group and its subgroups go by. */
type CallDefaults = Pick<Caller, 'timeoutMs' | 'deterministic'>;

export interface NcclBackendOptions extends NcclWorld {
  readonly control: ControlPlane;
  /** Of all ranks. */
  readonly communicator: Communicator;
  /** Milliseconds that a call may wait where it does not say otherwise; default 10 minutes. */
  readonly timeoutMs?: number | undefined;
  readonly deterministic?: boolean | undefined;
}

/** The root group also holds the job. */
interface Root {
  readonly control: ControlPlane;
}

/**
 * A group whose ranks are processes with a GPU each; their data travels over NCCL, and all else that [Note: rules of a backend]
 * asks for over the control plane, see [Note: two halves of a call].
 *
 * The order of reductions is NCCL's: results agree with the mock's within rounding, and are the same on all ranks. Sends and
 * receives between two ranks match in the order of their calls, whatever their tags. Ranks must use their groups, and make
 * single sends and receives, in one order: [Note: order of launches].
 */
export class NcclBackend extends CheckedBackend {
  readonly name = 'nccl';
  readonly device: NcclDevice;
  /** The world's, on its root group. */
  readonly store: BackendStore | undefined;
  readonly #world: NcclWorld;
  readonly #group: NcclGroup;
  readonly #hasCallSites: boolean;
  readonly #root: Root | undefined;
  readonly #children = new Set<NcclBackend>();
  #closing: Promise<void> | undefined;

  private constructor(
    world: NcclWorld,
    group: NcclGroup,
    device: NcclDevice,
    { timeoutMs, deterministic }: CallDefaults,
    { hasCallSites, root }: { readonly hasCallSites: boolean; readonly root?: Root },
  ) {
    const { id, ranks } = group.control;
    const checkDeviceBuffer: Caller['checkDeviceBuffer'] = (buffer, what) =>
      NcclBuffer.check(buffer, world.device, what);
    super({
      id,
      ranks,
      caller: { ...group.place, timeoutMs, deterministic, capabilities: CAPABILITIES, checkDeviceBuffer },
    });
    this.#world = world;
    this.#group = group;
    this.device = device;
    this.#hasCallSites = hasCallSites;
    this.#root = root;
    this.store = root?.control.store;
  }

  /**
   * The backend of a world that has its communicator. It owns the device and the control plane from now on.
   * @throws InvalidArgumentError for a timeout that is not a positive number
   */
  static over(options: NcclBackendOptions): NcclBackend {
    const { control, communicator, device, checks, logger, deterministic } = options;
    const timeoutMs = checkTimeout(options.timeoutMs, DEFAULT_TIMEOUT_MS);
    const world = { device, checks, logger };
    return new NcclBackend(
      world,
      new NcclGroup(world, control.root, communicator),
      new NcclDevice(device, { timeoutMs, rank: control.rank, logger }),
      { timeoutMs, deterministic },
      { hasCallSites: control.hasCallSites, root: { control } },
    );
  }

  /** As in `Backend`. Close the child when it is no longer needed; closing this group closes it too. */
  async split(ranks: readonly number[], options?: CallOptions): Promise<NcclBackend | undefined> {
    const group = await this.#group.split(this.checkedSplit(ranks, options), this.#callSite());
    if (group === undefined) return undefined;
    const hasCallSites = this.#hasCallSites;
    const child = new NcclBackend(this.#world, group, this.device, this.caller, { hasCallSites });
    this.#children.add(child);
    if (this.#closing !== undefined) await child.close(); // closed while the split was on its way
    return child;
  }

  abort(reason: Error): void {
    this.#group.control.abort(asError(reason));
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  /** @internal */
  protected refusal(op: CallOp): Error | undefined {
    return this.#group.control.refusal(op);
  }

  /** @internal */
  protected override admitPointToPoint(checked: CheckedPointToPoint<DataBuffer>): void {
    refuseLongTags(checked);
  }

  /** @internal */
  protected startCollective(checked: CheckedCollective): StartedCall {
    return this.#group.startCollective(checked, this.#callSite());
  }

  /** @internal */
  protected startPointToPoint(op: PointToPointOp, checked: CheckedPointToPoint): StartedCall {
    return this.#group.startPointToPoint(op, checked, this.#callSite());
  }

  #callSite(): CallSite | undefined {
    return this.#hasCallSites ? CallSite.capture() : undefined;
  }

  async #close(): Promise<void> {
    const closed = [...[...this.#children].map((child) => child.close()), this.#group.close()];
    this.#children.clear();
    if (this.#root === undefined) return void (await Promise.all(closed));
    this.device.close();
    try {
      await Promise.all(closed);
      await this.#world.device.close();
    } finally {
      await this.#root.control.close();
    }
  }

  [inspect.custom](): string {
    const state = this.#group.isClosed ? 'closed' : 'open';
    return `NcclBackend <rank ${this.rank} of ${this.worldSize}, group ${this.groupId}, ${this.device.name}, ${state}>`;
  }
}
