/** The tensors of a checkpoint, as those who hold a state ask for them. */
import { allocateBuffer, byteSize, bytesOf, isFloatDType, type DType, type HostBuffer } from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import type { StateReader, TensorForm } from '../strategy/state-parts';
import { convertBuffer } from '../tensor/operators/cast';
import { formatShape, sizeOf } from '../tensor/shape';
import { Storage } from '../tensor/storage';
import type { CheckpointFiles } from './checkpoint-files';
import type { TensorEntry, Values } from './index-file';

/** The name of the float32 copy that an optimizer keeps of a 16-bit parameter, among its buffers. */
const MASTER = 'master';

/**
 * Reads one holder's tensors.
 *
 * [Note: damage found while reading] A rank that finds a damaged chunk goes on with zeros and remembers the damage, as
 * holders on other ranks, whose chunks are good, may be waiting for it in a collective. When all ranks are through they tell
 * each other, and what was read is thrown away.
 */
export abstract class CheckpointReader implements StateReader {
  readonly values: Values;
  readonly names: readonly string[];
  readonly #files: CheckpointFiles;
  readonly #damage: Error[];
  readonly #prefix: string;

  /** @param damage where damage is remembered */
  protected constructor(files: CheckpointFiles, damage: Error[], holder: 'model' | 'optimizer') {
    this.#files = files;
    this.#damage = damage;
    this.#prefix = `${holder}/`;
    const { tensors, values } = files.index;
    this.values = (values[holder] ?? {}) as Values;
    this.names = Object.keys(tensors)
      .filter((name) => name.startsWith(this.#prefix))
      .map((name) => name.slice(this.#prefix.length));
  }

  formOf(name: string): TensorForm | undefined {
    const entry = this.entryOf(this.#sourceOf(name, undefined));
    return entry === undefined ? undefined : { shape: entry.shape, dtype: entry.dtype };
  }

  async read(name: string, start: number, length: number, dtype: DType): Promise<HostBuffer> {
    const source = this.#sourceOf(name, dtype);
    const entry = this.entryOf(source);
    if (entry === undefined) throw new InvalidArgumentError(`the checkpoint has no tensor '${this.#prefix}${name}'.`);
    if (start < 0 || length < 0 || start + length > sizeOf(entry.shape)) {
      throw new InvalidArgumentError(
        `the checkpoint has '${source}' of shape ${formatShape(entry.shape)}, so no elements ${start} to ${start + length}.`,
      );
    }
    if (dtype !== entry.dtype && !(isFloatDType(dtype) && isFloatDType(entry.dtype))) {
      throw new InvalidArgumentError(
        `the checkpoint has '${source}' as ${entry.dtype}, which does not become ${dtype}.`,
      );
    }
    const buffer = allocateBuffer(entry.dtype, length);
    await this.#fill(source, entry, start, buffer);
    return dtype === entry.dtype ? buffer : convertBuffer(Storage.of(buffer), dtype);
  }

  /** The full name of what is read for `name`, in `dtype`. */
  protected abstract sourceOf(name: string, dtype: DType | undefined): string | undefined;

  protected entryOf(fullName: string): TensorEntry | undefined {
    const { tensors } = this.#files.index;
    return Object.hasOwn(tensors, fullName) ? tensors[fullName] : undefined;
  }

  #sourceOf(name: string, dtype: DType | undefined): string {
    return this.sourceOf(name, dtype) ?? `${this.#prefix}${name}`;
  }

  async #fill(source: string, { dtype, pieces }: TensorEntry, start: number, buffer: HostBuffer): Promise<void> {
    const width = byteSize(dtype);
    const bytes = bytesOf(buffer);
    const end = start + buffer.length;
    for (const piece of pieces) {
      const from = Math.max(start, piece.start);
      const to = Math.min(end, piece.start + piece.length);
      if (from >= to) continue;
      const target = bytes.subarray((from - start) * width, (to - start) * width);
      try {
        await this.#files.read(source, piece, (from - piece.start) * width, target);
      } catch (error) {
        this.#damage.push(error as Error);
        target.fill(0);
      }
    }
  }
}

/**
 * A model's tensors. Where a wide value is wanted of a parameter that was saved in 16 bits, it comes from the optimizer's
 * float32 copy, if there is one: the 16 bits are only its rounding.
 */
export class ModelReader extends CheckpointReader {
  constructor(files: CheckpointFiles, damage: Error[]) {
    super(files, damage, 'model');
  }

  protected override sourceOf(name: string, dtype: DType | undefined): string | undefined {
    const saved = this.entryOf(`model/${name}`)?.dtype;
    if (!isWide(dtype) || saved === undefined || !isFloatDType(saved) || isWide(saved)) return undefined;
    const master = `optimizer/${name}/${MASTER}`;
    return this.entryOf(master) === undefined ? undefined : master;
  }
}

/** An optimizer's buffers. Where no float32 copy of a parameter was saved, a parameter that was saved wide is one. */
export class OptimizerReader extends CheckpointReader {
  constructor(files: CheckpointFiles, damage: Error[]) {
    super(files, damage, 'optimizer');
  }

  protected override sourceOf(name: string): string | undefined {
    if (!name.endsWith(`/${MASTER}`) || this.entryOf(`optimizer/${name}`) !== undefined) return undefined;
    const parameter = `model/${name.slice(0, -MASTER.length - 1)}`;
    return isWide(this.entryOf(parameter)?.dtype) ? parameter : undefined;
  }
}

function isWide(dtype: DType | undefined): boolean {
  return dtype === 'float32' || dtype === 'float64';
}
