import { invariant } from '../core/invariant';
import { BackwardSession } from '../tensor/backward-session';
import { mul } from '../tensor/operators/arithmetic';
import { applyOperator, type Tensor } from '../tensor/tensor';

/** `loss` times `scale`; its backward is noted as scaled, see `BackwardSession.isLossScaled`. */
export function scaleLoss(loss: Tensor, scale: number): Tensor {
  return applyOperator('scaleLoss', [loss], (x) => ({
    output: mul(x, scale).output,
    saves: [],
    backward: (gradient) => {
      const session = BackwardSession.current();
      invariant(session !== undefined, 'a backward runs in a session');
      session.noteLossScaled();
      return [mul(gradient, scale).output];
    },
  }));
}
