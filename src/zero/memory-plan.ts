/** How many bytes of model state a rank holds, by the formulas of the ZeRO paper (arXiv 1910.02054, section 5). */
import { z } from 'zod';
import { InvalidArgumentError } from '../core/errors';
import { parseOptions } from '../core/options';

export interface MemoryPlanOptions {
  /** Parameters of the model, each counted once. */
  readonly params: number;
  /** Ranks that share the states. */
  readonly worldSize: number;
  /** What parameters and gradients are kept in; 16-bit ones come with float32 masters. Default 'float32'. */
  readonly precision?: 'float32' | 'bfloat16' | 'float16' | undefined;
  /** State buffers of the optimizer, float32, a parameter: 2 for Adam and AdamW (the default), 1 for momentum, 0 for SGD. */
  readonly stateBuffers?: number | undefined;
}

/** Bytes that one rank holds between steps; activations, buckets and gathered units come on top. */
export interface StageMemory {
  readonly stage: 0 | 1 | 2 | 3;
  readonly parameters: number;
  readonly gradients: number;
  /** Masters included. */
  readonly optimizer: number;
  readonly total: number;
}

const schema = z.strictObject({
  params: z.number().positive(),
  worldSize: z.int().min(1),
  precision: z.enum(['float32', 'bfloat16', 'float16']).default('float32'),
  stateBuffers: z.int().min(0).default(2),
});

const FLOAT32_BYTES = 4;
const HALF_BYTES = 2;

interface ParameterBytes {
  readonly parameter: number;
  readonly gradient: number;
  readonly optimizer: number;
}

function bytesPerParameter(precision: 'float32' | 'bfloat16' | 'float16', stateBuffers: number): ParameterBytes {
  const states = FLOAT32_BYTES * stateBuffers;
  if (precision === 'float32') return { parameter: FLOAT32_BYTES, gradient: FLOAT32_BYTES, optimizer: states };
  return { parameter: HALF_BYTES, gradient: HALF_BYTES, optimizer: FLOAT32_BYTES + states };
}

/**
 * What each stage holds, stage 0 (every rank everything) first. For Adam in mixed precision and N ranks: 16, 4 + 12/N,
 * 2 + 14/N and 16/N bytes a parameter; in float32: 16, 8 + 8/N, 4 + 12/N and 16/N.
 *
 * @throws InvalidArgumentError for sizes that are none
 */
export function planMemory(options: MemoryPlanOptions): StageMemory[] {
  const { params, worldSize, precision, stateBuffers } = parseOptions(schema, options, 'planMemory');
  const bytes = bytesPerParameter(precision, stateBuffers);
  return ([0, 1, 2, 3] as const).map((stage) => {
    const share = (from: number): number => (stage >= from ? params / worldSize : params);
    const parameters = bytes.parameter * share(3);
    const gradients = bytes.gradient * share(2);
    const optimizer = bytes.optimizer * share(1);
    return { stage, parameters, gradients, optimizer, total: parameters + gradients + optimizer };
  });
}

/** The largest number of parameters whose states fit in `bytes` a rank, by stage. */
export function largestModel(bytes: number, options: Omit<MemoryPlanOptions, 'params'>): number[] {
  if (!(bytes > 0)) throw new InvalidArgumentError(`largestModel: expected bytes above 0, got ${String(bytes)}.`);
  return planMemory({ ...options, params: 1 }).map(({ total }) => Math.floor(bytes / total));
}
