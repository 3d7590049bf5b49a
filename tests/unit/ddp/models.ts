/** Small modules that the DDP tests train, and the world they do it in. */
import { Generator } from '../../../src/core/generator';
import { crossEntropy } from '../../../src/nn/losses';
import { Linear } from '../../../src/nn/linear';
import { Module } from '../../../src/nn/module';
import { Parameter } from '../../../src/nn/parameter';
import type { World } from '../../../src/process-group/world';
import { Tensor } from '../../../src/tensor/tensor';
import { runWorld } from '../../../src/testing/index';

/** A mock world that also refuses what would hang or mix on NCCL: the whole DDP suite runs in it. */
export function runPortable<R>(size: number, program: (world: World) => Promise<R>): Promise<R[]> {
  return runWorld(size, program, { portable: true });
}

/** 6 inputs, 8 hidden, 3 classes; the initial values depend on `seed`. */
export class Mlp extends Module {
  readonly fc1: Linear;
  readonly fc2: Linear;

  constructor(seed = 1) {
    super();
    const generator = new Generator(seed);
    this.fc1 = new Linear(6, 8, { generator });
    this.fc2 = new Linear(8, 3, { generator });
  }

  override async forward(x: Tensor): Promise<Tensor> {
    return this.fc2.forward((await this.fc1.forward(x)).tanh());
  }
}

/** Two weights of which forward uses those that it is told to. */
export class Branches extends Module<[Tensor, { readonly left: boolean; readonly right: boolean }]> {
  readonly left = new Parameter(Tensor.from([1, 2]));
  readonly right = new Parameter(Tensor.from([3, 4]));

  override async forward(x: Tensor, use: { readonly left: boolean; readonly right: boolean }): Promise<Tensor> {
    let y = x.mul(0);
    if (use.left) y = y.add(x.mul(this.left));
    if (use.right) y = y.add(x.mul(this.right));
    return y;
  }
}

/** `size` samples of 6 numbers and their classes, the same for the same seed. */
export function batchOf(seed: number, size: number): { readonly x: Tensor; readonly labels: Tensor } {
  const generator = new Generator(seed);
  const x = Tensor.randn([size, 6], { generator });
  return { x, labels: Tensor.from(Int32Array.from({ length: size }, () => generator.nextBelow(3))) };
}

export async function lossOf(model: Module, { x, labels }: { x: Tensor; labels: Tensor }): Promise<Tensor> {
  return crossEntropy(await model.forward(x), labels);
}

/** The elements of all tensors, one after the other. */
export function flat(tensors: readonly (Tensor | undefined)[]): number[] {
  return tensors.flatMap((tensor) => (tensor === undefined ? [] : Array.from(tensor.data as Float32Array)));
}

export function gradientsOf(model: Module): number[] {
  return flat(model.parameters().map(({ grad }) => grad));
}
