/**
 * Matrix products.
 *
 * [Note: order of a matrix product] Every element is the float64 sum of its products in ascending order of the inner
 * index, plus the bias, rounded once. Tiles, blocks and packing change where numbers are read from and never the order in which
 * they are added, so an element has the same bits in whatever product of whatever size it is computed.
 */
import type { Floats, MatmulShape, Matrix } from './kernels';

/* A tile of 4 x 3 accumulators and the 7 numbers they are made of are what fits the registers (measured: 4 x 4 is 6 % slower). */
const TILE_ROWS = 4;
const TILE_COLUMNS = 3;

/* Numbers in a block: of rows, so that it stays in the second-level cache while blocks of columns pass by, and of columns. */
const ROW_BLOCK_SIZE = 1 << 16;
const COLUMN_BLOCK_SIZE = 1 << 14;

export function matmul(out: Floats, outOffset: number, a: Matrix, b: Matrix, shape: MatmulShape, bias?: Floats): void {
  const { rows, columns } = shape;
  if (rows === 0 || columns === 0) return;
  if (rows < TILE_ROWS || columns < TILE_COLUMNS) multiplyThin(out, outOffset, a, b, shape, bias);
  else multiplyTiled(out, outOffset, a, b, shape, bias);
}

/** Without packing, which does not pay where one side has few rows. */
function multiplyThin(
  out: Floats,
  outOffset: number,
  a: Matrix,
  b: Matrix,
  { rows, columns, depth }: MatmulShape,
  bias: Floats | undefined,
): void {
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      let aAt = a.offset + row * a.rowStride;
      let bAt = b.offset + column * b.columnStride;
      let total = 0;
      for (let k = 0; k < depth; k++, aAt += a.columnStride, bAt += b.rowStride) {
        total += (a.data[aAt] as number) * (b.data[bAt] as number);
      }
      out[outOffset + row * columns + column] = bias === undefined ? total : total + (bias[column] as number);
    }
  }
}

/** Blocks of rows against blocks of columns, each packed in the order in which tiles read it (Goto and van de Geijn, 2008). */
function multiplyTiled(
  out: Floats,
  outOffset: number,
  a: Matrix,
  b: Matrix,
  { rows, columns, depth }: MatmulShape,
  bias: Floats | undefined,
): void {
  const blockRows = blockCount(ROW_BLOCK_SIZE, rows, depth, TILE_ROWS);
  const blockColumns = blockCount(COLUMN_BLOCK_SIZE, columns, depth, TILE_COLUMNS);
  const packedRows = new Float64Array(blockRows * depth);
  const packedColumns = new Float64Array(blockColumns * depth);
  const tile = new Float64Array(TILE_ROWS * TILE_COLUMNS);
  for (let row = 0; row < rows; row += blockRows) {
    const rowCount = Math.min(blockRows, rows - row);
    pack(packedRows, a.data, a.offset + row * a.rowStride, a.rowStride, a.columnStride, rowCount, depth, TILE_ROWS);
    for (let column = 0; column < columns; column += blockColumns) {
      const columnCount = Math.min(blockColumns, columns - column);
      const from = b.offset + column * b.columnStride;
      pack(packedColumns, b.data, from, b.columnStride, b.rowStride, columnCount, depth, TILE_COLUMNS);
      for (let r = 0; r < rowCount; r += TILE_ROWS) {
        for (let c = 0; c < columnCount; c += TILE_COLUMNS) {
          computeTile(tile, packedRows, r * depth, packedColumns, c * depth, depth);
          const at = outOffset + (row + r) * columns + column + c;
          storeTile(out, at, columns, tile, rowCount - r, columnCount - c, bias, column + c);
        }
      }
    }
  }
}

/** How many lines of `depth` numbers make a block: whole strips, one at least, no more than there are lines. */
function blockCount(blockSize: number, lines: number, depth: number, stripLines: number): number {
  const strips = Math.max(1, Math.floor(blockSize / Math.max(1, depth) / stripLines));
  return Math.min(strips, Math.ceil(lines / stripLines)) * stripLines;
}

/**
 * Copy `count` lines of `depth` numbers in strips of `width` lines, interleaved. Lines that are missing from the last strip
 * keep what was there: the results that they lead to are not stored.
 */
function pack(
  target: Float64Array,
  source: Floats,
  offset: number,
  lineStride: number,
  depthStride: number,
  count: number,
  depth: number,
  width: number,
): void {
  for (let strip = 0; strip < count; strip += width) {
    const lanes = Math.min(width, count - strip);
    const from = offset + strip * lineStride;
    const to = strip * depth;
    if (lineStride === 1 && lanes === width) packAcross(target, to, source, from, depthStride, depth, width);
    else
      for (let lane = 0; lane < lanes; lane++)
        packLine(target, to + lane, source, from + lane * lineStride, depthStride, depth, width);
  }
}

/** One line; reads along it. */
function packLine(
  target: Float64Array,
  to: number,
  source: Floats,
  from: number,
  depthStride: number,
  depth: number,
  width: number,
): void {
  for (let k = 0; k < depth; k++, to += width, from += depthStride) target[to] = source[from] as number;
}

/** A whole strip whose lines lie side by side; reads across them. */
function packAcross(
  target: Float64Array,
  to: number,
  source: Floats,
  from: number,
  depthStride: number,
  depth: number,
  width: number,
): void {
  for (let k = 0; k < depth; k++, from += depthStride) {
    for (let lane = 0; lane < width; lane++) target[to++] = source[from + lane] as number;
  }
}

/** tile [4, 3] = a strip of rows times a strip of columns. The accumulators are variables so that they stay in registers. */
function computeTile(
  tile: Float64Array,
  a: Float64Array,
  aStart: number,
  b: Float64Array,
  bStart: number,
  depth: number,
): void {
  let s00 = 0,
    s01 = 0,
    s02 = 0;
  let s10 = 0,
    s11 = 0,
    s12 = 0;
  let s20 = 0,
    s21 = 0,
    s22 = 0;
  let s30 = 0,
    s31 = 0,
    s32 = 0;
  for (let k = 0, i = aStart, j = bStart; k < depth; k++, i += TILE_ROWS, j += TILE_COLUMNS) {
    const a0 = a[i] as number;
    const a1 = a[i + 1] as number;
    const a2 = a[i + 2] as number;
    const a3 = a[i + 3] as number;
    const b0 = b[j] as number;
    s00 += a0 * b0;
    s10 += a1 * b0;
    s20 += a2 * b0;
    s30 += a3 * b0;
    const b1 = b[j + 1] as number;
    s01 += a0 * b1;
    s11 += a1 * b1;
    s21 += a2 * b1;
    s31 += a3 * b1;
    const b2 = b[j + 2] as number;
    s02 += a0 * b2;
    s12 += a1 * b2;
    s22 += a2 * b2;
    s32 += a3 * b2;
  }
  tile[0] = s00;
  tile[1] = s01;
  tile[2] = s02;
  tile[3] = s10;
  tile[4] = s11;
  tile[5] = s12;
  tile[6] = s20;
  tile[7] = s21;
  tile[8] = s22;
  tile[9] = s30;
  tile[10] = s31;
  tile[11] = s32;
}

/** Write what of a tile lies inside the result. */
function storeTile(
  out: Floats,
  outAt: number,
  outStride: number,
  tile: Float64Array,
  rowsLeft: number,
  columnsLeft: number,
  bias: Floats | undefined,
  biasAt: number,
): void {
  const rows = Math.min(rowsLeft, TILE_ROWS);
  const columns = Math.min(columnsLeft, TILE_COLUMNS);
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) {
      const total = tile[r * TILE_COLUMNS + c] as number;
      out[outAt + r * outStride + c] = bias === undefined ? total : total + (bias[biasAt + c] as number);
    }
  }
}
