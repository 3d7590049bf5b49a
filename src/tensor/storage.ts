/**
 * The memory of tensors, and its account.
 *
 * [Note: accounting of storage] An Allocation is one piece of memory. It is counted once, in the account of the
 * context that made it, from the first holder to the last; holders are tensors, and graph nodes that saved the memory for
 * their backward. Views (reshape, detach, slices of a bucket) share the allocation. dispose, tidy and the end of a graph
 * node drop holders at once; the garbage collector is the net for tensors that nobody disposed of.
 */
import { allocateBuffer, copyBuffer, dtypeOf, viewBuffer, type DType, type HostBuffer } from '../core/dtype';
import { memoryAccountKey, memoryCategoryKey, type MemoryAccount, type MemoryCategory } from '../core/memory-account';

/** What is entered in the account; apart from the Allocation, so that the collector can take that and leave this. */
interface Entry {
  readonly account: MemoryAccount;
  readonly bytes: number;
  category: MemoryCategory;
  isCounted: boolean;
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
    if (this.#holders++ > 0) return;
    const entry = this.#entry;
    entry.isCounted = true;
    entry.account.add(entry.category, entry.bytes);
  }

  release(): void {
    if (--this.#holders === 0) withdraw(this.#entry);
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

/** Elements of one dtype in memory: a whole allocation, or a view of a part of one. */
export class Storage {
  readonly device = 'cpu';
  readonly dtype: DType;
  readonly buffer: HostBuffer;
  readonly allocation: Allocation;

  private constructor(buffer: HostBuffer, allocation: Allocation) {
    this.dtype = dtypeOf(buffer);
    this.buffer = buffer;
    this.allocation = allocation;
  }

  /** Zero-filled memory. Counted, once a tensor holds it, under the context's category or else `fallbackCategory`. */
  static allocate(dtype: DType, length: number, fallbackCategory: MemoryCategory = 'activations'): Storage {
    return Storage.of(allocateBuffer(dtype, length), fallbackCategory);
  }

  /** The memory of `buffer`, not copied. */
  static of(buffer: HostBuffer, fallbackCategory: MemoryCategory = 'activations'): Storage {
    return new Storage(buffer, new Allocation(buffer.byteLength, fallbackCategory));
  }

  get length(): number {
    return this.buffer.length;
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
    return new Storage(viewBuffer(this.buffer, start, length), this.allocation);
  }
}

/** Run `fn` with the tensors made inside counted under `category`; sync and async functions. */
export function withMemoryCategory<R>(category: MemoryCategory, fn: () => R): R {
  return memoryCategoryKey.run(category, fn);
}
