/** The sharded training runs of ddp.json: four ranks of 16 digits a step, whole and in two micro-batches. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { DistributedDataParallel } from '../../src/ddp/ddp';
import { Linear } from '../../src/nn/linear';
import { crossEntropy } from '../../src/nn/losses';
import { Module } from '../../src/nn/module';
import { AdamW } from '../../src/optim/adam';
import { SGD } from '../../src/optim/sgd';
import type { World } from '../../src/process-group/world';
import { Tensor } from '../../src/tensor/tensor';
import { runWorld } from '../../src/testing/index';

interface Golden {
  readonly mlp: {
    readonly config: {
      readonly layers: readonly [number, number, number];
      readonly activation: 'tanh';
      readonly firstRow: number;
      readonly steps: number;
      readonly world: number;
      readonly microBatches: number;
      readonly rankRows: readonly (readonly (readonly [number, number])[])[];
    };
    readonly optimizers: Readonly<Record<'sgd' | 'adamw', Readonly<Record<string, unknown>>>>;
    readonly initial: Readonly<Record<string, { readonly shape: readonly number[]; readonly data: readonly number[] }>>;
  };
  readonly mlpReferenceFloat64: Readonly<
    Record<
      'sgd' | 'adamw',
      { readonly losses: readonly number[]; readonly final: Readonly<Record<string, readonly number[]>> }
    >
  >;
  readonly mlpRuns: Readonly<Record<string, { readonly rankLossesFloat64?: readonly (readonly number[])[] }>>;
}

const root = join(__dirname, '..', '..');
const golden = JSON.parse(readFileSync(join(root, 'tests', 'fixtures', 'golden', 'ddp.json'), 'utf8')) as Golden;
const { config, initial, optimizers } = golden.mlp;
const rows = gunzipSync(readFileSync(join(root, 'data', 'digits.csv.gz')))
  .toString('utf8')
  .trim()
  .split('\n')
  .map((line) => line.split(',').map(Number));

class GoldenMlp extends Module {
  readonly fc1 = new Linear(config.layers[0], config.layers[1]);
  readonly fc2 = new Linear(config.layers[1], config.layers[2]);

  constructor() {
    super();
    const value = (name: string): Tensor => Tensor.from(initial[name]?.data ?? [], initial[name]?.shape);
    this.loadStateDict({
      'fc1.weight': value('fc1Weight'),
      'fc1.bias': value('fc1Bias'),
      'fc2.weight': value('fc2Weight'),
      'fc2.bias': value('fc2Bias'),
    });
  }

  override async forward(x: Tensor): Promise<Tensor> {
    return this.fc2.forward((await this.fc1.forward(x)).tanh());
  }
}

function samples(from: number, to: number): { x: Tensor; labels: Tensor } {
  const chosen = rows.slice(config.firstRow + from, config.firstRow + to);
  const x = Tensor.from(
    chosen.flatMap((row) => row.slice(0, 64).map((pixel) => pixel / 16)),
    [chosen.length, 64],
  );
  return { x, labels: Tensor.from(Int32Array.from(chosen, (row) => row[64] as number)) };
}

async function train(
  world: World,
  name: 'sgd' | 'adamw',
  microBatches: number,
): Promise<{ losses: number[]; final: Record<string, number[]> }> {
  const ddp = new DistributedDataParallel(new GoldenMlp(), world.group);
  const { name: _class, ...options } = optimizers[name];
  const optimizer = name === 'sgd' ? new SGD(ddp.parameters(), options) : new AdamW(ddp.parameters(), options);
  const losses: number[] = [];
  for (let step = 0; step < config.steps; step++) {
    const [from, to] = config.rankRows[world.rank]?.[step] as readonly [number, number];
    const size = (to - from) / microBatches;
    let total = 0;
    for (let part = 0; part < microBatches; part++) {
      const { x, labels } = samples(from + part * size, from + (part + 1) * size);
      const backward = async (): Promise<void> => {
        const loss = crossEntropy(await ddp.forward(x), labels).div(microBatches);
        total += loss.item();
        await loss.backward();
      };
      await (part < microBatches - 1 ? ddp.noSync(backward) : backward());
    }
    losses.push(total);
    await ddp.syncGradients();
    await optimizer.step();
    optimizer.zeroGrad();
  }
  const values = (tensor: Tensor): number[] => Array.from(tensor.data as Float32Array);
  const { fc1, fc2 } = ddp.module;
  const final = {
    fc1Weight: values(fc1.weight),
    fc1Bias: values(fc1.bias as Tensor),
    fc2Weight: values(fc2.weight),
    fc2Bias: values(fc2.bias as Tensor),
  };
  return { losses, final };
}

describe.each(['sgd', 'adamw'] as const)('%s', (name) => {
  test.each([
    ['whole batches', `${name}.ranks`, 1],
    ['micro-batches', `${name}.ranksAccumulated`, config.microBatches],
  ])('four ranks, %s: losses to 1e-5, final parameters to 5e-6', async (_kind, run, microBatches) => {
    const results = await runWorld(config.world, (world) => train(world, name, microBatches), { portable: true });
    const reference = golden.mlpReferenceFloat64[name];
    const rankLosses = golden.mlpRuns[run]?.rankLossesFloat64 as readonly (readonly number[])[];
    results.forEach(({ losses, final }, rank) => {
      losses.forEach((loss, step) => {
        const want = rankLosses[step]?.[rank] as number;
        expect(Math.abs(loss - want)).toBeLessThanOrEqual(1e-5 * Math.abs(want));
      });
      for (const [parameter, want] of Object.entries(reference.final)) {
        const got = final[parameter] as number[];
        expect(got).toHaveLength(want.length);
        const distance = Math.max(...want.map((value, i) => Math.abs(value - (got[i] as number))));
        expect({ parameter, isNear: distance <= 5e-6, distance }).toMatchObject({ isNear: true });
      }
    });
  });
});
