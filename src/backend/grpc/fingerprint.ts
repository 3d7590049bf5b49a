/** What a call is, in 64 bits, so that every frame can carry it: [Note: frames]. */
import { DTYPES, type DType } from '../../core/dtype';
import { ReduceOp } from '../../core/reduce-op';
import { COLLECTIVE_OPS, type CollectiveCall } from '../call';

const REDUCE_OPS = Object.values(ReduceOp);

/** A 64-bit number as two words. */
export interface Words {
  readonly high: number;
  readonly low: number;
}

/** FNV-1a (Fowler, Noll and Vo) over whole numbers, in two lanes of 32 bits that start apart. */
class Hash {
  #high = 0x811c9dc5;
  #low = 0x01000193;

  add(value: number): this {
    this.#addWord(value >>> 0);
    this.#addWord(Math.floor(value / 2 ** 32));
    return this;
  }

  addList(values: readonly number[]): this {
    this.add(values.length);
    for (const value of values) this.add(value);
    return this;
  }

  #addWord(word: number): void {
    for (let shift = 0; shift < 32; shift += 8) {
      const byte = (word >>> shift) & 0xff;
      this.#high = Math.imul(this.#high ^ byte, 0x01000193);
      this.#low = Math.imul(this.#low ^ byte, 0x85ebca6b) ^ (this.#low >>> 15);
    }
  }

  get words(): Words {
    return { high: this.#high >>> 0, low: this.#low >>> 0 };
  }
}

/** Equal for two calls exactly if they match (`isSameCollective`), but for collisions of the hash. */
export function fingerprintOf(call: CollectiveCall): Words {
  const { op, reduceOp, dtype, counts, shape, label, deterministic, root, ranks } = call;
  const hash = new Hash()
    .add(COLLECTIVE_OPS.indexOf(op))
    .add(reduceOp === undefined ? 0 : 1 + REDUCE_OPS.indexOf(reduceOp))
    .add(dtype === undefined ? 0 : 1 + DTYPES.indexOf(dtype))
    .add(root === undefined ? 0 : 1 + root)
    .add(deterministic === false ? 1 : 0);
  // A number before each says what follows, so that no two calls give the same numbers.
  if (counts === undefined) hash.add(0);
  else if (typeof counts === 'number') hash.add(1).add(counts);
  else hash.add(2).addList(counts);
  for (const list of [shape, ranks, label === undefined ? undefined : lettersOf(label)]) {
    if (list === undefined) hash.add(0);
    else hash.add(1).addList(list);
  }
  return hash.words;
}

function lettersOf(text: string): number[] {
  return Array.from(text, (letter) => letter.charCodeAt(0));
}

/** A group is named by 53 bits of a hash of its identity, so that a key for look-up is one exact number. */
export function groupWordsOf(identity: string): Words {
  const hash = new Hash().addList(lettersOf(identity));
  const { high, low } = hash.words;
  return { high: high >>> 11, low };
}

/** The group of a frame, for look-up. */
export function groupKey(high: number, low: number): number {
  return high * 2 ** 32 + low;
}

/** A message between two ranks says its dtype; its length is in every header. */
export function messageFingerprint(dtype: DType): number {
  return 1 + DTYPES.indexOf(dtype);
}

/** The dtype that a message's header says; undefined for one that we do not know. */
export function messageDType(fingerprint: number): DType | undefined {
  return DTYPES[fingerprint - 1];
}
