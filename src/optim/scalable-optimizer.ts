/** What a GradScaler needs of an optimizer. `Optimizer` is one, and so is what `zeroWrap` returns. */
export interface ScalableOptimizer {
  readonly paramGroups: readonly { lr: number }[];

  /**
   * Multiply all gradients by `factor`, once they are synchronised. 16-bit gradients become float32 ones, since what was
   * scaled up to be representable would vanish again.
   * @returns whether any gradient, on any rank that shares this optimizer's state, is NaN or infinite
   */
  unscaleGradients(factor: number): Promise<boolean>;

  step(): Promise<void>;
}
