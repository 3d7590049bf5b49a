import { z } from 'zod';
import type { AdamUpdate } from '../core/flat-update';
import { parseOptions } from '../core/options';
import { Optimizer } from './optimizer';
import type { OptimizerParams } from './param-group';
import type { UpdateTarget } from './update-rule';

export interface AdamOptions {
  /** Learning rate; default 0.001. */
  readonly lr?: number | undefined;
  /** Decay of the running averages of the gradient and of its square; default [0.9, 0.999]. */
  readonly betas?: readonly [number, number] | undefined;
  /** Added to the root of the second average; default 1e-8. */
  readonly eps?: number | undefined;
  /** Adam: L2 penalty, added to the gradient, default 0. AdamW: decay of the parameter itself, default 0.01. */
  readonly weightDecay?: number | undefined;
}

/** Complete settings of a group. */
export interface AdamSettings {
  lr: number;
  betas: readonly [number, number];
  eps: number;
  weightDecay: number;
}

const beta = z.number().min(0).lt(1);

function makeSchema(weightDecay: number): z.ZodType<AdamSettings> {
  return z.strictObject({
    lr: z.number().min(0).default(1e-3),
    betas: z.tuple([beta, beta]).default([0.9, 0.999]),
    eps: z.number().min(0).default(1e-8),
    weightDecay: z.number().min(0).default(weightDecay),
  });
}

const adamSchema = makeSchema(0);
const adamWSchema = makeSchema(0.01);

const STATE_NAMES = ['expAvg', 'expAvgSq'] as const;

/**
 * Adam (Kingma and Ba, 2015), with an L2 penalty: g += weightDecay * p; m and v are running averages of g and g^2, and
 * p -= lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps). After torch.optim.Adam.
 */
export class Adam extends Optimizer<AdamSettings, AdamOptions> {
  override readonly isElementwise = true;

  /** @throws InvalidArgumentError for parameters or options that are not valid; see Optimizer */
  constructor(params: OptimizerParams<AdamOptions>, options?: AdamOptions) {
    super(params, options, (given, what) => parseOptions(adamSchema, given, what));
  }

  override stateNames(): readonly string[] {
    return STATE_NAMES;
  }

  override update(target: UpdateTarget, settings: AdamSettings): void {
    adamUpdate(target, adamNumbers(settings, target.step));
  }

  override flatUpdate(settings: AdamSettings, step: number): AdamUpdate {
    return adamNumbers(settings, step);
  }
}

/**
 * Adam with decoupled weight decay (Loshchilov and Hutter, 2019): p shrinks by lr * weightDecay first, then Adam's update
 * without a penalty. After torch.optim.AdamW.
 */
export class AdamW extends Optimizer<AdamSettings, AdamOptions> {
  override readonly isElementwise = true;

  /** @throws InvalidArgumentError for parameters or options that are not valid; see Optimizer */
  constructor(params: OptimizerParams<AdamOptions>, options?: AdamOptions) {
    super(params, options, (given, what) => parseOptions(adamWSchema, given, what));
  }

  override stateNames(): readonly string[] {
    return STATE_NAMES;
  }

  override update(target: UpdateTarget, settings: AdamSettings): void {
    adamUpdate(target, adamWNumbers(settings, target.step));
  }

  override flatUpdate(settings: AdamSettings, step: number): AdamUpdate {
    return adamWNumbers(settings, step);
  }
}

/** `penalty` times the parameter joins the gradient, `keep` is what is left of the parameter. */
function adamNumbers(
  { lr, betas, eps, weightDecay }: AdamSettings,
  step: number,
  { penalty = weightDecay, keep = 1 }: { readonly penalty?: number; readonly keep?: number } = {},
): AdamUpdate {
  const [beta1, beta2] = betas;
  const stepSize = lr / (1 - beta1 ** step);
  const rootScale = 1 / Math.sqrt(1 - beta2 ** step);
  return { kind: 'adam', beta1, beta2, eps, penalty, keep, stepSize, rootScale, gradientScale: 1 };
}

function adamWNumbers(settings: AdamSettings, step: number): AdamUpdate {
  return adamNumbers(settings, step, { penalty: 0, keep: 1 - settings.lr * settings.weightDecay });
}

/** Both rules. The loop has no branch on `penalty`: with one, V8 takes twice as long. */
function adamUpdate({ parameter, gradient, state }: UpdateTarget, numbers: AdamUpdate): void {
  const first = state['expAvg'] as typeof parameter;
  const second = state['expAvgSq'] as typeof parameter;
  const { beta1, beta2, eps, penalty, keep, stepSize, rootScale } = numbers;
  const taken1 = 1 - beta1;
  const taken2 = 1 - beta2;
  for (let i = 0; i < parameter.length; i++) {
    const value = parameter[i] as number;
    const slope = (gradient[i] as number) + penalty * value;
    const m = beta1 * (first[i] as number) + taken1 * slope;
    const v = beta2 * (second[i] as number) + taken2 * slope * slope;
    first[i] = m;
    second[i] = v;
    parameter[i] = keep * value - (stepSize * m) / (Math.sqrt(v) * rootScale + eps);
  }
}
