import { z } from 'zod';
import { parseOptions } from '../core/options';
import { InvalidArgumentError } from '../core/errors';
import type { SGDUpdate } from '../core/flat-update';
import { Optimizer } from './optimizer';
import type { OptimizerParams } from './param-group';
import type { UpdateTarget } from './update-rule';

export interface SGDOptions {
  /** Learning rate; default 0.001. */
  readonly lr?: number | undefined;
  /** Default 0: none. */
  readonly momentum?: number | undefined;
  /** Part of the gradient that does not enter the momentum, from the second step on; default 0. */
  readonly dampening?: number | undefined;
  /** L2 penalty, added to the gradient; default 0. */
  readonly weightDecay?: number | undefined;
  /** Look ahead along the momentum; needs a momentum and no dampening. Default false. */
  readonly nesterov?: boolean | undefined;
}

/** Complete settings of a group. */
export interface SGDSettings {
  lr: number;
  momentum: number;
  dampening: number;
  weightDecay: number;
  nesterov: boolean;
}

const schema = z.strictObject({
  lr: z.number().min(0).default(1e-3),
  momentum: z.number().min(0).default(0),
  dampening: z.number().default(0),
  weightDecay: z.number().min(0).default(0),
  nesterov: z.boolean().default(false),
});

/**
 * Stochastic gradient descent: p -= lr * d, where d = g + weightDecay * p, and with momentum d is the buffer
 * b = momentum * b + (1 - dampening) * d (b = d at the first step), or d + momentum * b with nesterov.
 * After torch.optim.SGD.
 */
export class SGD extends Optimizer<SGDSettings, SGDOptions> {
  override readonly isElementwise = true;

  /** @throws InvalidArgumentError for parameters or options that are not valid; see Optimizer */
  constructor(params: OptimizerParams<SGDOptions>, options?: SGDOptions) {
    super(params, options, parseSettings);
  }

  override stateNames(settings: SGDSettings): readonly string[] {
    return settings.momentum > 0 ? ['momentumBuffer'] : [];
  }

  override update({ parameter, gradient, state, step }: UpdateTarget, settings: SGDSettings): void {
    const { lr, momentum, taken, weightDecay, nesterov } = sgdNumbers(settings, step);
    const buffer = state['momentumBuffer'];
    if (buffer === undefined || momentum === 0) {
      for (let i = 0; i < parameter.length; i++) {
        const value = parameter[i] as number;
        parameter[i] = value - lr * ((gradient[i] as number) + weightDecay * value);
      }
      return;
    }
    for (let i = 0; i < parameter.length; i++) {
      const value = parameter[i] as number;
      const direction = (gradient[i] as number) + weightDecay * value;
      const velocity = momentum * (buffer[i] as number) + taken * direction;
      buffer[i] = velocity;
      parameter[i] = value - lr * (nesterov ? direction + momentum * velocity : velocity);
    }
  }

  override flatUpdate(settings: SGDSettings, step: number): SGDUpdate {
    return sgdNumbers(settings, step);
  }
}

function sgdNumbers({ lr, momentum, dampening, weightDecay, nesterov }: SGDSettings, step: number): SGDUpdate {
  const taken = step === 1 ? 1 : 1 - dampening;
  return { kind: 'sgd', lr, momentum, taken, weightDecay, nesterov, gradientScale: 1 };
}

function parseSettings(options: unknown, what: string): SGDSettings {
  const settings = parseOptions(schema, options, what);
  if (settings.nesterov && (settings.momentum === 0 || settings.dampening !== 0)) {
    throw new InvalidArgumentError(
      `${what}: nesterov needs a momentum above 0 and no dampening, got momentum ${settings.momentum} and dampening ` +
        `${settings.dampening}.`,
    );
  }
  return settings;
}
