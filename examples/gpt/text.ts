/** A text as numbers: a vocabulary of its characters, and windows that a model learns from. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { Tensor, type Dataset } from 'lockstep';

/** Newton's Opticks; see data/README.md. */
export const DEFAULT_TEXT = join(__dirname, '..', '..', 'data', 'opticks.txt.gz');

/** The last share of a text, which is not trained on. */
const VALIDATION_SHARE = 0.1;

/** Inputs [tokens], and the character that follows each of them [tokens]; int32. */
export type Window = [inputs: Tensor, targets: Tensor];

export interface Text {
  /** Every character that occurs, in the order of their code points. */
  readonly vocabulary: readonly string[];
  readonly train: Int32Array;
  readonly validation: Int32Array;
}

/** Read a UTF-8 text, gzipped or not. */
export function loadText(path: string): Text {
  const bytes = readFileSync(path);
  const characters = [...(path.endsWith('.gz') ? gunzipSync(bytes) : bytes).toString('utf8')];
  const vocabulary = [...new Set(characters)].sort();
  const ids = encode(characters, vocabulary);
  const split = Math.floor(ids.length * (1 - VALIDATION_SHARE));
  return { vocabulary, train: ids.subarray(0, split), validation: ids.subarray(split) };
}

/** The numbers of `characters`. @throws Error for one that is not in the vocabulary */
export function encode(characters: Iterable<string>, vocabulary: readonly string[]): Int32Array {
  const idOf = new Map(vocabulary.map((character, id) => [character, id]));
  return Int32Array.from([...characters], (character) => {
    const id = idOf.get(character);
    if (id === undefined) throw new Error(`the text that the model learned from has no ${JSON.stringify(character)}.`);
    return id;
  });
}

/** Windows side by side; the last character of one is the first of the next. */
export class TextWindows implements Dataset<Window> {
  readonly length: number;
  readonly #ids: Int32Array;
  readonly #context: number;

  constructor(ids: Int32Array, context: number) {
    this.#ids = ids;
    this.#context = context;
    this.length = Math.floor((ids.length - 1) / context);
    if (this.length < 1) throw new Error(`the text has ${ids.length} characters, too few for a context of ${context}.`);
  }

  get(index: number): Window {
    const start = index * this.#context;
    return [
      Tensor.from(this.#ids.slice(start, start + this.#context)),
      Tensor.from(this.#ids.slice(start + 1, start + 1 + this.#context)),
    ];
  }
}
