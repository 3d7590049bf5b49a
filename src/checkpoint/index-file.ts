/**
 * The index of a checkpoint, `index.json`: which tensors there are, and in which file each piece of them is.
 *
 * [Note: what is checksummed] The marker holds the checksum of the index. The index holds those of the header of every
 * file, and of every chunk of every piece. So there is no byte in a checkpoint that could change unnoticed, and a reader
 * that needs a few elements reads a few chunks.
 */
import { z } from 'zod';
import { byteSize, DTYPES } from '../core/dtype';
import { sizeOf } from '../tensor/shape';
import type { JsonValue, TensorForm } from '../strategy/state-parts';

export const FORMAT = 'lockstep-checkpoint';

/** Changes when an older reader would misread a checkpoint. */
export const VERSION = 1;

/** Bytes under one checksum: small enough to read one for a few elements, large enough for a short index. */
export const CHUNK_BYTES = 2 ** 20;

/** A run of elements of a tensor, somewhere in a file. */
export interface PieceEntry {
  /** Index into `files`. */
  readonly file: number;
  /** First byte in that file. */
  readonly offset: number;
  /** First element, counted in row-major order in the whole tensor. */
  readonly start: number;
  /** Elements. */
  readonly length: number;
  /** Of each CHUNK_BYTES of it; the last chunk may be shorter. */
  readonly checksums: readonly string[];
}

export interface TensorEntry extends TensorForm {
  /** Ascending; together they are the whole tensor. */
  readonly pieces: readonly PieceEntry[];
}

export interface FileEntry {
  readonly name: string;
  readonly bytes: number;
  /** Bytes before the data, and their checksum. */
  readonly headerBytes: number;
  readonly headerChecksum: string;
}

export interface Values {
  readonly [key: string]: JsonValue;
}

export interface CheckpointIndex {
  readonly format: typeof FORMAT;
  readonly version: typeof VERSION;
  readonly step: number;
  /** One a rank, by rank. */
  readonly files: readonly FileEntry[];
  /** `model/...` and `optimizer/...`. */
  readonly tensors: { readonly [name: string]: TensorEntry };
  /** The same for all ranks: of the model, the optimizer, the scheduler, the scaler. */
  readonly values: Values;
  /** Each rank's own, by rank: random states, the place in the data. */
  readonly ranks: readonly Values[];
}

const whole = z.int().min(0);
const crc = z.string().regex(/^[0-9a-f]{8}$/);
const values = z.record(
  z.string(),
  z.custom<JsonValue>(() => true),
);

const schema = z.strictObject({
  format: z.literal(FORMAT),
  version: z.literal(VERSION),
  step: whole,
  files: z.array(z.strictObject({ name: z.string(), bytes: whole, headerBytes: whole, headerChecksum: crc })),
  tensors: z.record(
    z.string(),
    z.strictObject({
      shape: z.array(whole),
      dtype: z.enum(DTYPES),
      pieces: z.array(
        z.strictObject({ file: whole, offset: whole, start: whole, length: whole, checksums: z.array(crc) }),
      ),
    }),
  ),
  values,
  ranks: z.array(values),
});

export function encodeIndex(index: CheckpointIndex): Uint8Array {
  return Buffer.from(`${JSON.stringify(index, encodeNumber)}\n`);
}

/** @throws Error that says what is wrong with it */
export function decodeIndex(bytes: Uint8Array): CheckpointIndex {
  const value = JSON.parse(Buffer.from(bytes).toString(), decodeNumber) as unknown;
  const { format, version } = (value ?? {}) as { readonly format?: unknown; readonly version?: unknown };
  if (format !== FORMAT) throw new Error(`it is not an index of ${FORMAT}`);
  if (version !== VERSION) {
    throw new Error(
      `it was written in version ${String(version)} of the format, and this release reads version ${VERSION}`,
    );
  }
  const index = schema.safeParse(value);
  if (!index.success) throw new Error(z.prettifyError(index.error));
  const problem = problemOf(index.data);
  if (problem !== undefined) throw new Error(problem);
  return index.data;
}

/** Why pieces and files do not make up the tensors; undefined if they do. */
export function problemOf({ files, tensors, ranks }: CheckpointIndex): string | undefined {
  if (ranks.length !== files.length) return `it has values of ${ranks.length} ranks, but ${files.length} files`;
  for (const [name, { dtype, shape, pieces }] of Object.entries(tensors)) {
    let end = 0;
    for (const { file, offset, start, length, checksums } of pieces) {
      const bytes = length * byteSize(dtype);
      const { headerBytes = 0, bytes: fileBytes = -1 } = files[file] ?? {};
      if (start !== end)
        return `elements ${Math.min(start, end)} to ${Math.max(start, end)} of '${name}' are there ${start > end ? 'not at all' : 'twice'}`;
      if (offset < headerBytes || offset + bytes > fileBytes) return `a piece of '${name}' lies outside its file`;
      if (checksums.length !== Math.ceil(bytes / CHUNK_BYTES)) return `a piece of '${name}' has too few checksums`;
      end += length;
    }
    if (end !== sizeOf(shape)) return `'${name}' has ${sizeOf(shape)} elements, but its pieces have ${end}`;
  }
  return undefined;
}

/** [Note: numbers in the index] JSON has no NaN, infinities and negative zero: they are objects with one field. */
const NUMBER_KEY = '$number';

function encodeNumber(_key: string, value: unknown): unknown {
  const isExact = typeof value !== 'number' || (Number.isFinite(value) && !Object.is(value, -0));
  return isExact ? value : { [NUMBER_KEY]: Object.is(value, -0) ? '-0' : String(value) };
}

function decodeNumber(_key: string, value: unknown): unknown {
  const text = (value as { readonly [NUMBER_KEY]?: unknown } | null)?.[NUMBER_KEY];
  return typeof text === 'string' ? Number(text) : value;
}
