import { z } from 'zod';
import { Generator } from '../core/generator';
import { parseOptions } from '../core/options';
import type { Tensor } from '../tensor/tensor';
import type { GeluForm } from './activations';
import { checkSize } from './initial-values';
import { Linear } from './linear';
import { Module } from './module';
import { MultiHeadAttention, type MultiHeadAttentionOptions } from './multi-head-attention';
import { LayerNorm } from './normalization';

export interface TransformerBlockOptions extends MultiHeadAttentionOptions {
  /** Width of the hidden layer, in multiples of dim; default 4. */
  readonly mlpRatio?: number | undefined;
  /** Form of the activation: 'none' (exact; 'exact' is the same) or 'tanh'. Default 'none'. */
  readonly gelu?: GeluForm | undefined;
  /** Of both norms; default 1e-5. */
  readonly eps?: number | undefined;
}

const schema = z.strictObject({
  causal: z.boolean().default(false),
  bias: z.boolean().default(true),
  mlpRatio: z.number().positive().default(4),
  gelu: z.enum(['none', 'exact', 'tanh']).default('none'),
  eps: z.number().min(0).default(1e-5),
  generator: z.instanceof(Generator).optional(),
});

/**
 * A pre-norm transformer block: x + attn(norm1(x)), then x + fc2(gelu(fc1(norm2(x)))).
 *
 * Shapes: x [batch, tokens, dim], result the same; the hidden layer has round(dim * mlpRatio) units.
 */
export class TransformerBlock extends Module {
  readonly gelu: GeluForm;
  norm1: LayerNorm;
  attn: MultiHeadAttention;
  norm2: LayerNorm;
  fc1: Linear;
  fc2: Linear;

  /** @throws InvalidArgumentError unless numHeads divides dim, or for an option that does not parse */
  constructor(dim: number, numHeads: number, options?: TransformerBlockOptions) {
    super();
    const { causal, mlpRatio, gelu, eps, ...linear } = parseOptions(schema, options, 'new TransformerBlock');
    const hidden = Math.round(checkSize(dim, 'new TransformerBlock: dim') * mlpRatio);
    this.gelu = gelu;
    this.norm1 = new LayerNorm(dim, { eps });
    this.attn = new MultiHeadAttention(dim, numHeads, { causal, ...linear });
    this.norm2 = new LayerNorm(dim, { eps });
    this.fc1 = new Linear(dim, hidden, linear);
    this.fc2 = new Linear(hidden, dim, linear);
  }

  async forward(x: Tensor): Promise<Tensor> {
    const attended = x.add(await this.attn.forward(await this.norm1.forward(x)));
    const hidden = await this.fc1.forward(await this.norm2.forward(attended));
    return attended.add(await this.fc2.forward(hidden.gelu(this.gelu === 'tanh' ? 'tanh' : 'none')));
  }
}
