import { z } from 'zod';
import { Generator } from '../core/generator';
import { parseOptions } from '../core/options';
import { conv2d, type Conv2dOptions as ConvolutionOptions } from '../tensor/functional';
import type { Tensor } from '../tensor/tensor';
import { checkSize, uniformParameter } from './initial-values';
import type { LinearOptions } from './linear';
import { Module } from './module';
import type { Parameter } from './parameter';

export interface Conv2dOptions extends ConvolutionOptions, LinearOptions {}

const pair = (least: number) => z.union([z.int().min(least), z.tuple([z.int().min(least), z.int().min(least)])]);

const schema = z.strictObject({
  stride: pair(1).default(1),
  padding: pair(0).default(0),
  bias: z.boolean().default(true),
  generator: z.instanceof(Generator).optional(),
});

/**
 * Two-dimensional convolution (cross-correlation, as everywhere in deep learning).
 *
 * Shapes: x [n, in, h, w], weight [out, in, kh, kw], bias [out], result [n, out, h', w'] with
 * h' = floor((h + 2 padding - kh) / stride) + 1. First values as in PyTorch: uniform within 1 / sqrt(in * kh * kw).
 */
export class Conv2d extends Module {
  readonly stride: number | readonly [number, number];
  readonly padding: number | readonly [number, number];
  weight: Parameter;
  bias: Parameter | undefined;

  /**
   * @param kernelSize rows and columns of the kernel, or one number for both
   * @throws InvalidArgumentError for sizes that are no whole numbers above 0, or an option that does not parse
   */
  constructor(
    inChannels: number,
    outChannels: number,
    kernelSize: number | readonly [number, number],
    options?: Conv2dOptions,
  ) {
    super();
    const { stride, padding, bias, generator } = parseOptions(schema, options, 'new Conv2d');
    const [rows, columns] = typeof kernelSize === 'number' ? [kernelSize, kernelSize] : kernelSize;
    const shape = [
      checkSize(outChannels, 'new Conv2d: outChannels'),
      checkSize(inChannels, 'new Conv2d: inChannels'),
      checkSize(rows, 'new Conv2d: kernelSize'),
      checkSize(columns, 'new Conv2d: kernelSize'),
    ];
    this.stride = stride;
    this.padding = padding;
    const bound = 1 / Math.sqrt(inChannels * rows * columns);
    this.weight = uniformParameter(shape, bound, generator);
    this.bias = bias ? uniformParameter([outChannels], bound, generator) : undefined;
  }

  async forward(x: Tensor): Promise<Tensor> {
    return conv2d(x, this.weight, this.bias, { stride: this.stride, padding: this.padding });
  }
}
