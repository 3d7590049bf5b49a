import { InvalidArgumentError } from '../../core/errors';
import { kernels, type ConvolutionGeometry, type Floats, type Matrix } from '../kernels/kernels';
import { planBroadcast } from '../kernels/plans';
import { formatShape, type Shape } from '../shape';
import type { Result, Value } from '../value';
import { computeValue, floatsFor, floatsOf, requireFloat, requireSameDType } from './floats';
import { sumTo } from './sum-to';

/** Rows, then columns. */
export interface ConvolutionOperands {
  readonly stride: readonly [number, number];
  readonly padding: readonly [number, number];
}

/**
 * Two-dimensional convolution (cross-correlation, as is usual).
 *
 * Shapes: x [n, in, height, width], weight [out, in, kernelHeight, kernelWidth], bias [out] -> [n, out, ...]. Each image
 * becomes a matrix of patches, made again in backward rather than kept.
 */
export function conv2d(x: Value, weight: Value, bias: Value | undefined, operands: ConvolutionOperands): Result {
  const geometry = geometryOf(x, weight, bias, operands);
  const { dtype } = x.storage;
  const images = x.shape[0] as number;
  const filters = weight.shape[0] as number;
  const patch = geometry.channels * geometry.kernelHeight * geometry.kernelWidth;
  const places = geometry.outHeight * geometry.outWidth;
  const imageSize = geometry.channels * geometry.height * geometry.width;
  const shape: Shape = Object.freeze([images, filters, geometry.outHeight, geometry.outWidth]);
  const weightsAs = (rowStride: number, columnStride: number): Matrix => ({
    data: floatsOf(weight.storage),
    offset: 0,
    rowStride,
    columnStride,
  });
  const columnsOf = (image: number, columns: Floats): Floats => {
    kernels.imageToColumns(columns, floatsOf(x.storage), image * imageSize, geometry);
    return columns;
  };
  const output = computeValue(dtype, shape, (out) => {
    const columns = floatsFor(dtype, patch * places);
    const weights = weightsAs(patch, 1);
    for (let image = 0; image < images; image++) {
      const b = { data: columnsOf(image, columns), offset: 0, rowStride: places, columnStride: 1 };
      kernels.matmul(out, image * filters * places, weights, b, { rows: filters, columns: places, depth: patch });
    }
    if (bias !== undefined) {
      const plan = planBroadcast([images, filters, places], [images, filters, places], [filters, 1]);
      kernels.binary('add', out, out, floatsOf(bias.storage), plan);
    }
  });
  const slopesAt = (floats: Floats, image: number): Matrix => ({
    data: floats,
    offset: image * filters * places,
    rowStride: places,
    columnStride: 1,
  });
  const ofX = (gradient: Floats): Value =>
    computeValue(dtype, x.shape, (out) => {
      const columns = floatsFor(dtype, patch * places);
      const turned = weightsAs(1, patch);
      for (let image = 0; image < images; image++) {
        const size = { rows: patch, columns: places, depth: filters };
        kernels.matmul(columns, 0, turned, slopesAt(gradient, image), size);
        kernels.columnsToImage(out, image * imageSize, columns, geometry);
      }
    });
  const ofWeight = (gradient: Floats): Value =>
    computeValue(dtype, weight.shape, (out) => {
      const columns = floatsFor(dtype, patch * places);
      const total = new Float64Array(out.length);
      const product = new Float64Array(out.length);
      for (let image = 0; image < images; image++) {
        const turned = { data: columnsOf(image, columns), offset: 0, rowStride: 1, columnStride: places };
        const size = { rows: filters, columns: patch, depth: places };
        kernels.matmul(product, 0, slopesAt(gradient, image), turned, size);
        kernels.accumulate(total, product);
      }
      out.set(total);
    });
  return {
    output,
    saves: [x, weight],
    backward: (gradient, needs) => {
      const floats = floatsOf(gradient.storage);
      const ofBias = (): Value => {
        const flat = { storage: gradient.storage, shape: [images, filters, places] };
        return { storage: sumTo(flat, [filters, 1]).storage, shape: [filters] };
      };
      return [
        needs[0] === true ? ofX(floats) : undefined,
        needs[1] === true ? ofWeight(floats) : undefined,
        needs[2] === true ? ofBias() : undefined,
      ];
    },
  };
}

function geometryOf(
  x: Value,
  weight: Value,
  bias: Value | undefined,
  { stride, padding }: ConvolutionOperands,
): ConvolutionGeometry {
  requireFloat('conv2d', x);
  requireSameDType('conv2d', x, weight);
  if (bias !== undefined) requireSameDType('conv2d', x, bias);
  const [, channels, height, width] = x.shape as [number, number, number, number];
  const [filters, depth, kernelHeight, kernelWidth] = weight.shape as [number, number, number, number];
  const outHeight = Math.floor((height + 2 * padding[0] - kernelHeight) / stride[0]) + 1;
  const outWidth = Math.floor((width + 2 * padding[1] - kernelWidth) / stride[1]) + 1;
  const fits =
    x.shape.length === 4 &&
    weight.shape.length === 4 &&
    channels === depth &&
    (bias === undefined || (bias.shape.length === 1 && bias.shape[0] === filters)) &&
    kernelHeight > 0 &&
    kernelWidth > 0 &&
    outHeight > 0 &&
    outWidth > 0;
  if (!fits) {
    throw new InvalidArgumentError(
      `conv2d: expected x [n, in, height, width], weight [out, in, kernelHeight, kernelWidth] no larger than the padded image, and bias [out]; got ${formatShape(x.shape)}, ${formatShape(weight.shape)}${bias === undefined ? '' : ` and ${formatShape(bias.shape)}`} with padding ${padding.join(' and ')}.`,
    );
  }
  return {
    channels,
    height,
    width,
    kernelHeight,
    kernelWidth,
    strideHeight: stride[0],
    strideWidth: stride[1],
    paddingHeight: padding[0],
    paddingWidth: padding[1],
    outHeight,
    outWidth,
  };
}
