import { checkpoint } from '../../../src/activation-checkpoint/activation-checkpoint';
import { checkpointSequential } from '../../../src/activation-checkpoint/checkpoint-sequential';
import { Generator } from '../../../src/core/generator';
import { memory } from '../../../src/core/memory-account';
import { DistributedDataParallel } from '../../../src/ddp/ddp';
import { Linear } from '../../../src/nn/linear';
import { Module } from '../../../src/nn/module';
import { Sequential } from '../../../src/nn/sequential';
import { Tensor } from '../../../src/tensor/tensor';
import { runWorld } from '../../../src/testing/run-world';

const WIDTH = 32;
const ROWS = 64;

class Layer extends Module {
  readonly fc: Linear;
  calls = 0;

  constructor(seed: number) {
    super();
    this.fc = new Linear(WIDTH, WIDTH, { generator: new Generator(seed) });
  }

  async forward(x: Tensor): Promise<Tensor> {
    this.calls++;
    return (await this.fc.forward(x)).tanh().mul(2).tanh();
  }
}

const makeLayers = (count: number): Layer[] => Array.from({ length: count }, (_unused, index) => new Layer(index));
const input = (seed = 99): Tensor => Tensor.randn([ROWS, WIDTH], { generator: new Generator(seed) });

test('with sqrt(n) segments the peak of activations falls as 2 sqrt(n) / n, at one more forward, with the same bits', async () => {
  const count = 16;
  const results = [];
  for (const segments of [0, 4]) {
    const layers = makeLayers(count);
    const x = input();
    const before = memory.stats().live.activations;
    memory.resetPeak();
    const y = await (segments === 0 ? new Sequential(...layers).forward(x) : checkpointSequential(layers, segments, x));
    await y.pow(2).mean().backward();
    const perLayer = 4 * ROWS * WIDTH * 4; // four results a layer
    results.push({
      gradients: layers.map((layer) => layer.fc.weight.grad?.toArray()),
      layersAtPeak: (memory.stats().peak.activations - before) / perLayer,
      calls: layers.map((layer) => layer.calls),
    });
  }
  const [plain, saving] = results as [(typeof results)[0], (typeof results)[0]];
  expect(saving.gradients).toEqual(plain.gradients);
  expect(plain.layersAtPeak).toBeGreaterThan(count);
  // three kept inputs, a quarter of a layer each, and one segment of four layers with its gradients
  expect(saving.layersAtPeak).toBeLessThan(4 + 3 / 4 + 1);
  expect(saving.calls).toEqual([...Array<number>(12).fill(2), ...Array<number>(4).fill(1)]);
});

test('takes a Sequential; every number of segments gives the same bits', async () => {
  const gradients = [];
  for (const segments of [1, 2, 3, 4, 5]) {
    const model = new Sequential(...makeLayers(5));
    await (await checkpointSequential(model, segments, input())).sum().backward();
    gradients.push(model.parameters().map((parameter) => parameter.grad?.toArray()));
  }
  for (const others of gradients) expect(others).toEqual(gradients[0]);
});

test('refuses a number of segments that cannot be', async () => {
  for (const segments of [0, 3, 1.5, NaN]) {
    await expect(checkpointSequential(makeLayers(2), segments, input())).rejects.toThrow(
      `expected a number of segments from 1 to the 2 modules, got ${segments}`,
    );
  }
});

class Model extends Module {
  readonly layers = makeLayers(3);
  readonly isCheckpointed: boolean;

  constructor(isCheckpointed: boolean) {
    super();
    this.isCheckpointed = isCheckpointed;
  }

  async forward(x: Tensor): Promise<Tensor> {
    let h = x;
    for (const layer of this.layers) {
      h = this.isCheckpointed ? await checkpoint((v: Tensor) => layer.forward(v), h) : await layer.forward(h);
    }
    return h;
  }
}

test('inside DistributedDataParallel it gives the bits of a run without, bucket by bucket', async () => {
  const train = async (isCheckpointed: boolean): Promise<unknown[]> =>
    runWorld(2, async (world) => {
      const ddp = new DistributedDataParallel(new Model(isCheckpointed), world.group, { bucketCapMb: 0.001 });
      for (const step of [0, 1]) {
        await (await ddp.forward(input(world.rank + 10 * step))).pow(2).mean().backward();
        await ddp.syncGradients();
      }
      return ddp.parameters().map((parameter) => parameter.grad?.toArray());
    });
  expect(await train(true)).toEqual(await train(false));
});
