/** Copies between strided places: transposes, slices, concatenations, repeats. */
import type { Elements } from './kernels';
import type { StridedCopy } from './plans';
import { eachRow } from './rows';

/** Rows at least this long are copied by the engine's own `set`; shorter ones by a loop (a view costs about 60 ns). */
const LONG_ROW = 64;

export function copy(target: Elements, source: Elements, plan: StridedCopy): void {
  const last = plan.sizes.length - 1;
  const count = plan.sizes[last] as number;
  const targetStep = plan.targetStrides[last] as number;
  const sourceStep = plan.sourceStrides[last] as number;
  const isDense = targetStep === 1 && sourceStep === 1 && count >= LONG_ROW;
  eachRow(plan.sizes, plan.targetStrides, plan.sourceStrides, (targetRow, sourceRow) => {
    let targetAt = targetRow + plan.targetOffset;
    let sourceAt = sourceRow + plan.sourceOffset;
    if (isDense) {
      (target as Uint8Array).set((source as Uint8Array).subarray(sourceAt, sourceAt + count), targetAt);
      return;
    }
    for (let i = 0; i < count; i++, targetAt += targetStep, sourceAt += sourceStep) {
      target[targetAt] = source[sourceAt] as never;
    }
  });
}
