import { InvalidArgumentError } from '../core/errors';
import type { Tensor } from '../tensor/tensor';
import { checkpoint } from './activation-checkpoint';

/** One of a row of modules: anything with a forward from one tensor to one tensor. */
export interface ChainedModule {
  forward(input: Tensor): Promise<Tensor>;
}

/**
 * `modules` one after the other, cut into `segments` runs of about equal length, each checkpointed; the last one is not,
 * since its backward comes first.
 *
 * For n modules of equal size it keeps the activations of segments + n / segments of them, least with sqrt(n) segments
 * (arXiv 1604.06174, section 4.1), for one more forward.
 *
 * @param modules an array of modules, or a Sequential
 * @throws InvalidArgumentError for no module, or a number of segments that is not from 1 to the number of modules
 */
export async function checkpointSequential(
  modules: Iterable<ChainedModule>,
  segments: number,
  input: Tensor,
): Promise<Tensor> {
  const chain = [...modules];
  if (!Number.isInteger(segments) || segments < 1 || segments > chain.length) {
    throw new InvalidArgumentError(
      `checkpointSequential: expected a number of segments from 1 to the ${chain.length} modules, got ${String(segments)}.`,
    );
  }
  let x = input;
  for (let segment = 0; segment < segments; segment++) {
    const [start, end] = [segment, segment + 1].map((edge) => Math.floor((edge * chain.length) / segments));
    const run = (value: Tensor): Promise<Tensor> => runChain(chain.slice(start, end), value);
    x = segment < segments - 1 ? await checkpoint(run, x) : await run(x);
  }
  return x;
}

async function runChain(modules: readonly ChainedModule[], input: Tensor): Promise<Tensor> {
  let x = input;
  for (const module of modules) x = await module.forward(x);
  return x;
}
