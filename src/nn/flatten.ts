import type { Tensor } from '../tensor/tensor';
import { Module } from './module';

/** [batch, ...] to [batch, rest]: all dimensions from `startDim` (default 1) on become one. */
export class Flatten extends Module {
  readonly startDim: number;

  constructor(startDim = 1) {
    super();
    this.startDim = startDim;
  }

  async forward(x: Tensor): Promise<Tensor> {
    const kept = x.shape.slice(0, this.startDim);
    const rest = x.shape.slice(this.startDim).reduce((product, extent) => product * extent, 1);
    return x.reshape([...kept, rest]);
  }
}
