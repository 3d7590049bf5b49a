import { inspect } from 'node:util';
import type { Backend, CallOptions } from '../backend/backend';
import { MockBackend } from '../backend/registry';
import { ClosedError, InvalidArgumentError, asError } from '../core/errors';
import { GroupRanks } from '../core/group-ranks';
import { stderrLogger, type Logger } from '../core/logger';
import { kept } from '../core/kept-promise';
import { ReduceOp } from '../core/reduce-op';
import type { Work } from '../core/work';
import type { Tensor } from '../tensor/tensor';
import { notInGroup } from './call-place';
import { launchNow } from './call-queue';
import { GROUP_EVENTS, type GroupEvents } from './events';
import { GroupChannel } from './group-channel';
import { placeOfWorld, type GroupPlace } from './group-place';
import { GuardedEmitter } from './guarded-emitter';
import { monitoredBarrier } from './monitored-barrier';
import { allGatherObjects, broadcastObject, gatherObjects, scatterObjects } from './object-collectives';
import { splitByColor, splitRanks, type Subgroup } from './subgroup';
import * as collectives from './tensor-collectives';
import type { TensorP2pOp } from './tensor-collectives';

export interface ProcessGroupOptions {
  /** Gets what listeners throw; default: stderr, as LOCKSTEP_LOG says. */
  readonly logger?: Logger | undefined;
}

/**
 * A set of ranks that run collectives together, seen from one of them.
 *
 * `rank` and `size` are of this group; roots and peers of every method are ranks of this group too. `ranks[r]` is the
 * global rank of rank r. Collectives are called by every rank of the group, in the same order.
 *
 * Calls that work in place (allReduce, broadcast, reduce, barrier, send, recv, batch) return a Work: await it, or keep
 * it and compute meanwhile. Those that make a new tensor or value return a promise of it. Either way leave the tensors
 * alone until it settles, and every failure is a rejection. Calls need not be awaited one by one: collectives are made
 * in the order in which they are called ([Note: calls in steps]). That holds for the methods of this class; calls made on
 * `backend` itself come whenever they are made, and emit no events.
 *
 * Errors of all of them: InvalidArgumentError (nothing was sent, the group lives on), ClosedError (after `close`, or
 * after a failure, which is the cause), NotInGroupError (this rank is not a member), and those that end the group:
 * CollectiveMismatchError, CollectiveTimeoutError, PeerLostError, DeadlockError.
 */
export class ProcessGroup {
  readonly #name: string;
  readonly #channel: GroupChannel | undefined;
  readonly #events: GuardedEmitter<GroupEvents>;
  readonly #place: GroupPlace;
  readonly #logger: Logger;
  /** Groups made from this one and still open. */
  readonly #subgroups = new Set<ProcessGroup>();
  readonly #onClosed: (() => void) | undefined;
  #numSubgroups = 0;
  #closing: Promise<void> | undefined;

  /** This rank in its group, 0 to size - 1; -1 if it is not a member. */
  readonly rank: number;
  /** Number of ranks in this group. */
  readonly size: number;
  /** Number of ranks in the world. */
  readonly worldSize: number;
  /** The global rank of each rank of this group. */
  readonly ranks: readonly number[];

  /** The group of all ranks of `backend`, which it owns from now on: `close()` closes it. */
  constructor(backend: Backend, options?: ProcessGroupOptions);
  /** @internal For World, and for the groups that `newGroup` and `split` make. */
  constructor(backend: Backend | undefined, options: ProcessGroupOptions, place: GroupPlace, onClosed?: () => void);
  constructor(
    backend: Backend | undefined,
    { logger = stderrLogger }: ProcessGroupOptions = {},
    place?: GroupPlace,
    onClosed?: () => void,
  ) {
    this.#place = place ?? placeOfWorld(checkBackend(backend).worldSize);
    this.#name = this.#place.name;
    this.#logger = logger;
    this.#onClosed = onClosed;
    this.#events = new GuardedEmitter<GroupEvents>(GROUP_EVENTS, logger);
    const { ranks, worldSize, worldEvents } = this.#place;
    const emitters = worldEvents === undefined ? [this.#events] : [this.#events, worldEvents];
    const named = { name: this.#name, members: new GroupRanks(ranks) };
    this.#channel = backend === undefined ? undefined : new GroupChannel(backend, named, emitters);
    this.rank = backend?.rank ?? -1;
    this.size = ranks.length;
    this.worldSize = worldSize;
    this.ranks = Object.freeze([...ranks]);
  }

  /** A group of one, on the mock. */
  static mock(): ProcessGroup {
    return new ProcessGroup(MockBackend.single());
  }

  /** The group's identity, the same on all ranks, as errors and events print it: 'world', 'world/0'. */
  get name(): string {
    return this.#name;
  }

  /** False on a rank that `newGroup` or `split` left out. */
  get isMember(): boolean {
    return this.#channel !== undefined;
  }

  /** @throws NotInGroupError if this rank is not a member */
  get backend(): Backend {
    return this.#member('backend').backend;
  }

  /** True if the rank of the world `globalRank` is in this group. */
  contains(globalRank: number): boolean {
    return this.ranks.includes(globalRank);
  }

  /** Reduce over all ranks, in place, on every rank; the same bits everywhere. */
  allReduce(tensor: Tensor, op: ReduceOp = ReduceOp.Sum, options: CallOptions = {}): Work {
    return this.#launch('allReduce', (channel) => collectives.allReduce(channel, tensor, op, options));
  }

  /** Copy the elements of rank `src` into `tensor` of every other rank. */
  broadcast(tensor: Tensor, src: number, options: CallOptions = {}): Work {
    return this.#launch('broadcast', (channel) => collectives.broadcast(channel, tensor, src, options));
  }

  /** Reduce into `tensor` of rank `dst`; those of the other ranks stay as they are. */
  reduce(tensor: Tensor, dst: number, op: ReduceOp = ReduceOp.Sum, options: CallOptions = {}): Work {
    return this.#launch('reduce', (channel) => collectives.reduce(channel, tensor, dst, op, options));
  }

  /** All ranks' tensors, stacked in rank order: [size, ...shape]. */
  allGather(tensor: Tensor, options: CallOptions = {}): Promise<Tensor> {
    return this.#kept('allGather', (channel) => collectives.allGather(channel, tensor, options));
  }

  /** Reduce, and keep this rank's part of dimension 0: [n, ...] gives [n / size, ...]. */
  reduceScatter(tensor: Tensor, op: ReduceOp = ReduceOp.Sum, options: CallOptions = {}): Promise<Tensor> {
    return this.#kept('reduceScatter', (channel) => collectives.reduceScatter(channel, tensor, op, options));
  }

  /**
   * `allGather` into a tensor that is there: `output` holds all ranks' elements, in rank order, `size` times as many as
   * `input`. In place where `input` is this rank's part of `output`.
   */
  allGatherInto(output: Tensor, input: Tensor, options: CallOptions = {}): Work {
    return this.#launch('allGather', (channel) => collectives.allGatherInto(channel, output, input, options));
  }

  /**
   * `reduceScatter` into a tensor that is there: part `rank` of the `size` equal parts of `input`, reduced. In place where
   * `output` is that part of `input`; the other parts stay as they are.
   */
  reduceScatterInto(output: Tensor, input: Tensor, op: ReduceOp = ReduceOp.Sum, options: CallOptions = {}): Work {
    return this.#launch('reduceScatter', (channel) =>
      collectives.reduceScatterInto(channel, output, input, op, options),
    );
  }

  /** On rank `dst` all ranks' tensors, stacked in rank order: [size, ...shape]; undefined on the others. */
  gather(tensor: Tensor, dst: number, options: CallOptions = {}): Promise<Tensor | undefined> {
    return this.#kept('gather', (channel) => collectives.gather(channel, tensor, dst, options));
  }

  /**
   * This rank's part of dimension 0 of the tensor of rank `src`: [n, ...] gives [n / size, ...].
   *
   * Only the source passes a tensor. It first announces shape and dtype to the others (or why it cannot scatter: then
   * every rank rejects, and the group lives on), so this takes three collectives.
   */
  scatter(tensor: Tensor | undefined, src: number, options: CallOptions = {}): Promise<Tensor> {
    return this.#inSteps('scatter', (channel) => collectives.scatter(channel, tensor, src, options));
  }

  /** Part j of dimension 0 goes to rank j; part i of the result is from rank i. Same shape. */
  allToAll(tensor: Tensor, options: CallOptions = {}): Promise<Tensor> {
    return this.#kept('allToAll', (channel) => collectives.allToAll(channel, tensor, options));
  }

  /** Send to rank `dst`; settles once it has received. */
  send(tensor: Tensor, dst: number, tag = 0, options: CallOptions = {}): Work {
    return this.#launch('send', (channel) => collectives.send(channel, tensor, dst, tag, options));
  }

  /** Receive into `tensor` what rank `src` sends with this tag; sizes and dtypes must agree. */
  recv(tensor: Tensor, src: number, tag = 0, options: CallOptions = {}): Work {
    return this.#launch('recv', (channel) => collectives.recv(channel, tensor, src, tag, options));
  }

  /** Sends and receives that all progress together, in any order; settles when all have. */
  batch(ops: readonly TensorP2pOp[], options: CallOptions = {}): Work {
    return this.#launch('batch', (channel) => collectives.batch(channel, ops, options));
  }

  /** Settles once every rank has called it. */
  barrier(options: CallOptions = {}): Work {
    return this.#launch('barrier', (channel) =>
      channel.launch('barrier', () => channel.watch({ op: 'barrier' }, channel.backend.barrier(options))),
    );
  }

  /**
   * A barrier whose error names every rank that did not arrive; the group has ended then. Default 30 seconds. It takes
   * size * (size - 1) messages: for finding out who is missing, not for the training loop.
   */
  monitoredBarrier(options: CallOptions = {}): Promise<void> {
    return this.#kept('monitoredBarrier', (channel) => monitoredBarrier(channel, options));
  }

  /**
   * A copy of rank `src`'s value, on every rank, the source included; the other ranks' values are not looked at.
   *
   * Values of the object collectives travel by v8.serialize: plain data, Map, Set, Date, typed arrays. Instances of
   * classes (tensors too) arrive as plain objects, and 16-bit buffers as Uint16Array. If a value cannot be cloned every
   * rank rejects with InvalidArgumentError, which names the rank, and the group lives on.
   */
  broadcastObject<T>(value: T | undefined, src = 0, options: CallOptions = {}): Promise<T> {
    return this.#inSteps<T>('broadcastObject', (channel) => broadcastObject(channel, value, src, options));
  }

  /** Copies of all ranks' values, by rank; their sizes may differ. See `broadcastObject`. */
  allGatherObjects<T>(value: T, options: CallOptions = {}): Promise<T[]> {
    return this.#inSteps<T[]>('allGatherObjects', (channel) => allGatherObjects(channel, value, options));
  }

  /** On rank `dst` copies of all ranks' values, by rank; undefined on the others. See `broadcastObject`. */
  gatherObjects<T>(value: T, dst = 0, options: CallOptions = {}): Promise<T[] | undefined> {
    return this.#inSteps<T[] | undefined>('gatherObjects', (channel) => gatherObjects(channel, value, dst, options));
  }

  /** A copy of entry `rank` of rank `src`'s list; only the source passes one. See `broadcastObject`. */
  scatterObjects<T>(values: readonly T[] | undefined, src = 0, options: CallOptions = {}): Promise<T> {
    return this.#inSteps<T>('scatterObjects', (channel) => scatterObjects(channel, values, src, options));
  }

  /**
   * A group of some ranks of this one, ascending. Every rank of this group calls it, in it or not, with the same list.
   *
   * On a rank that is not listed the result has rank -1, and its collectives reject with NotInGroupError.
   * @param ranks ranks of this group (not of the world)
   * @throws InvalidArgumentError for a list that is empty, or names a rank twice or one that does not exist
   * @throws CollectiveMismatchError if the lists differ; this group has ended
   */
  newGroup(ranks: readonly number[], options: CallOptions = {}): Promise<ProcessGroup> {
    return this.#inSteps('newGroup', async (channel) => {
      const subgroup = await splitRanks(channel, ranks, options);
      return this.#adopt(subgroup, this.#nextName());
    });
  }

  /**
   * Divide this group: ranks that pass the same color are together, in the order of their keys (then of their ranks).
   * Every rank of this group calls it; one that passes undefined is in no group, and gets one with rank -1 and no ranks.
   */
  split(color: number | undefined, key = 0, options: CallOptions = {}): Promise<ProcessGroup> {
    return this.#inSteps('split', async (channel) => {
      const { subgroups, own } = await splitByColor(channel, color, key, options);
      const names = subgroups.map(() => this.#nextName());
      const index = own === undefined ? -1 : subgroups.indexOf(own);
      return this.#adopt(own ?? { members: [], backend: undefined }, names[index] ?? `${this.#name}/none`);
    });
  }

  /** End the group on every rank: pending and later calls reject, with `reason` as the cause. No-op on a non-member. */
  abort(reason: unknown): void {
    this.#channel?.abort(asError(reason));
  }

  /** Close this group, its backend and all groups made from it. Idempotent; later calls reject with ClosedError. */
  close(): Promise<void> {
    this.#closing ??= this.#closeAll();
    return this.#closing;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /**
   * Listen to this group's events: collectiveStart, collectiveEnd, peerLost, poisoned, closed. What a listener throws
   * is logged and changes nothing. The groups made from this one have their own; World's are those of all groups.
   */
  on<K extends keyof GroupEvents>(event: K, listener: GroupEvents[K]): this {
    this.#events.on(event, listener);
    return this;
  }

  /** Listen to the next such event. */
  once<K extends keyof GroupEvents>(event: K, listener: GroupEvents[K]): this {
    this.#events.once(event, listener);
    return this;
  }

  off<K extends keyof GroupEvents>(event: K, listener: GroupEvents[K]): this {
    this.#events.off(event, listener);
    return this;
  }

  [inspect.custom](): string {
    const channel = this.#channel;
    if (channel === undefined) return `ProcessGroup <${this.#name}, not a member, ranks [${this.ranks.join(', ')}]>`;
    const globalRanks = this.size === this.worldSize ? '' : `, global ranks [${this.ranks.join(', ')}]`;
    const failure = channel.firstFailure;
    const state = this.#closing !== undefined ? ', closed' : failure !== undefined ? `, ended by ${failure.name}` : '';
    return `ProcessGroup <${this.#name}, rank ${this.rank} of ${this.size}${globalRanks}, ${channel.backend.name}${state}>`;
  }

  #member(op: string): GroupChannel {
    if (this.#channel !== undefined) return this.#channel;
    throw notInGroup(op, this.#name, this.ranks);
  }

  #launch(op: string, launch: (channel: GroupChannel) => Work): Work {
    return launchNow({ op, group: this.#name, rank: this.rank }, () => launch(this.#member(op)));
  }

  #inSteps<T>(op: string, run: (channel: GroupChannel) => Promise<unknown>): Promise<T> {
    return this.#kept(op, (channel) => channel.inSteps(() => run(channel)) as Promise<T>);
  }

  /** Every failure is a rejection, and the promise may be kept: [Note: kept promises]. */
  #kept<T>(op: string, run: (channel: GroupChannel) => Promise<T>): Promise<T> {
    return kept((async () => run(this.#member(op)))());
  }

  /** Counts the groups made from this one, members or not, so that all ranks give a group the same name. */
  #nextName(): string {
    return `${this.#name}/${this.#numSubgroups++}`;
  }

  #adopt({ members, backend }: Subgroup, name: string): ProcessGroup {
    if (this.#closing !== undefined) {
      throw new ClosedError(`group ${this.#name} was closed on rank ${this.rank} while ${name} was being made.`);
    }
    const { worldSize, worldEvents } = this.#place;
    const ranks = members.map((member) => this.ranks[member] as number);
    const place: GroupPlace = { name, ranks, worldSize, worldEvents };
    const subgroup: ProcessGroup = new ProcessGroup(backend, { logger: this.#logger }, place, () =>
      this.#subgroups.delete(subgroup),
    );
    this.#subgroups.add(subgroup);
    return subgroup;
  }

  async #closeAll(): Promise<void> {
    await Promise.all([...this.#subgroups].map((subgroup) => subgroup.close()));
    await this.#channel?.close();
    this.#onClosed?.();
  }
}

function checkBackend(backend: Backend | undefined): Backend {
  if (typeof backend?.allReduce === 'function') return backend;
  throw new InvalidArgumentError(
    `new ProcessGroup: expected a backend, got ${backend === null ? 'null' : typeof backend}. Pass one of MockBackend.createWorld(n), or use world.group.`,
  );
}
