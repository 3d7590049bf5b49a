/**
 * The memory of tensors, and its account.
 *
 * [Note: accounting of storage] An Allocation is one piece of memory. It is counted once, in the account of the
 * context that made it, from the first holder to the last; holders are tensors, and graph nodes that saved the memory for
 * their backward. Views (reshape, detach, slices of a bucket) share the allocation. dispose, tidy and the end of a graph
 * node drop holders at once; the garbage collector is the net for tensors that nobody disposed of.
 *
 * [Note: vacant storage] A Storage keeps its identity while its memory comes and goes (ZeRO-3 releases parameters between
 * uses). A graph node that saved it reads, in backward, the memory that is there by then. Whoever takes memory away
 * keeps the account in step: views share one allocation, so `suspend` is called once for all of them.
 */
import { allocateBuffer, byteSize, copyBuffer, dtypeOf, viewBuffer, type DType, type HostBuffer } from '../core/dtype';
import { invariant } from '../core/invariant';
import { memoryAccountKey, memoryCategoryKey, type MemoryAccount, type MemoryCategory } from '../core/memory-account';

/** What is entered in the account; apart from the Allocation, so that the collector can take that and leave this. */
interface Entry {
  readonly account: MemoryAccount;
  readonly bytes: number;
  category: MemoryCategory;
  isCounted: boolean;
}

function enter(entry: Entry): void {
  if (entry.isCounted) return;
  entry.isCounted = true;
  entry.account.add(entry.category, entry.bytes);
}

function withdraw(entry: Entry): void {
  if (!entry.isCounted) return;
  entry.isCounted = false;
  entry.account.add(entry.category, -entry.bytes);
}

const collected = new FinalizationRegistry<Entry>(withdraw);

/** One counted piece of memory, see [Note: accounting of storage]. */
export class Allocation {
  readonly #entry: Entry;
  #holders = 0;
  #version = 0;
  #isSuspended = false;

  constructor(bytes: number, fallbackCategory: MemoryCategory) {
    const category = memoryCategoryKey.get() ?? fallbackCategory;
    this.#entry = { account: memoryAccountKey.get(), bytes, category, isCounted: false };
    if (bytes > 0) collected.register(this, this.#entry);
  }

  get holders(): number {
    return this.#holders;
  }

  get category(): MemoryCategory {
    return this.#entry.category;
  }

  /** Grows with every change in place that was reported. */
  get version(): number {
    return this.#version;
  }

  /** Note that elements were changed in place: a backward that saved them before is refused. */
  markChanged(): void {
    this.#version++;
  }

  hold(): void {
    if (this.#holders++ === 0 && !this.#isSuspended) enter(this.#entry);
  }

  release(): void {
    if (--this.#holders === 0) withdraw(this.#entry);
  }

  /** Take the bytes out of the account, whatever holders there are: the memory is gone until `resume`. Idempotent. */
  suspend(): void {
    this.#isSuspended = true;
    withdraw(this.#entry);
  }

  /** Count the bytes again, if there is a holder. Idempotent. */
  resume(): void {
    this.#isSuspended = false;
    if (this.#holders > 0) enter(this.#entry);
  }

  /** Count the bytes under `category` from now on. */
  moveTo(category: MemoryCategory): void {
    const entry = this.#entry;
    if (entry.category === category) return;
    if (entry.isCounted) entry.account.move(entry.category, category, entry.bytes);
    entry.category = category;
  }
}

/** One holder's claim on an allocation; releasing twice is as good as once. */
export class Lease {
  readonly allocation: Allocation;
  #isHeld = true;

  constructor(allocation: Allocation) {
    this.allocation = allocation;
    allocation.hold();
  }

  get isHeld(): boolean {
    return this.#isHeld;
  }

  hold(): void {
    if (this.#isHeld) return;
    this.#isHeld = true;
    this.allocation.hold();
  }

  release(): void {
    if (!this.#isHeld) return;
    this.#isHeld = false;
    this.allocation.release();
  }
}

/** Elements of one dtype in memory: a whole allocation, or a view of a part of one. See [Note: vacant storage]. */
export class Storage {
  readonly device = 'cpu';
  readonly dtype: DType;
  readonly length: number;
  readonly allocation: Allocation;
  #buffer: HostBuffer | undefined;
  /** Why there is no memory; set while there is none. */
  #explain: (() => Error) | undefined;

  private constructor(dtype: DType, length: number, allocation: Allocation) {
    this.dtype = dtype;
    this.length = length;
    this.allocation = allocation;
  }

  /** Zero-filled memory. Counted, once a tensor holds it, under the context's category or else `fallbackCategory`. */
  static allocate(dtype: DType, length: number, fallbackCategory: MemoryCategory = 'activations'): Storage {
    return Storage.of(allocateBuffer(dtype, length), fallbackCategory);
  }

  /** The memory of `buffer`, not copied. */
  static of(buffer: HostBuffer, fallbackCategory: MemoryCategory = 'activations'): Storage {
    return Storage.#over(buffer, new Allocation(buffer.byteLength, fallbackCategory));
  }

  /** Storage whose memory is still to come: vacant, and out of the account until its allocation is resumed. */
  static vacant(dtype: DType, length: number, explain: () => Error, fallbackCategory?: MemoryCategory): Storage {
    const allocation = new Allocation(length * byteSize(dtype), fallbackCategory ?? 'activations');
    allocation.suspend();
    const storage = new Storage(dtype, length, allocation);
    storage.#explain = explain;
    return storage;
  }

  static #over(buffer: HostBuffer, allocation: Allocation): Storage {
    const storage = new Storage(dtypeOf(buffer), buffer.length, allocation);
    storage.#buffer = buffer;
    return storage;
  }

  /**
   * The memory. Read it anew at each use: it may be another one by then.
   * @throws what `vacate` was given, while there is none
   */
  get buffer(): HostBuffer {
    if (this.#buffer !== undefined) return this.#buffer;
    throw (this.#explain as () => Error)();
  }

  get isVacant(): boolean {
    return this.#buffer === undefined;
  }

  /** Let go of the memory: `buffer` throws what `explain` gives, until `occupy`. The account is the caller's to adjust. */
  vacate(explain: () => Error): void {
    this.#buffer = undefined;
    this.#explain = explain;
  }

  /** Take `buffer` as the memory, in place of what there was. It has the same dtype and length. */
  occupy(buffer: HostBuffer): void {
    invariant(
      buffer.length === this.length && dtypeOf(buffer) === this.dtype,
      `memory of ${buffer.length} elements given to a ${this.dtype} storage of ${this.length}`,
    );
    this.#buffer = buffer;
    this.#explain = undefined;
  }

  /** A copy in memory of its own. */
  clone(fallbackCategory: MemoryCategory = 'activations'): Storage {
    const copy = Storage.allocate(this.dtype, this.length, fallbackCategory);
    copyBuffer(copy.buffer, this.buffer);
    return copy;
  }

  /**
   * Note that elements were changed in place. Whoever writes to the memory of a tensor that may be part of a graph (an
   * optimizer, a collective) calls it, so that a backward that saved the old elements is refused.
   */
  markChanged(): void {
    this.allocation.markChanged();
  }

  /** `length` elements from element `start`: the same memory, counted with it. */
  view(start: number, length: number): Storage {
    return Storage.#over(viewBuffer(this.buffer, start, length), this.allocation);
  }
}

/** Run `fn` with the tensors made inside counted under `category`; sync and async functions. */
export function withMemoryCategory<R>(category: MemoryCategory, fn: () => R): R {
  return memoryCategoryKey.run(category, fn);
}
