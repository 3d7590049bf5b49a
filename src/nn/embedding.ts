import { z } from 'zod';
import { Generator } from '../core/generator';
import { parseOptions } from '../core/options';
import { embedding } from '../tensor/functional';
import type { Tensor } from '../tensor/tensor';
import { checkSize, type GeneratorOptions, normalParameter } from './initial-values';
import { Module } from './module';
import type { Parameter } from './parameter';

const schema = z.strictObject({ generator: z.instanceof(Generator).optional() });

/**
 * A table of vectors, looked up by row number.
 *
 * Shapes: ids [...] of int32 or int64, weight [numEmbeddings, dim], result [..., dim]. First values: normal, mean 0 and
 * standard deviation 1. Assign `weight` of another module (`head.weight = tokens.weight`) to tie them.
 */
export class Embedding extends Module {
  readonly numEmbeddings: number;
  readonly embeddingDim: number;
  weight: Parameter;

  /** @throws InvalidArgumentError for sizes that are no whole numbers above 0, or an unknown option */
  constructor(numEmbeddings: number, embeddingDim: number, options?: GeneratorOptions) {
    super();
    const { generator } = parseOptions(schema, options, 'new Embedding');
    this.numEmbeddings = checkSize(numEmbeddings, 'new Embedding: numEmbeddings');
    this.embeddingDim = checkSize(embeddingDim, 'new Embedding: embeddingDim');
    this.weight = normalParameter([numEmbeddings, embeddingDim], generator);
  }

  async forward(ids: Tensor): Promise<Tensor> {
    return embedding(ids, this.weight);
  }
}
