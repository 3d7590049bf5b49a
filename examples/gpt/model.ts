/** A small GPT: characters in, the next character's logits out. */
import { Embedding, LayerNorm, Linear, Module, Tensor, TransformerBlock, checkpoint, type Generator } from 'lockstep';

export interface GptSettings {
  readonly vocabularySize: number;
  /** Characters that it sees at once. */
  readonly context: number;
  readonly layers: number;
  readonly heads: number;
  readonly width: number;
  /** Compute the blocks' activations twice instead of keeping them. */
  readonly activationCheckpoint: boolean;
}

/** Pre-norm blocks with causal attention, learned positions, and the token embedding as the output layer too. */
export class Gpt extends Module {
  readonly settings: GptSettings;
  readonly tokens: Embedding;
  readonly positions: Embedding;
  readonly blocks: TransformerBlock[];
  readonly norm: LayerNorm;
  readonly head: Linear;

  constructor(settings: GptSettings, generator: Generator) {
    super();
    const { vocabularySize, context, layers, heads, width } = settings;
    this.settings = settings;
    this.tokens = new Embedding(vocabularySize, width, { generator });
    this.positions = new Embedding(context, width, { generator });
    this.blocks = Array.from({ length: layers }, () => new TransformerBlock(width, heads, { causal: true, generator }));
    this.norm = new LayerNorm(width);
    this.head = new Linear(width, vocabularySize, { bias: false, generator });
    this.head.weight = this.tokens.weight; // tied: one parameter, whose gradient comes from both ends
  }

  /** ids [batch, tokens], int32 -> logits [batch, tokens, vocabularySize]. */
  async forward(ids: Tensor): Promise<Tensor> {
    const [, length = 0] = ids.shape;
    const places = Tensor.from(Int32Array.from({ length }, (_unused, index) => index));
    const embedded = (await this.tokens.forward(ids)).add(await this.positions.forward(places));
    let x = embedded.mul(this.settings.width ** -0.5); // Embedding draws with deviation 1
    for (const block of this.blocks) {
      const run = (h: Tensor): Promise<Tensor> => block.forward(h);
      x = this.settings.activationCheckpoint ? await checkpoint(run, x) : await run(x);
    }
    return (await this.head.forward(await this.norm.forward(x))).mul(this.settings.width ** -0.5);
  }
}
