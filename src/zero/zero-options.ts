import { z } from 'zod';
import type { Logger } from '../core/logger';
import { InvalidArgumentError } from '../core/errors';
import { parseOptions } from '../core/options';
import { LossScale, type LossScaleOptions } from '../optim/loss-scale';

/** What is sharded: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too. */
export type ZeroStage = 0 | 1 | 2 | 3;

/** What parameters and gradients are stored in; the optimizer computes in float32 at least. */
export type ZeroPrecision = 'float32' | 'bfloat16' | 'float16';

/** Where shards are kept and stepped. */
export type ShardDevice = 'cpu' | 'cuda';

/** Options of zeroWrap; the same on every rank, which it checks. */
export interface ZeroOptions {
  /** Default 2: as fast as DDP and as many bytes sent, with all the memory saved that costs nothing. */
  readonly stage?: ZeroStage | undefined;
  /**
   * Default 'float32': parameters stay as they are. With 'bfloat16' or 'float16' float32 parameters are stored in that
   * dtype, and their float32 masters are sharded with the optimizer state; forward runs inside `autocast`, and outputs come
   * back in float32. In 'float16' gradients are scaled by themselves between the outputs and the step, which is left out, on
   * all ranks, if one has overflowed (a part of the loss that does not go through the outputs needs a GradScaler instead).
   * Tensors that need a gradient cross the module's edge by themselves, in arrays and in plain objects then; elsewhere (a Map,
   * an instance of a class) they are refused.
   */
  readonly precision?: ZeroPrecision | undefined;
  /** The rule of that scale, PyTorch's or DeepSpeed's; default PyTorch's, from 65536. */
  readonly lossScale?: LossScaleOptions | undefined;
  /** Stage 3: release a unit's parameters between its forward and its backward; default true. */
  readonly reshardAfterForward?: boolean | undefined;
  /** Stage 3: parameters of at most so many elements are never released; default 0. */
  readonly persistenceThreshold?: number | undefined;
  /**
   * Stage 3: modules of together at most so many elements are gathered as one unit; with 0 every module that owns parameters
   * is one. Default: an eighth of the model, and no more than 131072.
   */
  readonly mergeThreshold?: number | undefined;
  /** Stage 3: gather the next unit while one computes; default true. */
  readonly prefetch?: boolean | undefined;
  /** MiB of gradients that share one collective (stages 0 to 2); default 25. The first bucket is at most 1 MiB. */
  readonly bucketCapMb?: number | undefined;
  /**
   * Let parameters go unused in a step; default true: one byte each tells which ones no rank has used, and the optimizer
   * passes over those. With false a parameter without a gradient is an error.
   */
  readonly findUnusedParameters?: boolean | undefined;
  /** Copy rank 0's buffers to all ranks before each training forward; default true. */
  readonly broadcastBuffers?: boolean | undefined;
  /**
   * Where this rank's part of the parameters (of 16-bit ones the float32 masters too) and of the optimizer state are kept,
   * and where steps are computed; default 'cpu'. 'cuda': in the memory of the backend's device ([Note: shards on a device]),
   * for SGD, Adam, AdamW, and optimizers with a `flatUpdate`. Results agree with those of 'cpu' to FLAT_UPDATE_TOLERANCE a
   * step. Forward and backward still compute on the host. `memory.stats()` counts host memory alone; see
   * `optimizer.deviceBytes`.
   */
  readonly shardDevice?: ShardDevice | undefined;
  /** Gets what listeners throw; default: stderr, as LOCKSTEP_LOG says. May differ between ranks. */
  readonly logger?: Logger | undefined;
}

const schema = z.strictObject({
  stage: z.union([z.literal(0), z.literal(1), z.literal(2), z.literal(3)], 'expected 0, 1, 2 or 3').default(2),
  precision: z.enum(['float32', 'bfloat16', 'float16']).default('float32'),
  lossScale: z.custom<LossScaleOptions>().optional(),
  reshardAfterForward: z.boolean().default(true),
  persistenceThreshold: z.int().min(0).default(0),
  mergeThreshold: z.int().min(0).optional(),
  prefetch: z.boolean().default(true),
  bucketCapMb: z.number().positive().default(25),
  findUnusedParameters: z.boolean().default(true),
  broadcastBuffers: z.boolean().default(true),
  shardDevice: z.enum(['cpu', 'cuda']).default('cpu'),
});

export type ZeroSettings = z.output<typeof schema>;

/** @throws InvalidArgumentError for options that do not parse */
export function parseZeroOptions(given: ZeroOptions): ZeroSettings {
  if (typeof given !== 'object' || given === null) {
    const got = given === null ? 'null' : typeof given;
    throw new InvalidArgumentError(
      `zeroWrap: options: expected an object, got ${got}. Leave it out, or pass { stage: 2 }.`,
      {
        op: 'zeroWrap',
      },
    );
  }
  const { logger: _logger, ...options } = given;
  const settings = parseOptions(schema, options, 'zeroWrap');
  const { precision, lossScale } = settings;
  if (lossScale === undefined) return settings;
  new LossScale(lossScale, 'zeroWrap: lossScale'); // says now what it has against the options
  if (precision === 'float16') return settings;
  throw new InvalidArgumentError(
    `zeroWrap: a lossScale is of use with precision 'float16' alone, got '${precision}'. Leave it out.`,
    { op: 'zeroWrap' },
  );
}
