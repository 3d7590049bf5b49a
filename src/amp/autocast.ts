import { z } from 'zod';
import { InvalidArgumentError } from '../core/errors';
import { parseOptions } from '../core/options';
import { withAutocast } from '../tensor/autocast-mode';

export interface AutocastOptions {
  /** What products are computed in. Default 'bfloat16'. */
  readonly dtype?: 'bfloat16' | 'float16' | undefined;
  /** False: off inside, also within another `autocast`. Default true. */
  readonly enabled?: boolean | undefined;
}

const schema = z.strictObject({
  dtype: z.enum(['bfloat16', 'float16'], { error: "expected 'bfloat16' or 'float16'" }).default('bfloat16'),
  enabled: z.boolean().default(true),
});

/**
 * Run `fn` in mixed precision; returns what `fn` returns. `fn` may be async, and what interleaves with it is not affected.
 *
 *     const loss = await autocast({ dtype: 'bfloat16' }, async () => crossEntropy(await model.forward(inputs), labels));
 *     await loss.backward();
 *
 * Matrix products and convolutions take and give the low dtype, whatever their inputs are; softmax, norms, losses, exp,
 * log, pow, sums and means take and give float32; operators that combine tensors take the widest of their dtypes; all
 * others, the dtype that they are given. Parameters stay as they are, and so do their gradients. float64 is left alone.
 * Backward runs in the dtypes of the forward; call it outside. With float16, use a GradScaler. After torch.autocast.
 * @throws InvalidArgumentError for another dtype
 */
export function autocast<R>(options: AutocastOptions, fn: () => R): R {
  const { dtype, enabled } = parseOptions(schema, options, 'autocast');
  if (typeof fn !== 'function') {
    throw new InvalidArgumentError(
      `autocast: expected a function as the second argument, got ${typeof fn}. Write autocast({ dtype: '${dtype}' }, () => ...).`,
    );
  }
  return withAutocast(enabled ? dtype : undefined, fn);
}
