/** Copying many runs of elements in one launch: packing tensors into a bucket, and unpacking it. */
import { byteSize } from '../../core/dtype';
import { invariant } from '../../core/invariant';
import { BLOCK_SIZE, gridSizeFor, read, written } from './kernel-launch';
import type { DeviceElements, KernelLaunch } from './kernel-launch';

/** A run of elements to copy; all numbers are elements. */
export interface Segment {
  readonly sourceStart: number;
  readonly length: number;
  readonly targetStart: number;
}

/** One block copies a piece, so that a long run keeps many blocks busy. */
const PIECE_LENGTH = 16_384;

/**
 * The table that the kernel reads, to be uploaded as int64: of all pieces the starts in the source, then the lengths,
 * then the starts in the target. Targets must not overlap.
 */
export function segmentTable(segments: readonly Segment[]): BigInt64Array {
  const pieces = segments.flatMap(piecesOf);
  const table = new BigInt64Array(3 * pieces.length);
  pieces.forEach((piece, i) => {
    table[i] = BigInt(piece.sourceStart);
    table[pieces.length + i] = BigInt(piece.length);
    table[2 * pieces.length + i] = BigInt(piece.targetStart);
  });
  return table;
}

function piecesOf({ sourceStart, length, targetStart }: Segment): Segment[] {
  return Array.from({ length: Math.ceil(length / PIECE_LENGTH) }, (_unused, i) => {
    const done = i * PIECE_LENGTH;
    const pieceLength = Math.min(PIECE_LENGTH, length - done);
    return { sourceStart: sourceStart + done, length: pieceLength, targetStart: targetStart + done };
  });
}

/** Copy the segments of `table` between buffers of one dtype, of 2 or 4 bytes an element. */
export function copySegmentsKernel(
  source: DeviceElements,
  target: DeviceElements,
  table: DeviceElements,
): KernelLaunch {
  const bits = 8 * byteSize(source.dtype);
  const isFit = source.dtype === target.dtype && (bits === 16 || bits === 32) && table.dtype === 'int64';
  invariant(isFit, `no kernel copies ${source.dtype} to ${target.dtype} by a table of ${table.dtype}`);
  const pieces = table.length / 3;
  return {
    kernel: `copy_segments_${bits}`,
    gridSize: gridSizeFor(pieces, 1),
    blockSize: BLOCK_SIZE,
    args: [read(source), written(target), read(table), { uint64: pieces }],
  };
}
