/**
 * The header of a safetensors file: 8 bytes with its length, little-endian, then JSON that says of each tensor its dtype,
 * shape and place in the data that follow. Format: https://huggingface.co/docs/safetensors (read strictly).
 */
import { byteSize, type DType } from '../core/dtype';
import { InvalidArgumentError, UnsupportedError } from '../core/errors';
import { sizeOf, type Shape } from '../tensor/shape';
import { duplicateKey } from './duplicate-keys';

/** Bytes of the number at the front of a file. */
export const PREFIX_BYTES = 8;

/** The format allows no longer header. */
export const MAX_HEADER_BYTES = 100_000_000;

const ALIGNMENT = 8;
const METADATA_KEY = '__metadata__';

/** Text by key, which other tools pass along. */
export type SafetensorsMetadata = Readonly<Record<string, string>>;

/** A tensor in a file. */
export interface SafetensorsEntry {
  readonly dtype: DType;
  readonly shape: Shape;
  /** First byte, counted from the start of the file. */
  readonly offset: number;
  readonly byteLength: number;
}

export interface SafetensorsHeader {
  /** In the order of their data. */
  readonly entries: ReadonlyMap<string, SafetensorsEntry>;
  /** Undefined if the file has none. */
  readonly metadata: SafetensorsMetadata | undefined;
  /** Bytes of the whole file. */
  readonly fileBytes: number;
}

/** In the order in which the format's own writer lays tensors out: wide ones first, so that all are aligned. */
const NAMES = {
  int64: 'I64',
  float64: 'F64',
  float32: 'F32',
  int32: 'I32',
  bfloat16: 'BF16',
  float16: 'F16',
  int8: 'I8',
  uint8: 'U8',
} as const satisfies Record<DType, string>;

const DTYPE_OF_NAME = new Map<string, DType>([
  ...Object.entries(NAMES).map(([dtype, name]) => [name, dtype as DType] as const),
  ['BOOL', 'uint8'],
]);

/** Of the format, but without a dtype here. */
const OTHER_NAMES = ['I16', 'U16', 'U32', 'U64', 'C64', 'F8_E4M3', 'F8_E5M2', 'F8_E8M0', 'F4', 'F6_E2M3', 'F6_E3M2'];

const ORDER = Object.keys(NAMES);

/** What a file with these tensors looks like: its first bytes, and the tensors in the order of their data. */
export function planHeader<T extends { readonly dtype: DType; readonly shape: Shape }>(
  tensors: Iterable<readonly [name: string, tensor: T]>,
  metadata: SafetensorsMetadata | undefined,
  what: string,
): { readonly bytes: Uint8Array; readonly order: readonly { name: string; tensor: T; offset: number }[] } {
  const sorted = [...tensors].sort(
    ([nameA, a], [nameB, b]) =>
      ORDER.indexOf(a.dtype) - ORDER.indexOf(b.dtype) || Buffer.compare(Buffer.from(nameA), Buffer.from(nameB)),
  );
  const fields: [string, unknown][] = metadata === undefined ? [] : [[METADATA_KEY, metadata]];
  let end = 0;
  const starts = sorted.map(([name, { dtype, shape }]) => {
    if (name === METADATA_KEY) {
      throw new InvalidArgumentError(
        `${what}: a tensor cannot have the name '${METADATA_KEY}', which the format uses.`,
      );
    }
    const start = end;
    end += sizeOf(shape) * byteSize(dtype);
    fields.push([name, { dtype: NAMES[dtype], shape, data_offsets: [start, end] }]);
    return start;
  });
  const json = Buffer.from(
    `{${fields.map(([key, value]) => `${JSON.stringify(key)}:${JSON.stringify(value)}`).join(',')}}`,
  );
  const padded = Math.ceil(json.length / ALIGNMENT) * ALIGNMENT;
  if (padded > MAX_HEADER_BYTES) {
    throw new UnsupportedError(
      `${what}: the header would have ${padded} bytes; the format allows ${MAX_HEADER_BYTES}.`,
    );
  }
  const bytes = Buffer.alloc(PREFIX_BYTES + padded, ' ');
  bytes.writeBigUInt64LE(BigInt(padded));
  bytes.set(json, PREFIX_BYTES);
  const order = sorted.map(([name, tensor], i) => ({ name, tensor, offset: bytes.length + (starts[i] as number) }));
  return { bytes, order };
}

/**
 * The length of the header, from the first bytes of a file.
 * @param file opens messages, as `readSafetensors: weights.safetensors`
 */
export function headerLength(prefix: Uint8Array, fileBytes: number, file: string): number {
  if (fileBytes < PREFIX_BYTES) throw malformed(file, `expected at least ${PREFIX_BYTES} bytes, got ${fileBytes}`);
  const length = Buffer.from(prefix).readBigUInt64LE();
  if (length > BigInt(MAX_HEADER_BYTES)) {
    throw malformed(file, `the header would have ${length} bytes, and the format allows ${MAX_HEADER_BYTES}`);
  }
  if (length > BigInt(fileBytes - PREFIX_BYTES)) {
    throw malformed(file, `the header would have ${length} bytes, but only ${fileBytes - PREFIX_BYTES} follow`);
  }
  return Number(length);
}

/**
 * The header, checked against the size of its file: so nobody allocates more than the file holds.
 * @param json the bytes of the header without the length before it
 * @throws InvalidArgumentError that says what is wrong
 * @throws UnsupportedError for a dtype of the format that Lockstep has not
 */
export function parseHeader(json: Uint8Array, fileBytes: number, file: string): SafetensorsHeader {
  const { [METADATA_KEY]: metadata, ...tensors } = parseObject(json, file);
  const dataStart = PREFIX_BYTES + json.byteLength;
  const entries = Object.entries(tensors)
    .map(([name, value]) => [name, parseEntry(value, dataStart, `${file}: tensor '${name}'`)] as const)
    .sort(([, a], [, b]) => a.offset - b.offset || a.byteLength - b.byteLength);
  let end = dataStart;
  for (const [name, { offset, byteLength }] of entries) {
    if (offset !== end) {
      const problem = offset > end ? 'bytes that belong to no tensor lie' : 'another tensor overlaps';
      throw malformed(
        file,
        `${problem} before tensor '${name}', which starts at byte ${offset - dataStart} of the data`,
      );
    }
    end = offset + byteLength;
  }
  if (end !== fileBytes) throw malformed(file, `the header describes ${end} bytes, but the file has ${fileBytes}`);
  return { entries: new Map(entries), metadata: parseMetadata(metadata, file), fileBytes };
}

function parseObject(json: Uint8Array, file: string): Record<string, unknown> {
  const text = decodeText(json, file);
  if (!text.startsWith('{')) throw malformed(file, "the header does not begin with '{'");
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw malformed(file, `the header is not valid JSON (${(error as Error).message})`);
  }
  const key = duplicateKey(text);
  if (key !== undefined) throw malformed(file, `the header has the key '${key}' twice`);
  return value as Record<string, unknown>; // it begins with a brace
}

function decodeText(json: Uint8Array, file: string): string {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(json);
  } catch {
    throw malformed(file, 'the header is not valid UTF-8');
  }
}

function parseEntry(value: unknown, dataStart: number, where: string): SafetensorsEntry {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new InvalidArgumentError(`${where}: expected an object with dtype, shape and data_offsets.`);
  }
  const { dtype: dtypeName, shape, data_offsets: offsets, ...others } = value as Record<string, unknown>;
  const [other] = Object.keys(others);
  if (other !== undefined) throw new InvalidArgumentError(`${where}: has the unknown field '${other}'.`);
  const dtype = parseDType(dtypeName, where);
  if (!isWholeList(shape)) throw new InvalidArgumentError(`${where}: shape is not a list of whole numbers.`);
  if (!isWholeList(offsets) || offsets.length !== 2) {
    throw new InvalidArgumentError(`${where}: data_offsets is not a list of two whole numbers.`);
  }
  const [begin, end] = offsets as [number, number];
  const wanted = bytesFor(shape, dtype);
  if (end - begin !== wanted) {
    throw new InvalidArgumentError(
      `${where}: data_offsets [${begin}, ${end}] leave ${end - begin} bytes, but ${String(dtypeName)} of shape ` +
        `[${shape.join(', ')}] takes ${wanted}.`,
    );
  }
  return { dtype, shape: Object.freeze(shape), offset: dataStart + begin, byteLength: wanted };
}

function parseDType(name: unknown, where: string): DType {
  const dtype = DTYPE_OF_NAME.get(name as string);
  if (dtype !== undefined) return dtype;
  const known = [...DTYPE_OF_NAME.keys()].join(', ');
  if (OTHER_NAMES.includes(name as string)) {
    throw new UnsupportedError(`${where}: Lockstep has no dtype for ${String(name)}; it reads ${known}.`);
  }
  const got = typeof name === 'string' ? `'${name}'` : typeof name;
  throw new InvalidArgumentError(`${where}: expected a dtype, one of ${known}, got ${got}.`);
}

/** Not a number beyond 2^53 where the product overflows: no file is that long. */
function bytesFor(shape: Shape, dtype: DType): number {
  return shape.includes(0) ? 0 : sizeOf(shape) * byteSize(dtype);
}

function isWholeList(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((item) => Number.isSafeInteger(item) && item >= 0);
}

function parseMetadata(value: unknown, file: string): SafetensorsMetadata | undefined {
  if (value === undefined) return undefined;
  const isObject = typeof value === 'object' && value !== null && !Array.isArray(value);
  if (isObject && Object.values(value).every((text) => typeof text === 'string')) return value as SafetensorsMetadata;
  throw malformed(file, `${METADATA_KEY} is not an object of text by key`);
}

function malformed(file: string, problem: string): InvalidArgumentError {
  return new InvalidArgumentError(`${file} is not a valid safetensors file: ${problem}.`);
}
