import { z } from 'zod';
import { InvalidArgumentError } from '../core/errors';
import { Generator } from '../core/generator';
import { parseOptions } from '../core/options';
import { formatShape } from '../tensor/shape';
import { Tensor } from '../tensor/tensor';
import { checkSize } from './initial-values';
import { Linear, type LinearOptions } from './linear';
import { Module } from './module';

export interface MultiHeadAttentionOptions extends LinearOptions {
  /** Each token sees itself and those before it only; default false. */
  readonly causal?: boolean | undefined;
}

const schema = z.strictObject({
  causal: z.boolean().default(false),
  bias: z.boolean().default(true),
  generator: z.instanceof(Generator).optional(),
});

/**
 * Self-attention (Vaswani et al., 2017): softmax(q k^T / sqrt(head size)) v in each head, then `proj`.
 *
 * Shapes: x [batch, tokens, dim], result the same. Head h takes columns [h * size, (h + 1) * size) of q, k and v, where
 * size = dim / numHeads.
 */
export class MultiHeadAttention extends Module {
  readonly numHeads: number;
  readonly headDim: number;
  readonly causal: boolean;
  q: Linear;
  k: Linear;
  v: Linear;
  proj: Linear;

  /** @throws InvalidArgumentError unless numHeads divides dim, or for an unknown option */
  constructor(dim: number, numHeads: number, options?: MultiHeadAttentionOptions) {
    super();
    const { causal, ...linear } = parseOptions(schema, options, 'new MultiHeadAttention');
    checkSize(dim, 'new MultiHeadAttention: dim');
    checkSize(numHeads, 'new MultiHeadAttention: numHeads');
    if (dim % numHeads !== 0) {
      throw new InvalidArgumentError(
        `new MultiHeadAttention: dim (${dim}) must be a multiple of numHeads (${numHeads}): every head takes an equal part.`,
      );
    }
    this.numHeads = numHeads;
    this.headDim = dim / numHeads;
    this.causal = causal;
    this.q = new Linear(dim, dim, linear);
    this.k = new Linear(dim, dim, linear);
    this.v = new Linear(dim, dim, linear);
    this.proj = new Linear(dim, dim, linear);
  }

  async forward(x: Tensor): Promise<Tensor> {
    const [batch, tokens, dim] = x.shape;
    if (batch === undefined || tokens === undefined || x.shape.length !== 3) {
      throw new InvalidArgumentError(
        `MultiHeadAttention.forward: expected an input of shape [batch, tokens, dim], got ${formatShape(x.shape)}.`,
      );
    }
    const heads = (projected: Tensor): Tensor => {
      return projected.reshape([batch, tokens, this.numHeads, this.headDim]).transpose(1, 2);
    };
    const q = heads(await this.q.forward(x));
    const k = heads(await this.k.forward(x));
    const v = heads(await this.v.forward(x));
    const scores = q.matmul(k.transpose(2, 3)).mul(1 / Math.sqrt(this.headDim));
    const visible = this.causal ? scores.add(futureMask(tokens, scores)) : scores;
    const mixed = visible.softmax(-1).matmul(v);
    return this.proj.forward(mixed.transpose(1, 2).reshape([batch, tokens, dim as number]));
  }
}

/** [tokens, tokens]: -Infinity where the column is a later token than the row, else 0. */
function futureMask(tokens: number, like: Tensor): Tensor {
  const mask = new Float32Array(tokens * tokens);
  for (let row = 0; row < tokens; row++) mask.fill(-Infinity, row * tokens + row + 1, (row + 1) * tokens);
  return Tensor.wrap(mask, [tokens, tokens]).to(like.dtype);
}
