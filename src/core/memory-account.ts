/** Bytes of tensors, by what they are for. One account per rank in a mock world, one for the process otherwise. */
import { ContextKey } from './context';

export const MEMORY_CATEGORIES = [
  'parameters',
  'gradients',
  'optimizer',
  'activations',
  'communication',
  'other',
] as const;
export type MemoryCategory = (typeof MEMORY_CATEGORIES)[number];

export interface MemoryStats {
  /** Bytes held now. */
  readonly live: Readonly<Record<MemoryCategory, number>>;
  /** The most bytes held at once since the start or the last `resetPeak`, each category for itself. */
  readonly peak: Readonly<Record<MemoryCategory, number>>;
}

function zeros(): Record<MemoryCategory, number> {
  return { parameters: 0, gradients: 0, optimizer: 0, activations: 0, communication: 0, other: 0 };
}

export class MemoryAccount {
  #live = zeros();
  #peak = zeros();
  #liveTotal = 0;
  #peakTotal = 0;

  /** Count `bytes` more (or, negative, fewer) in `category`. */
  add(category: MemoryCategory, bytes: number): void {
    const live = (this.#live[category] += bytes);
    if (live > this.#peak[category]) this.#peak[category] = live;
    this.#liveTotal += bytes;
    if (this.#liveTotal > this.#peakTotal) this.#peakTotal = this.#liveTotal;
  }

  /** Count `bytes` that were in `from` in `to` instead. */
  move(from: MemoryCategory, to: MemoryCategory, bytes: number): void {
    this.#live[from] -= bytes;
    const live = (this.#live[to] += bytes);
    if (live > this.#peak[to]) this.#peak[to] = live;
  }

  stats(): MemoryStats {
    return { live: { ...this.#live }, peak: { ...this.#peak } };
  }

  /** Bytes of all categories together: now, and the most at once. */
  totals(): { readonly live: number; readonly peak: number } {
    return { live: this.#liveTotal, peak: this.#peakTotal };
  }

  resetPeak(): void {
    this.#peak = { ...this.#live };
    this.#peakTotal = this.#liveTotal;
  }
}

/** The account that tensors made in this asynchronous context are counted in. */
export const memoryAccountKey = new ContextKey<MemoryAccount>(new MemoryAccount());

/** What tensors made in this context are for; undefined: the maker decides. */
export const memoryCategoryKey = new ContextKey<MemoryCategory | undefined>(undefined);

/** The memory account of this asynchronous context (of this rank, in a mock world). */
export const memory = {
  /** Bytes now and at most, by category. */
  stats: (): MemoryStats => memoryAccountKey.get().stats(),
  /** Bytes of all categories together: now, and the most at once. */
  totals: (): { readonly live: number; readonly peak: number } => memoryAccountKey.get().totals(),
  /** Start counting peaks anew from what is live now. */
  resetPeak: (): void => memoryAccountKey.get().resetPeak(),
} as const;
