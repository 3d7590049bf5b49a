/** Stages 2 and 3 use the memory of buckets again: nothing of an earlier one may show in a later one. */
import { createHash } from 'node:crypto';
import { Generator } from '../../../src/core/generator';
import { memory } from '../../../src/core/memory-account';
import { Module } from '../../../src/nn/module';
import { Parameter } from '../../../src/nn/parameter';
import { SGD } from '../../../src/optim/sgd';
import { Tensor } from '../../../src/tensor/tensor';
import { runWorld } from '../../../src/testing/run-world';
import { wrap, type Way } from './training';

/** Large enough that a layer is not left to the collector. */
const WIDTH = 128;

class Square extends Module {
  readonly weight: Parameter;

  constructor(phase: number) {
    super();
    // not drawn: that takes longer than all the rest
    const values = Float32Array.from({ length: WIDTH * WIDTH }, (_unused, i) => Math.sin(i + phase) / WIDTH);
    this.weight = new Parameter(Tensor.from(values, [WIDTH, WIDTH]));
  }

  override async forward(x: Tensor): Promise<Tensor> {
    return x.matmul(this.weight);
  }
}

const LAYERS = 6;

/** Layers of the same size, more than there are buckets in flight, of which each call uses some. */
class Row extends Module<[Tensor, readonly number[]]> {
  readonly layers = Array.from({ length: LAYERS }, (_unused, phase) => new Square(phase));

  override async forward(x: Tensor, used: readonly number[]): Promise<Tensor> {
    const outputs = await Promise.all(used.map((index) => (this.layers[index] as Square).forward(x)));
    return outputs.reduce((sum, output) => sum.add(output)).mul(outputs[0] as Tensor);
  }
}

type Used = readonly (readonly [readonly number[], readonly number[]])[];

const ALL = [0, 1, 2, 3, 4, 5];
const EVEN = [0, 2, 4];
const ODD = [1, 3, 5];

/** Which layers rank 0 and rank 1 use, by step; stage 3 gathers a unit for all or none. */
const USED: Record<'same' | 'different', Used> = {
  same: [
    [ALL, ALL],
    [EVEN, EVEN],
    [ODD, ODD],
  ],
  different: [
    [ALL, EVEN],
    [EVEN, ODD],
  ],
};

const digest = (bits: string): string => createHash('sha256').update(bits).digest('hex');

async function train(way: Way, used: Used): Promise<{ bits: string[]; held: Set<number> }> {
  const [first] = await runWorld(2, async (world) => {
    const options = { bucketCapMb: 1e-6, mergeThreshold: 0 };
    const trained = await wrap(way, new Row(), (model) => new SGD(model.parameters(), { lr: 1e-3 }), world, options);
    const held = new Set<number>();
    for (const [step, byRank] of used.entries()) {
      const x = Tensor.randn([2, WIDTH], { generator: new Generator(2 * step + world.rank) });
      await (await trained.forward(x, byRank[world.rank] ?? [])).sum().backward();
      await trained.optimizer.step();
      trained.optimizer.zeroGrad();
      const { gradients, communication } = memory.stats().live;
      held.add(gradients + communication);
    }
    return { bits: (await trained.bits()).map(digest), held };
  });
  return first as { bits: string[]; held: Set<number> };
}

test.each([
  [2, 'same'],
  [2, 'different'],
  [3, 'same'],
] as const)(
  'stage %i, ranks that use the %s layers: the bits of DDP, and idle memory is in no account',
  async (way, ranks) => {
    const { bits, held } = await train(way, USED[ranks]);
    expect(bits).toEqual((await train('ddp', USED[ranks])).bits);
    expect([...held]).toEqual([0]);
  },
);
