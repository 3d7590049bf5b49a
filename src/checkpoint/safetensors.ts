/** Plain `.safetensors` files, which many other tools read and write: weights without a training state around them. */
import { open, type FileHandle } from 'node:fs/promises';
import { z } from 'zod';
import { allocateBuffer, bytesOf, byteSize, type HostBuffer } from '../core/dtype';
import { asError, CheckpointError, InvalidArgumentError, isLockstepError } from '../core/errors';
import { parseOptions } from '../core/options';
import { Tensor } from '../tensor/tensor';
import { readInto, replaceFile, requireLittleEndian, writeBuffers } from './durable-file';
import {
  headerLength,
  parseHeader,
  planHeader,
  PREFIX_BYTES,
  type SafetensorsEntry,
  type SafetensorsHeader,
  type SafetensorsMetadata,
} from './safetensors-header';

export interface ReadSafetensorsOptions {
  /** Read only these tensors; default all. The rest of the file is not touched. */
  readonly names?: readonly string[] | undefined;
}

export interface SafetensorsContent {
  /** By name, in the order of the file. */
  readonly tensors: Map<string, Tensor>;
  /** The text that the writer added; undefined if there is none. */
  readonly metadata: SafetensorsMetadata | undefined;
}

const readSchema = z.strictObject({ names: z.array(z.string()).optional() });
const metadataSchema = z.record(z.string(), z.string()).optional();

/**
 * Read a safetensors file. BOOL tensors come as uint8, the other dtypes as themselves.
 *
 * Each tensor has memory of its own. The header is checked against the size of the file before anything is allocated.
 * @throws InvalidArgumentError for a file that is not valid, saying what is wrong, or a name that it does not have
 * @throws UnsupportedError for a tensor of a dtype that Lockstep has not, naming both
 * @throws CheckpointError if the system does not let it read the file: there is none, say
 */
export async function readSafetensors(path: string, options?: ReadSafetensorsOptions): Promise<SafetensorsContent> {
  const { names } = parseOptions(readSchema, options, 'readSafetensors');
  requireLittleEndian('readSafetensors');
  const what = `readSafetensors: ${path}`;
  return namingFile(what, async () => {
    const file = await open(path, 'r');
    try {
      const { entries, metadata } = await readHeader(file, what);
      const tensors = new Map<string, Tensor>();
      for (const name of names ?? entries.keys()) {
        tensors.set(name, await readTensor(file, entryOf(name, entries, what), `${what}: tensor '${name}'`));
      }
      return { tensors, metadata };
    } finally {
      await file.close();
    }
  });
}

/**
 * Write tensors as a safetensors file, laid out as the format's own writer does: widest dtype first, then by name.
 *
 * The elements go from the tensors' memory to the file, so leave them alone until the promise settles. The file
 * takes the place of an old one when it is complete and durable; if that fails, the old one is still there.
 * @param metadata text for other tools, such as { format: 'pt' }
 * @throws InvalidArgumentError for a tensor or metadata that the format does not hold; nothing was written
 * @throws CheckpointError if the system does not let it write the file: its folder is not there, say
 */
export async function writeSafetensors(
  path: string,
  tensors: ReadonlyMap<string, Tensor> | Readonly<Record<string, Tensor>>,
  metadata?: SafetensorsMetadata,
): Promise<void> {
  const what = `writeSafetensors: ${path}`;
  requireLittleEndian(what);
  const text = metadataSchema.safeParse(metadata);
  if (!text.success) throw new InvalidArgumentError(`${what}: expected metadata that is an object of text by key.`);
  const named = entriesOf(tensors, what);
  const { bytes, order } = planHeader(named, text.data, what);
  const buffers = order.map(({ tensor }) => bytesOf(tensor.storage.buffer));
  await namingFile(what, () => replaceFile(path, (file) => writeBuffers(file, [bytes, ...buffers])));
}

/** @throws CheckpointError in place of an error of the system */
async function namingFile<T>(what: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (isLockstepError(error)) throw error;
    throw new CheckpointError(`${what}: ${asError(error).message}.`, { cause: error });
  }
}

async function readHeader(file: FileHandle, what: string): Promise<SafetensorsHeader> {
  const { size } = await file.stat();
  const prefix = new Uint8Array(PREFIX_BYTES);
  if (size >= PREFIX_BYTES) await readAll(file, prefix, 0, what);
  const json = new Uint8Array(headerLength(prefix, size, what));
  await readAll(file, json, PREFIX_BYTES, what);
  return parseHeader(json, size, what);
}

async function readTensor(file: FileHandle, entry: SafetensorsEntry, what: string): Promise<Tensor> {
  const buffer: HostBuffer = allocateBuffer(entry.dtype, entry.byteLength / byteSize(entry.dtype));
  await readAll(file, bytesOf(buffer), entry.offset, what);
  return Tensor.wrap(buffer, entry.shape);
}

async function readAll(file: FileHandle, target: Uint8Array, position: number, what: string): Promise<void> {
  if (await readInto(file, target, position)) return;
  throw new InvalidArgumentError(`${what}: the file became shorter while it was read.`);
}

function entryOf(name: string, entries: SafetensorsHeader['entries'], what: string): SafetensorsEntry {
  const entry = entries.get(name);
  if (entry !== undefined) return entry;
  throw new InvalidArgumentError(`${what}: has no tensor '${name}'. It has: ${[...entries.keys()].join(', ')}.`);
}

function entriesOf(tensors: unknown, what: string): readonly (readonly [string, Tensor])[] {
  const isMap = Object.prototype.toString.call(tensors) === '[object Map]';
  const isObject = typeof tensors === 'object' && tensors !== null && !(tensors instanceof Tensor);
  const named = isMap
    ? [...(tensors as ReadonlyMap<string, unknown>)]
    : isObject
      ? Object.entries(tensors)
      : [['tensors', tensors] as const];
  for (const [name, tensor] of named) {
    if (typeof name === 'string' && tensor instanceof Tensor) continue;
    throw new InvalidArgumentError(
      `${what}: expected a Map or an object of tensors by name, got ${typeof tensor} at '${name}'.`,
    );
  }
  return named as (readonly [string, Tensor])[];
}
