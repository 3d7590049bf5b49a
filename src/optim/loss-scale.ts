/**
 * The factor that a loss is multiplied by, so that small gradients are not lost in float16.
 *
 * Two rules say how it follows the overflows (NaN or infinity in a gradient, for which the step is left out). Both are
 * functions of what came before; every rank that is told the same overflows has the same scale. Sources: Micikevicius et
 * al., Mixed Precision Training (arXiv 1710.03740), section 3.2; torch's `_amp_update_scale_`; DeepSpeed's
 * `DynamicLossScaler`.
 */
import { z } from 'zod';
import { InvalidArgumentError } from '../core/errors';
import { parseOptions } from '../core/options';

/** PyTorch's rule: an overflow multiplies by `backoffFactor`; so many good steps in a row, by `growthFactor`. */
export interface TorchScaleOptions {
  readonly rule?: 'torch' | undefined;
  /** Default 65536. */
  readonly initScale?: number | undefined;
  /** Default 2; 1 never grows. PyTorch's GradScaler refuses 1; here both factors at 1 are DeepSpeed's fixed scale. */
  readonly growthFactor?: number | undefined;
  /** Default 0.5; 1 never shrinks. */
  readonly backoffFactor?: number | undefined;
  /** Good steps in a row before growth; default 2000. */
  readonly growthInterval?: number | undefined;
}

/**
 * DeepSpeed's rule: the first `hysteresis` - 1 overflows are forgiven, further ones divide by `scaleFactor`; so many good
 * steps in a row multiply by it, and what may be forgiven starts anew.
 */
export interface DeepSpeedScaleOptions {
  readonly rule: 'deepspeed';
  /** Default 65536. */
  readonly initScale?: number | undefined;
  /** Default 2. */
  readonly scaleFactor?: number | undefined;
  /** Good steps in a row before growth; default 1000. */
  readonly scaleWindow?: number | undefined;
  /** The scale does not shrink below it; default 1. DeepSpeed stops with an error at an overflow there. */
  readonly minScale?: number | undefined;
  /** Default 2; 1 forgives nothing. */
  readonly hysteresis?: number | undefined;
  /** True: every good step renews what may be forgiven, not only growth. Default false. */
  readonly consecutiveHysteresis?: boolean | undefined;
}

export type LossScaleOptions = TorchScaleOptions | DeepSpeedScaleOptions;

/** Where a scale stands; JSON-safe. */
export interface LossScaleState {
  readonly rule: 'torch' | 'deepspeed';
  readonly scale: number;
  /** Good steps in a row so far, since the last growth. */
  readonly goodSteps: number;
  /** Overflows that shrink the scale from the n-th on; always 1 under torch's rule. */
  readonly hysteresisLeft: number;
}

const positive = z.number().positive();
const count = z.int().min(1);

const torchSchema = z.strictObject({
  rule: z.literal('torch').default('torch'),
  initScale: positive.default(65536),
  growthFactor: z.number().min(1).default(2),
  backoffFactor: positive.max(1).default(0.5),
  growthInterval: count.default(2000),
});

const deepSpeedSchema = z.strictObject({
  rule: z.literal('deepspeed'),
  initScale: positive.default(65536),
  scaleFactor: z.number().min(1).default(2),
  scaleWindow: count.default(1000),
  minScale: positive.default(1),
  hysteresis: count.default(2),
  consecutiveHysteresis: z.boolean().default(false),
});

type Settings = z.infer<typeof torchSchema> | z.infer<typeof deepSpeedSchema>;

const stateSchema: z.ZodType<LossScaleState> = z.strictObject({
  rule: z.enum(['torch', 'deepspeed']),
  scale: positive,
  goodSteps: z.int().min(0),
  hysteresisLeft: count,
});

/** A loss scale under one of the two rules. A float32 number above 0; it never grows to infinity nor shrinks to 0. */
export class LossScale {
  readonly #settings: Settings;
  #state: LossScaleState;

  /** @throws InvalidArgumentError, which opens with `what`, for options that do not parse */
  constructor(options: LossScaleOptions | undefined, what: string) {
    const settings = parseRule(options, what);
    this.#settings = settings;
    this.#state = {
      rule: settings.rule,
      scale: asScale(settings.initScale, `${what}: initScale`),
      goodSteps: 0,
      hysteresisLeft: settings.rule === 'torch' ? 1 : settings.hysteresis,
    };
  }

  get scale(): number {
    return this.#state.scale;
  }

  /** Go on to the next step, after one that overflowed (and was left out) or did not. */
  update(hasOverflowed: boolean): void {
    const state = this.#state;
    const settings = this.#settings;
    this.#state =
      settings.rule === 'torch'
        ? afterTorchStep(state, settings, hasOverflowed)
        : afterDeepSpeedStep(state, settings, hasOverflowed);
  }

  /** Set the scale by hand; the count of good steps goes on. */
  set(scale: number, what: string): void {
    this.#state = { ...this.#state, scale: asScale(scale, what) };
  }

  stateDict(): LossScaleState {
    return { ...this.#state };
  }

  /** @throws InvalidArgumentError, with nothing changed, for anything but a state of the same rule */
  loadStateDict(state: unknown, what: string): void {
    const parsed = parseOptions(stateSchema, state, what);
    if (parsed.rule !== this.#settings.rule) {
      throw new InvalidArgumentError(
        `${what}: the state is of the rule '${parsed.rule}', this one follows '${this.#settings.rule}'. Make it with the ` +
          'options of the one that was saved.',
      );
    }
    this.#state = { ...parsed, scale: asScale(parsed.scale, what) };
  }
}

function afterTorchStep(
  state: LossScaleState,
  settings: z.infer<typeof torchSchema>,
  hasOverflowed: boolean,
): LossScaleState {
  const { scale, goodSteps } = state;
  if (hasOverflowed) return { ...state, scale: multiplied(scale, settings.backoffFactor), goodSteps: 0 };
  if (goodSteps + 1 < settings.growthInterval) return { ...state, goodSteps: goodSteps + 1 };
  return { ...state, scale: multiplied(scale, settings.growthFactor), goodSteps: 0 };
}

function afterDeepSpeedStep(
  state: LossScaleState,
  settings: z.infer<typeof deepSpeedSchema>,
  hasOverflowed: boolean,
): LossScaleState {
  const { scale, hysteresisLeft } = state;
  const { scaleFactor, minScale, hysteresis } = settings;
  if (hasOverflowed && hysteresisLeft > 1) return { ...state, goodSteps: 0, hysteresisLeft: hysteresisLeft - 1 };
  if (hasOverflowed) {
    const shrunk = Math.max(multiplied(scale, 1 / scaleFactor), Math.min(scale, minScale));
    return { ...state, goodSteps: 0, scale: shrunk };
  }
  const isGrowing = state.goodSteps + 1 >= settings.scaleWindow;
  return {
    ...state,
    scale: isGrowing ? multiplied(scale, scaleFactor) : scale,
    goodSteps: isGrowing ? 0 : state.goodSteps + 1,
    hysteresisLeft: isGrowing || settings.consecutiveHysteresis ? hysteresis : hysteresisLeft,
  };
}

/** The product as a float32; the scale as it was where that is infinite or 0. */
function multiplied(scale: number, factor: number): number {
  const product = Math.fround(scale * factor);
  return isScale(product) ? product : scale;
}

function isScale(scale: number): boolean {
  return scale > 0 && scale < Infinity;
}

function asScale(scale: number, what: string): number {
  const rounded = Math.fround(scale);
  if (isScale(rounded)) return rounded;
  throw new InvalidArgumentError(`${what}: expected a float32 number above 0, got ${String(scale)}.`);
}

function parseRule(options: LossScaleOptions | undefined, what: string): Settings {
  if (options?.rule !== 'deepspeed') return parseOptions(torchSchema, options, what);
  const settings = parseOptions(deepSpeedSchema, options, what);
  if (settings.initScale >= settings.minScale) return settings;
  throw new InvalidArgumentError(
    `${what}: initScale (${settings.initScale}) is below minScale (${settings.minScale}). Start at the minimum or above.`,
  );
}
