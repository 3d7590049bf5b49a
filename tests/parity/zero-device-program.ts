/** One training for every place where shards may be: what happens in it, a real program may do between two steps. */
import type { OptimizerState } from '../../src/optim/optimizer-state';
import { Adam, AdamW } from '../../src/optim/adam';
import type { Optimizer } from '../../src/optim/optimizer';
import { SGD } from '../../src/optim/sgd';
import { StepLR } from '../../src/optim/step-lr';
import { Generator } from '../../src/core/generator';
import { Linear } from '../../src/nn/linear';
import { mseLoss } from '../../src/nn/losses';
import { Module } from '../../src/nn/module';
import { Parameter } from '../../src/nn/parameter';
import type { World } from '../../src/process-group/world';
import { Tensor } from '../../src/tensor/tensor';
import { withFullParameters } from '../../src/zero/full-parameters';
import { zeroWrap } from '../../src/zero/zero';
import type { ZeroOptions } from '../../src/zero/zero-options';
import { numbers } from '../unit/zero/training';

export const STEPS = 20;

export interface Branches {
  readonly left: boolean;
  readonly right: boolean;
}

/** 3 inputs, 2 outputs: parameters of every kind that a device can step, and a frozen one that it could not. */
export class Net extends Module<[Tensor, Branches]> {
  readonly first: Linear;
  readonly left: Parameter;
  readonly right: Parameter;
  readonly never: Parameter;
  readonly empty = new Parameter(Tensor.zeros([0, 5]));
  readonly half: Parameter;
  readonly frozen: Parameter;
  readonly last: Linear;

  constructor(seed: number) {
    super();
    const generator = new Generator(seed);
    const draw = (size: number): Tensor => Tensor.randn([size], { generator });
    this.first = new Linear(3, 5, { generator });
    this.left = new Parameter(draw(5));
    this.right = new Parameter(draw(5));
    this.never = new Parameter(draw(2));
    this.half = new Parameter(draw(5).to('bfloat16'));
    this.frozen = new Parameter(Tensor.ones([5], { dtype: 'float64' }), { requiresGrad: false });
    this.last = new Linear(5, 2, { generator });
  }

  override async forward(x: Tensor, use: Branches): Promise<Tensor> {
    const wide = (tensor: Tensor): Tensor => tensor.to('float32');
    let y = wide(await this.first.forward(x)).add(wide(this.empty.sum(0)));
    if (use.left) y = y.mul(wide(this.left));
    if (use.right) y = y.add(wide(this.right));
    y = y.mul(wide(this.half)).mul(wide(this.frozen));
    return this.last.forward(y.tanh());
  }
}

/** Matrices decay; the others do not, and learn at another rate. */
function grouped(net: Net, decay: object, others: object) {
  const trainable = net.parameters().filter(({ requiresGrad }) => requiresGrad);
  return [
    { params: trainable.filter(({ shape }) => shape.length > 1), ...decay },
    { params: trainable.filter(({ shape }) => shape.length <= 1), ...others },
  ];
}

export const optimizers: Readonly<Record<string, (net: Net) => Optimizer>> = {
  SGD: (net) => new SGD(grouped(net, { weightDecay: 0.1 }, { lr: 0.02 }), { lr: 0.05 }),
  'SGD with momentum': (net) => new SGD(grouped(net, { momentum: 0.9, dampening: 0.2 }, {}), { lr: 0.02 }),
  'SGD with nesterov': (net) => new SGD(grouped(net, {}, { lr: 0.01 }), { lr: 0.02, momentum: 0.9, nesterov: true }),
  Adam: (net) => new Adam(grouped(net, { weightDecay: 0.1 }, { lr: 0.005 }), { lr: 0.01 }),
  AdamW: (net) => new AdamW(grouped(net, { weightDecay: 0.1 }, { betas: [0.8, 0.99] }), { lr: 0.01 }),
};

export interface DeviceRun {
  readonly losses: readonly number[];
  readonly norms: readonly number[];
  /** All parameters in the end, as numbers. */
  readonly parameters: readonly (readonly number[])[];
  readonly state: OptimizerState;
  readonly deviceBytes: number;
}

export async function trainOnDevice(
  world: World,
  optimizerFor: (net: Net) => Optimizer,
  options: ZeroOptions,
): Promise<DeviceRun> {
  const { module, optimizer } = await zeroWrap(new Net(1), optimizerFor, world.group, {
    bucketCapMb: 100 / 2 ** 20,
    mergeThreshold: 10,
    ...options,
  });
  const scheduler = new StepLR(optimizer, { stepSize: 4, gamma: 0.7 });
  const losses: number[] = [];
  const norms: number[] = [];
  for (let step = 0; step < STEPS; step++) {
    const backward = async (part: number): Promise<void> => {
      const x = Tensor.from(numbers(100 * step + 10 * part + world.rank, 6), [2, 3]);
      const use = { left: step % 3 > 0, right: step % 5 > 0 || world.rank === 0 };
      const output = await module.forward(x, use);
      const loss = mseLoss(output, Tensor.ones([2, 2]));
      losses.push(loss.item());
      await loss.backward();
    };
    if (step % 2 === 0) await module.noSync(() => backward(1));
    await backward(0);
    if (step % 7 === 3) await backward(2); // averages that add up are kept in float32
    if (step % 4 > 0) norms.push(await optimizer.clipGradNorm(0.5));
    await optimizer.step();
    scheduler.step();
    optimizer.zeroGrad();
    await interfere(step);
  }

  /** What a program does between two steps. */
  async function interfere(step: number): Promise<void> {
    if (step === 6) {
      const weights = await withFullParameters(module, () => new Net(9).stateDict());
      await withFullParameters(module, () => module.loadStateDict(weights));
    }
    if (step === 9) {
      // not all elements, and by a way that is not reported
      await withFullParameters(module, () => {
        const { data, dtype } = module.module.first.weight;
        (data as Uint8Array).set(Tensor.full([7], 0.25).to(dtype).data as Uint8Array, 2);
      });
    }
    if (step === 12) optimizer.loadStateDict(await optimizer.stateDict());
  }

  const parameters = await withFullParameters(module, () =>
    module.parameters().map((parameter) => Array.from(parameter.to('float64').data as Float64Array)),
  );
  const { deviceBytes } = optimizer;
  return { losses, norms, parameters, state: await optimizer.stateDict(), deviceBytes };
}
