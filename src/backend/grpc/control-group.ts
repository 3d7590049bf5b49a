/** A group whose calls are announced on the links between processes, and whose data travels elsewhere. */
import type { CallSite } from '../../core/call-site';
import type { DataBuffer } from '../../core/dtype';
import { asError } from '../../core/errors';
import type { GroupRanks } from '../../core/group-ranks';
import { Work } from '../../core/work';
import type { CallOp, PointToPointOp } from '../call';
import type { CheckedCollective } from '../check-collective';
import type { CheckedPointToPoint } from '../check-point-to-point';
import type { ControlFailure, ControlGroup } from '../control-plane';
import { failureOf } from './group-failure';
import { GrpcGroup } from './grpc-group';
import type { GrpcWorld } from './grpc-world';

/** The group that a split makes. */
interface ChildPlace {
  readonly id: string;
  /** Ranks of the world. */
  readonly members: readonly number[];
}

export class GrpcControlGroup implements ControlGroup {
  readonly #world: GrpcWorld;
  readonly #group: GrpcGroup;
  /** Of splits that were announced. */
  readonly #places = new WeakMap<Work, ChildPlace>();
  readonly #children = new Set<GrpcControlGroup>();

  constructor(world: GrpcWorld, group: GrpcGroup) {
    this.#world = world;
    this.#group = group;
  }

  get id(): string {
    return this.#group.id;
  }

  get rank(): number {
    return this.#group.rank;
  }

  get ranks(): GroupRanks {
    return this.#group.ranks;
  }

  get isClosed(): boolean {
    return this.#group.isClosed;
  }

  refusal(op: CallOp): Error | undefined {
    return this.#group.refusal(op);
  }

  announce(checked: CheckedCollective<DataBuffer>, callSite?: CallSite): Work {
    const { op, ranks } = checked.call;
    const refused = this.#refused(op);
    if (refused !== undefined) return refused;
    const { work } = this.#group.announce(checked, callSite);
    if (ranks !== undefined) {
      const members = ranks.map((rank) => this.#group.members[rank] as number);
      this.#places.set(work, { id: this.#group.nextChildId(), members });
    }
    return work;
  }

  announceMessages(op: PointToPointOp, checked: CheckedPointToPoint<DataBuffer>, callSite?: CallSite): Work {
    return this.#refused(op) ?? this.#group.announceMessages(op, checked, callSite).work;
  }

  child(split: Work): GrpcControlGroup | undefined {
    const place = this.#places.get(split);
    this.#places.delete(split);
    if (place?.members.includes(this.#world.rank) !== true) return undefined;
    const group = new GrpcGroup(this.#world, place.id, place.members);
    const child = new GrpcControlGroup(this.#world, group);
    this.#world.register(group);
    this.#children.add(child);
    if (this.isClosed) child.close(); // closed while the split was on its way
    return child;
  }

  fail(error: Error, isToldOnce = false): void {
    this.#group.fail(failureOf(error, { isToldOnce }));
  }

  abort(reason: Error): void {
    this.#group.abort(asError(reason));
  }

  onFailed(listener: (failure: ControlFailure) => void): void {
    this.#group.onFailed(({ cause, errorFor }) => {
      listener({
        cause,
        errorFor: (call) => {
          this.#group.noteTold();
          return errorFor(call);
        },
      });
    });
  }

  findSilent(limitMs: number, onEnd: (silentRanks: readonly number[]) => void): void {
    this.#group.findSilent(limitMs, onEnd);
  }

  close(): void {
    for (const child of this.#children) child.close();
    this.#children.clear();
    this.#group.close();
  }

  #refused(op: CallOp): Work | undefined {
    const error = this.#group.refusal(op);
    return error && Work.failed({ op, group: this.id, rank: this.rank }, error);
  }
}
