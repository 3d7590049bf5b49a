import { z } from 'zod';
import { checkGroup } from '../comm/group-argument';
import { InvalidArgumentError } from '../core/errors';
import { parseOptions } from '../core/options';
import { ReduceOp } from '../core/reduce-op';
import {
  type DeepSpeedScaleOptions,
  LossScale,
  type LossScaleState,
  type TorchScaleOptions,
} from '../optim/loss-scale';
import { scaleLoss } from '../optim/scale-loss';
import type { ScalableOptimizer } from '../optim/scalable-optimizer';
import type { ProcessGroup } from '../process-group/process-group';
import { Tensor } from '../tensor/tensor';

export interface GradScalerBaseOptions {
  /**
   * The ranks that step together: if a gradient of one of them overflowed, none steps. Give it where gradients differ
   * between ranks; the averages of DDP are equal on all of them, and the optimizer of zeroWrap asks its own ranks.
   */
  readonly group?: ProcessGroup | undefined;
  /** False: nothing is scaled and every step is made, so that one program runs in any precision. Default true. */
  readonly enabled?: boolean | undefined;
}

/** The options of a loss scale by PyTorch's rule (default) or DeepSpeed's, and of the ranks that share it. */
export type GradScalerOptions = GradScalerBaseOptions & (TorchScaleOptions | DeepSpeedScaleOptions);

const schema = z.object({ enabled: z.boolean().default(true) });

/** What was done with an optimizer since the last `update`; before, it is ready. */
interface Progress {
  readonly hasOverflowed: boolean;
  isStepped: boolean;
}

/**
 * Scales losses up, so that small gradients survive float16, and steps only where no gradient has overflowed.
 *
 *     const scaler = new GradScaler({ group: world.group });
 *     const loss = await autocast({ dtype: 'float16' }, () => lossOf(model, batch));
 *     await scaler.scale(loss).backward();
 *     await scaler.unscale(optimizer); // only before you read gradients, say to clip them
 *     await optimizer.clipGradNorm(1);
 *     await scaler.step(optimizer);
 *     await scaler.update();
 *     optimizer.zeroGrad();
 *
 * Ranks decide together, see `group`: all step or none, and the scale is the same on all. Several optimizers may share a
 * scaler: each steps unless its own gradients overflowed, and one `update` follows. After torch.amp.GradScaler.
 */
export class GradScaler {
  /** Whether losses are scaled at all. */
  readonly isEnabled: boolean;
  readonly #group: ProcessGroup | undefined;
  readonly #lossScale: LossScale;
  readonly #progress = new Map<ScalableOptimizer, Progress>();
  #pendingCall: string | undefined;

  /** @throws InvalidArgumentError for options that do not parse, or a group that this rank is not in */
  constructor(options: GradScalerOptions = {}) {
    const { group, enabled, ...rule } = options;
    this.#lossScale = new LossScale(rule, 'new GradScaler');
    this.isEnabled = parseOptions(schema, { enabled }, 'new GradScaler').enabled;
    if (group !== undefined) checkGroup(group, 'new GradScaler');
    if (group?.isMember === false) {
      throw new InvalidArgumentError(
        `new GradScaler: this rank is not a member of the group (ranks ${group.ranks.join(', ')}). Make a scaler only where group.isMember is true.`,
        { op: 'new GradScaler' },
      );
    }
    this.#group = group;
  }

  /** The factor in use; 1 if the scaler is not enabled. */
  getScale(): number {
    return this.isEnabled ? this.#lossScale.scale : 1;
  }

  /**
   * `loss` times the scale; call backward() on that. In a backward that was scaled so, a module of zeroWrap leaves its own
   * loss scale out.
   */
  scale(loss: Tensor): Tensor {
    this.#refuseIfPending('scale()');
    if (!(loss instanceof Tensor)) {
      throw new InvalidArgumentError(`scale: expected a tensor, the loss, got ${typeof loss}.`);
    }
    return this.isEnabled ? scaleLoss(loss, this.#lossScale.scale) : loss;
  }

  /**
   * Divide the gradients of the optimizer's parameters by the scale, and find out whether one is NaN or infinite, on any
   * rank of the group. 16-bit gradients become float32 ones. Once between two updates; `step` does it if you have not.
   * @throws InvalidArgumentError if they were divided before, or the optimizer has stepped, since the last `update`
   */
  async unscale(optimizer: ScalableOptimizer): Promise<void> {
    return this.#exclusively('unscale()', async () => {
      if (!this.isEnabled) return;
      const progress = this.#progress.get(optimizer);
      if (progress === undefined) return void (await this.#unscale(optimizer));
      throw new InvalidArgumentError(
        progress.isStepped
          ? 'unscale: this optimizer has stepped since the last update(), so it is too late. Call unscale() before step(), and update() after it.'
          : 'unscale: the gradients of this optimizer were unscaled already since the last update(); a second time they would be too small. Call update() once per step.',
      );
    });
  }

  /**
   * Make the optimizer's step, unless a gradient has overflowed.
   * @returns whether the step was made; the same on all ranks of the group
   * @throws InvalidArgumentError if it was made already since the last `update`
   */
  async step(optimizer: ScalableOptimizer): Promise<boolean> {
    return this.#exclusively('step()', async () => {
      if (!this.isEnabled) {
        await optimizer.step();
        return true;
      }
      const progress = this.#progress.get(optimizer) ?? (await this.#unscale(optimizer));
      if (progress.isStepped) {
        throw new InvalidArgumentError(
          'step: this optimizer has stepped already since the last update(). Call `await scaler.update()` after each step.',
        );
      }
      if (!progress.hasOverflowed) await optimizer.step();
      progress.isStepped = true;
      return !progress.hasOverflowed;
    });
  }

  /**
   * Adapt the scale to what the optimizers found since the last call, or set it to `newScale`. Once, after the last step.
   * @throws InvalidArgumentError if no optimizer was unscaled or stepped since, or `newScale` is no float32 above 0
   */
  async update(newScale?: number): Promise<void> {
    return this.#exclusively('update()', async () => {
      if (!this.isEnabled) return;
      if (newScale !== undefined) this.#lossScale.set(newScale, 'update: newScale');
      else this.#lossScale.update(this.#hasOverflowed());
      this.#progress.clear();
    });
  }

  /** The rule and where it stands; JSON-safe. */
  stateDict(): LossScaleState {
    this.#refuseIfPending('stateDict()');
    return this.#lossScale.stateDict();
  }

  /** @throws InvalidArgumentError, with nothing changed, unless the state is of a scaler with the same rule */
  loadStateDict(state: LossScaleState): void {
    this.#refuseIfPending('loadStateDict()');
    this.#lossScale.loadStateDict(state, 'GradScaler.loadStateDict');
  }

  async #unscale(optimizer: ScalableOptimizer): Promise<Progress> {
    const isOverflowHere = await optimizer.unscaleGradients(1 / this.#lossScale.scale);
    // gradients are divided now, whatever becomes of the other ranks
    this.#progress.set(optimizer, { hasOverflowed: true, isStepped: false });
    const progress = { hasOverflowed: await this.#onAnyRank(isOverflowHere), isStepped: false };
    this.#progress.set(optimizer, progress);
    return progress;
  }

  async #onAnyRank(isOverflowHere: boolean): Promise<boolean> {
    if (this.#group === undefined) return isOverflowHere;
    const flag = Uint8Array.of(isOverflowHere ? 1 : 0);
    await this.#group.allReduce(Tensor.wrap(flag), ReduceOp.Max);
    return flag[0] === 1;
  }

  #hasOverflowed(): boolean {
    const all = [...this.#progress.values()];
    if (all.length > 0) return all.some((progress) => progress.hasOverflowed);
    throw new InvalidArgumentError(
      'update: no optimizer was unscaled or stepped since the last update(), so nothing is known of its gradients. Call `await scaler.step(optimizer)` first, instead of optimizer.step().',
    );
  }

  async #exclusively<T>(call: string, run: () => Promise<T>): Promise<T> {
    this.#refuseIfPending(call);
    this.#pendingCall = call;
    try {
      return await run();
    } finally {
      this.#pendingCall = undefined;
    }
  }

  #refuseIfPending(call: string): void {
    if (this.#pendingCall === undefined) return;
    throw new InvalidArgumentError(
      `scaler.${call}: the previous call was not awaited: scaler.${this.#pendingCall} is still at work. ` +
        `Write \`await scaler.${this.#pendingCall}\`.`,
    );
  }
}
