/** States that were saved in one form and are loaded in another: other ranks, other parts, other dtypes. */
import { readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import fc from 'fast-check';
import { loadCheckpoint, saveCheckpoint } from '../../../src/checkpoint/checkpoint';
import { readSafetensors } from '../../../src/checkpoint/safetensors';
import { copyBuffer, viewBuffer } from '../../../src/core/dtype';
import { Generator } from '../../../src/core/generator';
import { defaultGenerator } from '../../../src/core/random';
import { DistributedSampler } from '../../../src/data/distributed-sampler';
import { Linear } from '../../../src/nn/linear';
import { Module } from '../../../src/nn/module';
import { Parameter } from '../../../src/nn/parameter';
import { AdamW } from '../../../src/optim/adam';
import type { ScalableOptimizer } from '../../../src/optim/scalable-optimizer';
import { SGD } from '../../../src/optim/sgd';
import { ProcessGroup } from '../../../src/process-group/process-group';
import { partedState, type PartedState, type TensorPart } from '../../../src/strategy/state-parts';
import { Tensor } from '../../../src/tensor/tensor';
import { holdsAsync } from '../../helpers/property';
import { bitsOf, makeFolder, runOnDisk, SAMPLES, startRun } from './training';

let folder: string;
beforeEach(async () => {
  folder = await makeFolder();
});
afterEach(() => rm(folder, { recursive: true }));

const alone = () => ProcessGroup.mock();

describe('another number of ranks', () => {
  test.each([
    [1, 3],
    [4, 2],
    [3, 7],
  ])('%i ranks save, %i load: model, optimizer and schedule are the same', async (saved, loaded) => {
    const before = await runOnDisk(saved, async ({ group }) => {
      const run = startRun(group, 11);
      await run.train(3);
      await saveCheckpoint(folder, run.state, group, { step: 3 });
      return { bits: bitsOf(run), state: run.state.optimizer.stateDict() };
    });
    const after = await runOnDisk(loaded, async ({ group }) => {
      const run = startRun(group, 99);
      await loadCheckpoint(folder, run.state, group);
      return { bits: bitsOf(run), state: run.state.optimizer.stateDict() };
    });
    for (const rank of after) expect(rank).toEqual(before[0]);
  });

  test('every rank writes about the same', async () => {
    await runOnDisk(4, async ({ group }) => {
      const model = new Linear(64, 64, { generator: new Generator(1) });
      await saveCheckpoint(folder, { model, step: 1 }, group);
    });
    for (let rank = 0; rank < 4; rank++) {
      const { tensors } = await readSafetensors(join(folder, 'step-1', `rank-${rank}.safetensors`));
      expect([...tensors.values()].reduce((size, tensor) => size + tensor.size, 0)).toBe((64 * 64 + 64) / 4);
    }
  });

  test('a rank has the random state that it had, a new one has its own, and what was equal everywhere stays equal', async () => {
    await runOnDisk(2, async ({ group }) => {
      const model = new Linear(2, 2, { generator: new Generator(1) });
      defaultGenerator().setState({ seed: 40 + group.rank, position: group.rank });
      const generator = [new Generator(7), new Generator(group.rank)];
      generator[0]!.nextFloat();
      await saveCheckpoint(folder, { model, generator, step: 1 }, group);
    });
    const load = () =>
      runOnDisk(4, async ({ group }) => {
        const generator = [new Generator(0), new Generator(0)];
        await loadCheckpoint(folder, { model: new Linear(2, 2), generator }, group);
        return [defaultGenerator().getState(), ...generator.map((one) => one.getState())];
      });
    const states = await load();
    expect(states.map(([random]) => random).slice(0, 2)).toEqual([
      { seed: 40, position: 0 },
      { seed: 41, position: 1 },
    ]);
    expect(new Set(states.map(([random]) => random!.seed)).size).toBe(4);
    expect(new Set(states.map(([, same]) => JSON.stringify(same)))).toEqual(new Set(['{"seed":7,"position":1}']));
    expect(new Set(states.map(([, , own]) => own!.seed)).size).toBe(4);
    expect(await load()).toEqual(states);
  });

  test('no sample of the epoch is left out, and less than one a rank is seen twice', async () => {
    const samplerOf = ({ rank, size }: ProcessGroup) =>
      new DistributedSampler(SAMPLES, { worldSize: size, rank, seed: 3 });
    const take = (sampler: DistributedSampler, count: number) => {
      const taken = [];
      for (const index of sampler) {
        taken.push(index);
        if (taken.length === count) break;
      }
      return taken;
    };
    const first = await runOnDisk(4, async ({ group }) => {
      const sampler = samplerOf(group);
      sampler.setEpoch(2);
      const taken = take(sampler, 2);
      const model = new Linear(2, 2, { generator: new Generator(1) });
      await saveCheckpoint(folder, { model, sampler, step: 1 }, group);
      return taken;
    });
    const rest = await runOnDisk(3, async ({ group }) => {
      const sampler = samplerOf(group);
      await loadCheckpoint(folder, { model: new Linear(2, 2), sampler }, group);
      expect(sampler.epoch).toBe(2);
      return take(sampler, Infinity);
    });
    const seen = [...first, ...rest].flat();
    expect(new Set(seen).size).toBe(SAMPLES);
    expect(seen.length - SAMPLES).toBeLessThan(3);
  });
});

/** Holds tensors in parts, cut at any elements and dealt to the ranks in any way. */
class PartedModel extends Module implements PartedState {
  readonly #tensors: ReadonlyMap<string, Tensor>;
  readonly #cuts: (name: string, size: number) => readonly number[];
  readonly #group: ProcessGroup;

  constructor(
    tensors: ReadonlyMap<string, Tensor>,
    cuts: (name: string, size: number) => readonly number[],
    group: ProcessGroup,
  ) {
    super();
    this.#tensors = tensors;
    this.#cuts = cuts;
    this.#group = group;
  }

  override async forward(x: Tensor): Promise<Tensor> {
    return x;
  }

  get [partedState](): PartedState {
    return this;
  }

  #parts(): TensorPart[] {
    const parts: TensorPart[] = [];
    for (const [name, { shape, dtype, size, data }] of this.#tensors) {
      const cuts = [0, ...this.#cuts(name, size), size];
      for (let i = 0; i + 1 < cuts.length; i++) {
        const [start, end] = [cuts[i]!, cuts[i + 1]!];
        if ((i + name.length) % this.#group.size !== this.#group.rank) continue;
        parts.push({ name, shape, dtype, start, buffer: viewBuffer(data, start, end - start) });
      }
    }
    return parts;
  }

  async stateParts() {
    return { tensors: this.#parts(), values: { kind: 'parted' } };
  }

  async prepareStateParts(reader: Parameters<PartedState['prepareStateParts']>[0]) {
    expect(reader.values).toEqual({ kind: 'parted' });
    const changes: (() => void)[] = [];
    for (const { name, start, buffer, dtype } of this.#parts()) {
      const read = await reader.read(name, start, buffer.length, dtype);
      changes.push(() => copyBuffer(buffer, read));
    }
    return () => changes.forEach((change) => change());
  }
}

test('parts that were cut in one way are loaded in any other', async () => {
  const cutsArbitrary = fc.array(fc.double({ min: 0, max: 1, noNaN: true }), { maxLength: 5 });
  const cutter = (fractions: readonly number[]) => (_name: string, size: number) =>
    fractions.map((fraction) => Math.round(fraction * size)).sort((a, b) => a - b);
  await holdsAsync(
    'checkpoint parts',
    fc.asyncProperty(
      fc.tuple(cutsArbitrary, cutsArbitrary),
      fc.tuple(fc.integer({ min: 1, max: 4 }), fc.integer({ min: 1, max: 4 })),
      fc.uniqueArray(fc.tuple(fc.stringMatching(/^[a-c.]{1,4}$/), fc.array(fc.nat(5), { maxLength: 3 })), {
        selector: ([name]) => name,
        minLength: 1,
        maxLength: 4,
      }),
      async ([saveCuts, loadCuts], [saved, loaded], forms) => {
        const valuesOf = () =>
          new Map(
            forms.map(([name, shape], i) => [name, Tensor.randn(shape, { generator: new Generator(i + 1) })] as const),
          );
        await runOnDisk(saved, async ({ group }) => {
          await saveCheckpoint(folder, { model: new PartedModel(valuesOf(), cutter(saveCuts), group), step: 1 }, group);
        });
        const results = await runOnDisk(loaded, async ({ group }) => {
          const zeros = new Map(forms.map(([name, shape]) => [name, Tensor.zeros(shape)] as const));
          await loadCheckpoint(folder, { model: new PartedModel(zeros, cutter(loadCuts), group) }, group);
          return zeros;
        });
        // every element was loaded by one rank, the others left it at zero
        for (const [name, expected] of valuesOf()) {
          const sum = new Float32Array(expected.size);
          for (const tensors of results) tensors.get(name)!.data.forEach((value, i) => (sum[i]! += Number(value)));
          expect(sum).toEqual(expected.data);
        }
      },
    ),
    { short: 15, long: 500 },
  );
  expect((await readdir(folder)).sort()).toEqual(['step-1']);
});

describe('a plain module and optimizer', () => {
  const ownMaster = async (dtype: 'bfloat16' | 'float32') => {
    const weight = new Parameter(Tensor.from([1, 2, 3, 4]).to(dtype));
    const model = new (class extends Module {
      readonly weight = weight;
      override async forward(x: Tensor) {
        return x;
      }
    })();
    const optimizer = new SGD([weight], { lr: 2 ** -10, momentum: 0.5 });
    const step = async () => {
      weight.grad = Tensor.ones([4]).to(dtype);
      await optimizer.step();
    };
    return { model, optimizer, weight, step };
  };

  test('a float32 model gets the float32 values of one that was saved in 16 bits, and the other way round', async () => {
    const half = await ownMaster('bfloat16');
    await half.step();
    await half.step();
    await saveCheckpoint(folder, { model: half.model, optimizer: half.optimizer, step: 1 }, alone());
    const master = half.optimizer.stateOf(half.weight)!.buffers['master']!;
    expect(Array.from(master.data, Number)).not.toEqual(half.weight.toArray());

    const single = await ownMaster('float32');
    await loadCheckpoint(folder, { model: single.model, optimizer: single.optimizer }, alone());
    expect(single.weight.data).toEqual(master.data);
    expect(Object.keys(single.optimizer.stateOf(single.weight)!.buffers)).toEqual(['momentumBuffer']);

    await single.step();
    await saveCheckpoint(folder, { model: single.model, optimizer: single.optimizer, step: 2 }, alone());
    const again = await ownMaster('bfloat16');
    await loadCheckpoint(folder, { model: again.model, optimizer: again.optimizer }, alone());
    expect(again.weight.data).toEqual(single.weight.detach().to('bfloat16').data);
    expect(again.optimizer.stateOf(again.weight)!.buffers['master']!.data).toEqual(single.weight.data);
  });

  test('only the model is loaded, too; and a tied parameter under either name', async () => {
    class Tied extends Module {
      readonly a = new Linear(3, 3, { bias: false });
      readonly b = this.a;
      override async forward(x: Tensor) {
        return x;
      }
    }
    const model = new Tied();
    const optimizer = new AdamW(model.parameters());
    await saveCheckpoint(folder, { model, optimizer, step: 1 }, alone());
    const other = new Tied();
    await loadCheckpoint(folder, { model: other }, alone());
    expect(other.a.weight.data).toEqual(model.a.weight.data);
    class OnlyB extends Module {
      readonly b = new Linear(3, 3, { bias: false });
      override async forward(x: Tensor) {
        return x;
      }
    }
    await expect(loadCheckpoint(folder, { model: new OnlyB() }, alone())).rejects.toThrow(
      /no 'b.weight'.*model has no 'a.weight'/,
    );
  });

  test.each<[string, () => { model: Module; optimizer?: ScalableOptimizer; scheduler?: never }, RegExp]>([
    [
      'missing and unexpected parameters',
      () => ({ model: new Linear(2, 3, { bias: false }) }),
      /step-1: .*the model has no 'bias'/,
    ],
    ['another shape', () => ({ model: new Linear(2, 4) }), /'weight' has shape \[3, 2\] there and \[4, 2\] here/],
    [
      'another optimizer',
      () => {
        const model = new Linear(2, 3);
        return { model, optimizer: new SGD(model.parameters(), { momentum: 0.9 }) };
      },
      /another optimizer: for 'weight' this one keeps nothing, and there is also expAvg, expAvgSq/,
    ],
    [
      'other groups',
      () => {
        const model = new Linear(2, 3);
        return { model, optimizer: new AdamW([{ params: [model.weight] }, { params: [model.bias!] }]) };
      },
      /has 1 parameter groups, this one has 2/,
    ],
    [
      'a state that was not saved',
      () => ({ model: new Linear(2, 3), scheduler: { stateDict() {}, loadStateDict() {} } as never }),
      /no state of the scheduler/,
    ],
  ])('%s: refused, naming it, with nothing changed', async (_name, make, message) => {
    const model = new Linear(2, 3);
    const optimizer = new AdamW(model.parameters());
    model.parameters().forEach((parameter) => (parameter.grad = Tensor.ones(parameter.shape)));
    await optimizer.step();
    await saveCheckpoint(folder, { model, optimizer, step: 1 }, alone());
    await runOnDisk(2, async ({ group }) => {
      const state = make();
      const before = state.model.stateDict();
      const random = defaultGenerator().getState();
      await expect(loadCheckpoint(folder, state, group)).rejects.toMatchObject({
        code: 'LOCKSTEP_INVALID_ARGUMENT',
        message: expect.stringMatching(message),
      });
      expect(state.model.stateDict()).toEqual(before);
      expect(defaultGenerator().getState()).toEqual(random);
      await group.barrier();
    });
  });
});
