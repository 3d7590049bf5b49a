/** The files of one checkpoint, open for reading; whatever is read is checked first. */
import { open, type FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import { byteSize } from '../core/dtype';
import type { CheckpointError } from '../core/errors';
import { checksum } from './checksum';
import { readInto } from './durable-file';
import { CHUNK_BYTES, type CheckpointIndex, type FileEntry, type PieceEntry, type TensorEntry } from './index-file';
import { unusable } from './step-folder';

/** Bytes asked of the system in one call. */
const READ_BYTES = 16 * CHUNK_BYTES;

export class CheckpointFiles {
  readonly path: string;
  readonly index: CheckpointIndex;
  readonly #handles: readonly FileHandle[];
  /** Chunks that were read and found good, by piece. */
  readonly #checked = new Map<PieceEntry, Set<number>>();

  private constructor(path: string, index: CheckpointIndex, handles: readonly FileHandle[]) {
    this.path = path;
    this.index = index;
    this.#handles = handles;
  }

  /** @throws CheckpointError if a file is missing, or not as long as it should be */
  static async open(path: string, index: CheckpointIndex): Promise<CheckpointFiles> {
    const handles: FileHandle[] = [];
    try {
      for (const file of index.files) handles.push(await openFile(path, file));
      return new CheckpointFiles(path, index, handles);
    } catch (error) {
      await closeAll(handles);
      throw error;
    }
  }

  /**
   * Fill `target` with the bytes of a piece from byte `from` of it.
   * @throws CheckpointError if they are damaged
   */
  async read(name: string, piece: PieceEntry, from: number, target: Uint8Array): Promise<void> {
    const pieceBytes = piece.length * byteSize((this.index.tensors[name] as TensorEntry).dtype);
    const end = from + target.byteLength;
    /** Up to here whole chunks are wanted; the last chunk of a piece may be short. */
    const wholeEnd = end === pieceBytes ? end : end - (end % CHUNK_BYTES);
    for (let at = from; at < end;) {
      const chunkStart = at - (at % CHUNK_BYTES);
      if (at === chunkStart && at < wholeEnd) {
        const bytes = Math.min(wholeEnd - at, READ_BYTES);
        await this.#readChunks(name, piece, at, target.subarray(at - from, at - from + bytes));
        at += bytes;
      } else {
        const chunk = new Uint8Array(Math.min(CHUNK_BYTES, pieceBytes - chunkStart));
        await this.#readChunks(name, piece, chunkStart, chunk);
        const wanted = chunk.subarray(at - chunkStart, end - chunkStart);
        target.set(wanted, at - from);
        at += wanted.length;
      }
    }
  }

  /**
   * Check what was not read yet: share `rank` of `size` shares.
   * @throws CheckpointError if any of it is damaged
   */
  async checkRest(rank: number, size: number): Promise<void> {
    for (let file = rank; file < this.index.files.length; file += size) await this.#checkHeader(file);
    const scratch = new Uint8Array(CHUNK_BYTES);
    let turn = 0;
    for (const [name, { dtype, pieces }] of Object.entries(this.index.tensors)) {
      for (const piece of pieces) {
        const pieceBytes = piece.length * byteSize(dtype);
        for (let at = 0; at < pieceBytes; at += CHUNK_BYTES) {
          const isMine = turn++ % size === rank;
          if (!isMine || this.#checked.get(piece)?.has(at) === true) continue;
          await this.#readChunks(name, piece, at, scratch.subarray(0, Math.min(CHUNK_BYTES, pieceBytes - at)));
        }
      }
    }
  }

  close(): Promise<void> {
    return closeAll(this.#handles);
  }

  /** Fill `target` with whole chunks. */
  async #readChunks(name: string, piece: PieceEntry, from: number, target: Uint8Array): Promise<void> {
    const where = `'${name}', element ${piece.start} on`;
    await this.#readBytes(piece.file, piece.offset + from, target, where);
    let checked = this.#checked.get(piece);
    if (checked === undefined) this.#checked.set(piece, (checked = new Set()));
    for (let at = 0; at < target.byteLength; at += CHUNK_BYTES) {
      const chunk = target.subarray(at, at + CHUNK_BYTES);
      if (checksum(chunk) !== piece.checksums[(from + at) / CHUNK_BYTES]) {
        throw this.#damaged(piece.file, `the checksum of ${where} does not match`);
      }
      checked.add(from + at);
    }
  }

  async #checkHeader(file: number): Promise<void> {
    const { headerBytes, headerChecksum } = this.index.files[file] as FileEntry;
    const header = new Uint8Array(headerBytes);
    await this.#readBytes(file, 0, header, 'its header');
    if (checksum(header) !== headerChecksum) throw this.#damaged(file, 'the checksum of its header does not match');
  }

  async #readBytes(file: number, position: number, target: Uint8Array, where: string): Promise<void> {
    let isFull;
    try {
      isFull = await readInto(this.#handles[file] as FileHandle, target, position);
    } catch (error) {
      throw this.#damaged(file, `${where} cannot be read: ${(error as Error).message}`, error);
    }
    if (!isFull) throw this.#damaged(file, `it ends before ${where}`);
  }

  #damaged(file: number, problem: string, cause?: unknown): CheckpointError {
    return unusable(this.path, `${(this.index.files[file] as FileEntry).name} is damaged: ${problem}`, cause);
  }
}

async function openFile(path: string, { name, bytes }: FileEntry): Promise<FileHandle> {
  let file;
  try {
    file = await open(join(path, name), 'r');
  } catch (error) {
    throw unusable(path, `${name} cannot be opened: ${(error as Error).message}`, error);
  }
  const { size } = await file.stat();
  if (size === bytes) return file;
  await file.close();
  throw unusable(path, `${name} has ${size} bytes, and had ${bytes} when it was written`);
}

async function closeAll(handles: readonly FileHandle[]): Promise<void> {
  await Promise.all(handles.map((handle) => handle.close()));
}
