/** Text that a trained model writes. */
import { Generator, Tensor, noGrad, tidy, type Module } from 'lockstep';
import { encode } from './text';

export interface SamplingSettings {
  readonly length: number;
  readonly prompt: string;
  /** Logits are divided by it. */
  readonly temperature: number;
  /** Characters that the model sees at once. */
  readonly context: number;
  readonly seed: number;
}

/**
 * `prompt` and what the model makes of it. Under ZeRO-3 every rank calls it, with the same settings, since every forward
 * gathers parameters; all get the same text.
 */
export async function sampleText(
  model: Module<[Tensor], Tensor>,
  vocabulary: readonly string[],
  settings: SamplingSettings,
): Promise<string> {
  const generator = new Generator(settings.seed);
  const ids = [...encode(settings.prompt, vocabulary)];
  model.eval();
  await noGrad(async () => {
    for (let i = 0; i < settings.length; i++) {
      const seen = Int32Array.from(ids.slice(-settings.context));
      const probabilities = await tidy(async () => {
        const logits = await model.forward(Tensor.from(seen, [1, seen.length]));
        return logits
          .slice(1, seen.length - 1, seen.length)
          .div(settings.temperature)
          .softmax(-1);
      });
      ids.push(draw(probabilities.data as Float32Array, generator.nextFloat()));
      probabilities.dispose();
    }
  });
  model.train();
  return ids.map((id) => vocabulary[id]).join('');
}

/** The first index at which the probabilities so far add up to more than `point`. */
function draw(probabilities: Float32Array, point: number): number {
  let sum = 0;
  const index = probabilities.findIndex((probability) => (sum += probability) > point);
  return index < 0 ? probabilities.length - 1 : index;
}
