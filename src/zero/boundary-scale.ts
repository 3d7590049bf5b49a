import { InvalidArgumentError } from '../core/errors';
import { LossScale, type LossScaleOptions, type LossScaleState } from '../optim/loss-scale';
import { BackwardSession } from '../tensor/backward-session';

/** Who has scaled the gradients that are there. */
type ScaledBy = 'boundary' | 'scaler';

/**
 * The loss scale that a module in float16 applies by itself, where backward enters it.
 *
 * [Note: boundary scale] Gradients are multiplied by the scale where they enter the module, at its outputs, and divided
 * where they leave it, at its inputs: only those of its parameters stay scaled, in 16 bits, until the optimizer uses them.
 * Where a GradScaler has scaled the whole loss, the boundary leaves gradients alone. All ranks take the same turns, since
 * the optimizer decides with all of them whether a gradient has overflowed.
 *
 * The optimizer, in this order: `needsVerdict`, then `judge` with what all ranks have found, before it clips or steps;
 * `gradientFactor` times the stored gradients are the true ones; `finishStep` after a step that was made or left out.
 */
export class BoundaryScale {
  readonly #lossScale: LossScale;
  readonly #hasGradients: () => boolean;
  #scaledBy: ScaledBy | undefined;
  /** Known once all ranks have been asked. */
  #hasOverflowed: boolean | undefined;
  #gradientFactor = 1;
  #isCounted = false;

  /** @param hasGradients whether a parameter has any gradient on this rank, averaged or not */
  constructor(options: LossScaleOptions | undefined, hasGradients: () => boolean) {
    this.#lossScale = new LossScale(options, 'zeroWrap: lossScale');
    this.#hasGradients = hasGradients;
  }

  get scale(): number {
    return this.#lossScale.scale;
  }

  /** What the gradients that run through the module in this backward are multiplied by. */
  get factor(): number {
    return scalerOfBackward() === 'scaler' ? 1 : this.scale;
  }

  /**
   * A backward enters the module. @returns what to multiply its gradients by
   * @throws InvalidArgumentError if the gradients that are there are scaled otherwise, or were used already
   */
  enter(): number {
    const by = scalerOfBackward();
    if (!this.#hasGradients()) this.#reset();
    if (this.#hasOverflowed !== undefined) {
      throw new InvalidArgumentError(
        'backward: step() or clipGradNorm() has used the gradients that are there, at the loss scale of then, and those of this backward would not fit them. Call optimizer.zeroGrad() before it.',
      );
    }
    if (this.#scaledBy !== undefined && this.#scaledBy !== by) {
      throw new InvalidArgumentError(
        'backward: one backward was scaled by a GradScaler and another was not, and their gradients do not add up. Call scaler.scale(loss).backward() in all of them, or leave the GradScaler out: zeroWrap with float16 scales by itself.',
      );
    }
    this.#scaledBy = by;
    return this.factor;
  }

  /**
   * Whether all ranks have to be asked for an overflow before gradients are used. The same on every rank.
   * @throws InvalidArgumentError if a GradScaler has scaled the gradients, and has not unscaled them
   */
  needsVerdict(operation: string): boolean {
    if (this.#scaledBy === undefined || this.#hasOverflowed !== undefined) return false;
    if (this.#scaledBy === 'boundary') return true;
    throw new InvalidArgumentError(
      `${operation}: a GradScaler has scaled these gradients. Call \`await scaler.unscale(optimizer)\` before it, and \`await scaler.step(optimizer)\` instead of optimizer.step().`,
    );
  }

  /** What all ranks have found: whether a gradient of one of them is NaN or infinite. */
  judge(hasOverflowed: boolean): void {
    this.#hasOverflowed = hasOverflowed;
    this.#gradientFactor = 1 / this.scale;
  }

  /** Whether the step with these gradients is to be left out. */
  get hasOverflowed(): boolean {
    return this.#scaledBy === 'boundary' && this.#hasOverflowed === true;
  }

  /** The true gradients are this times those that are stored; 1 unless the boundary has scaled them. */
  get gradientFactor(): number {
    return this.#gradientFactor;
  }

  /** Clip: make the true gradients smaller, without touching the 16-bit ones. */
  multiply(coefficient: number): void {
    this.#gradientFactor *= coefficient;
  }

  /** A GradScaler is about to unscale the stored gradients. @throws InvalidArgumentError if it has not scaled them */
  enterUnscale(): void {
    if (this.#scaledBy === 'boundary') {
      throw new InvalidArgumentError(
        'unscale: zeroWrap with float16 has scaled these gradients by itself, not the GradScaler. Call scaler.scale(loss).backward(), or leave the GradScaler out and call optimizer.step().',
      );
    }
    if (this.#scaledBy === 'scaler') this.#hasOverflowed = false; // the GradScaler knows; here they are right from now on
  }

  /** A step was made, or left out because of an overflow: adapt the scale, once for these gradients. */
  finishStep(): void {
    if (this.#scaledBy !== 'boundary' || this.#hasOverflowed === undefined || this.#isCounted) return;
    this.#isCounted = true;
    this.#lossScale.update(this.#hasOverflowed);
  }

  stateDict(): LossScaleState {
    return this.#lossScale.stateDict();
  }

  /** @throws InvalidArgumentError for what `loadStateDict` would refuse; undefined is as good as the present state */
  checkState(state: unknown): void {
    if (state === undefined) return;
    const present = this.stateDict();
    this.loadStateDict(state);
    this.loadStateDict(present);
  }

  /** @throws InvalidArgumentError, with nothing changed, for what is no such state */
  loadStateDict(state: unknown): void {
    this.#lossScale.loadStateDict(state, 'zeroWrap: lossScale');
  }

  #reset(): void {
    this.#scaledBy = undefined;
    this.#hasOverflowed = undefined;
    this.#gradientFactor = 1;
    this.#isCounted = false;
  }
}

function scalerOfBackward(): ScaledBy {
  return BackwardSession.current()?.isLossScaled === true ? 'scaler' : 'boundary';
}
