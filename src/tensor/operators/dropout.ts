import type { Generator } from '../../core/generator';
import { kernels } from '../kernels/kernels';
import type { Shape } from '../shape';
import { Storage } from '../storage';
import type { Result, Value } from '../value';
import { computeValue, floatsOf, requireFloat } from './floats';

/** Each element is 0 with `probability`, else divided by 1 - probability. Draws one number an element, row major. */
export function dropout(x: Value, probability: number, generator: Generator): Result {
  requireFloat('dropout', x);
  const { dtype } = x.storage;
  const mask = Storage.allocate('uint8', x.storage.length);
  const kept = mask.buffer as Uint8Array;
  for (let i = 0; i < kept.length; i++) kept[i] = generator.nextFloat() < probability ? 0 : 1;
  const factor = probability < 1 ? 1 / (1 - probability) : 0;
  const masked = (value: Value, shape: Shape): Value =>
    computeValue(dtype, shape, (out) => {
      kernels.mask(out, floatsOf(value.storage), kept, false);
      kernels.scale(out, out, factor);
    });
  return {
    output: masked(x, x.shape),
    saves: [{ storage: mask, shape: x.shape }],
    backward: (gradient) => [masked(gradient, x.shape)],
  };
}
