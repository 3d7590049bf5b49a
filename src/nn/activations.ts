/** Activation functions as modules, for Sequential; each is the Tensor method of its name. */
import { InvalidArgumentError } from '../core/errors';
import type { Tensor } from '../tensor/tensor';
import { Module } from './module';

/** The exact GELU ('none'; 'exact' is the same), or its approximation by tanh. */
export type GeluForm = 'none' | 'exact' | 'tanh';

/** max(x, 0) */
export class ReLU extends Module {
  async forward(x: Tensor): Promise<Tensor> {
    return x.relu();
  }
}

/** x times the normal distribution function of x (Hendrycks and Gimpel, 2016), or its approximation by tanh. */
export class GELU extends Module {
  readonly form: GeluForm;

  /** @throws InvalidArgumentError for an unknown form */
  constructor(form: GeluForm = 'none') {
    super();
    this.form = checkGeluForm(form, 'new GELU');
  }

  async forward(x: Tensor): Promise<Tensor> {
    return x.gelu(this.form === 'tanh' ? 'tanh' : 'none');
  }
}

/** x * sigmoid(x) */
export class SiLU extends Module {
  async forward(x: Tensor): Promise<Tensor> {
    return x.silu();
  }
}

export class Tanh extends Module {
  async forward(x: Tensor): Promise<Tensor> {
    return x.tanh();
  }
}

/** 1 / (1 + exp(-x)) */
export class Sigmoid extends Module {
  async forward(x: Tensor): Promise<Tensor> {
    return x.sigmoid();
  }
}

/** exp(x) divided by its sum along `dim`, by default the last one. */
export class Softmax extends Module {
  readonly dim: number;

  constructor(dim = -1) {
    super();
    this.dim = dim;
  }

  async forward(x: Tensor): Promise<Tensor> {
    return x.softmax(this.dim);
  }
}

export function checkGeluForm(form: unknown, what: string): GeluForm {
  if (form === 'none' || form === 'exact' || form === 'tanh') return form;
  throw new InvalidArgumentError(`${what}: expected 'none' (exact) or 'tanh', got ${String(form)}.`);
}
