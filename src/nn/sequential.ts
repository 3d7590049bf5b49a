import { InvalidArgumentError } from '../core/errors';
import type { Tensor } from '../tensor/tensor';
import { Module } from './module';

/**
 * Modules one after the other: each takes the output of the one before. Their names are '0', '1', ..., so that a
 * parameter is called `0.weight`, as in PyTorch.
 */
export class Sequential extends Module implements Iterable<Module> {
  readonly [index: number]: Module;
  declare readonly length: number;

  /** @throws InvalidArgumentError for anything that is not a Module */
  constructor(...modules: Module[]) {
    super();
    Object.defineProperty(this, 'length', { value: modules.length });
    for (const [index, module] of modules.entries()) {
      if (!(module instanceof Module)) {
        throw new InvalidArgumentError(`new Sequential: expected a Module at index ${index}, got ${typeof module}.`);
      }
      Object.defineProperty(this, index, { value: module, writable: true, enumerable: true, configurable: true });
    }
  }

  *[Symbol.iterator](): IterableIterator<Module> {
    for (let index = 0; index < this.length; index++) yield this[index] as Module;
  }

  async forward(input: Tensor): Promise<Tensor> {
    let x = input;
    for (const module of this) x = await module.forward(x);
    return x;
  }
}
