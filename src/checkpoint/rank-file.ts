/** The file that one rank writes: its pieces of all tensors, as an ordinary safetensors file. */
import { join } from 'node:path';
import { bytesOf } from '../core/dtype';
import type { TensorForm, TensorPart } from '../strategy/state-parts';
import { sizeOf, type Shape } from '../tensor/shape';
import { checksum } from './checksum';
import { writeBuffers, writeNewFile } from './durable-file';
import { CHUNK_BYTES, type FileEntry, type PieceEntry } from './index-file';
import { planHeader } from './safetensors-header';
import { rankFileName } from './step-folder';

export interface NamedPiece extends PieceEntry, TensorForm {
  readonly name: string;
}

/** What a rank has written. */
export interface RankFile {
  readonly file: FileEntry;
  readonly pieces: readonly NamedPiece[];
}

/**
 * Write `parts` to this rank's file in `folder`, durably. Their memory is read until the promise settles.
 *
 * A whole tensor has its own name and shape in the file, so that other tools can read it; a part of one is a list of
 * numbers, named `<name>[<start>:<end>]`.
 */
export async function writeRankFile(folder: string, rank: number, parts: readonly TensorPart[]): Promise<RankFile> {
  const name = rankFileName(rank);
  const { bytes: header, order } = planHeader(parts.map(entryOf), { format: 'lockstep' }, name);
  const pieces: NamedPiece[] = [];

  function* content(): Generator<Uint8Array> {
    yield header;
    for (const { tensor, offset } of order) {
      const { name: tensorName, shape, dtype, start, buffer } = tensor.part;
      const checksums: string[] = [];
      for (const chunk of chunksOf(bytesOf(buffer))) {
        checksums.push(checksum(chunk)); // right before it is written: one trip through memory
        yield chunk;
      }
      pieces.push({ name: tensorName, shape, dtype, file: rank, offset, start, length: buffer.length, checksums });
    }
  }

  await writeNewFile(join(folder, name), (file) => writeBuffers(file, content()));
  const bytes = parts.reduce((total, { buffer }) => total + buffer.byteLength, header.length);
  return { file: { name, bytes, headerBytes: header.length, headerChecksum: checksum(header) }, pieces };
}

function entryOf(part: TensorPart): readonly [string, TensorForm & { readonly part: TensorPart }] {
  const { dtype, start, buffer } = part;
  if (buffer.length === sizeOf(part.shape)) return [part.name, { dtype, shape: part.shape, part }];
  const shape: Shape = [buffer.length];
  return [`${part.name}[${start}:${start + buffer.length}]`, { dtype, shape, part }];
}

function* chunksOf(bytes: Uint8Array): Generator<Uint8Array> {
  for (let at = 0; at < bytes.length; at += CHUNK_BYTES) yield bytes.subarray(at, at + CHUNK_BYTES);
}
