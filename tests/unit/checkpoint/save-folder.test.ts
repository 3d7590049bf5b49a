/** What is in the directory after saves that succeeded, failed, or died. */
import { mkdir, readdir, rename, rm, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { GradScaler } from '../../../src/amp/grad-scaler';
import { loadCheckpoint, saveCheckpoint } from '../../../src/checkpoint/checkpoint';
import { checksum } from '../../../src/checkpoint/checksum';
import { Generator } from '../../../src/core/generator';
import { Linear } from '../../../src/nn/linear';
import { AdamW } from '../../../src/optim/adam';
import { ProcessGroup } from '../../../src/process-group/process-group';
import { Tensor } from '../../../src/tensor/tensor';
import { watchDisk } from './faulty-disk';
import { makeFolder, runOnDisk } from './training';

let folder: string;
beforeEach(async () => {
  folder = await makeFolder();
});
afterEach(() => rm(folder, { recursive: true }));

const group = ProcessGroup.mock();
const modelOf = (seed: number) => new Linear(3, 2, { generator: new Generator(seed) });
const save = (step: number, keep?: number) => saveCheckpoint(folder, { model: modelOf(step), step }, group, { keep });
const names = async () => (await readdir(folder)).sort();

test('the newest `keep` are left, and the new one always', async () => {
  for (const step of [1, 2, 3]) await save(step);
  await save(4, 3);
  expect(await names()).toEqual(['step-2', 'step-3', 'step-4']);
  await save(1, 2); // training went on from an older one
  expect(await names()).toEqual(['step-1', 'step-4']);
});

test('what is not a complete checkpoint of ours is neither counted nor removed', async () => {
  await mkdir(join(folder, 'step-1'));
  await writeFile(join(folder, 'step-9'), 'a file');
  await mkdir(join(folder, 'step-007'));
  await writeFile(join(folder, 'notes.txt'), 'mine');
  for (const step of [2, 3]) await save(step, 1);
  expect(await names()).toEqual(['notes.txt', 'step-007', 'step-1', 'step-3', 'step-9']);
});

test('without a step, the number is one more than that of the newest', async () => {
  const model = modelOf(1);
  const paths = [];
  for (let i = 0; i < 2; i++) paths.push(await saveCheckpoint(folder, { model }, group));
  await saveCheckpoint(folder, { model, step: 9 }, group, { step: 41 });
  paths.push(await saveCheckpoint(folder, { model }, group));
  expect(paths).toEqual([0, 1, 42].map((step) => join(folder, `step-${step}`)));
});

test('the same step again replaces it, and until then the old one counts', async () => {
  await save(5);
  await saveCheckpoint(folder, { model: modelOf(50), step: 5 }, group);
  expect(await names()).toEqual(['step-5']);
  const model = modelOf(0);
  await loadCheckpoint(folder, { model }, group);
  expect(model.weight.data).toEqual(modelOf(50).weight.data);

  // killed after the old one was moved aside, and the new one has no marker yet
  await rename(join(folder, 'step-5'), join(folder, '.replaced-step-5-0-1-0'));
  await mkdir(join(folder, 'step-5'));
  const { path } = await loadCheckpoint(folder, { model }, group, { logger: silent });
  expect(path).toBe(join(folder, '.replaced-step-5-0-1-0'));
  await save(5);
  expect(await names()).toEqual(['step-5']);
});

const silent = { debug() {}, info() {}, warn() {}, error() {} };

test('temporary folders of dead processes are removed, those in use are not', async () => {
  const machine = checksum(Buffer.from(hostname()));
  const dead = [
    `.saving-step-3-${machine}-${2 ** 30}-00`,
    `.saving-step-3-${machine}-${process.pid}-00`,
    `.removing-step-1-${machine}-1-00`,
  ];
  const alive = [`.saving-step-3-${machine}-${process.ppid}-00`, '.saving-step-3-abcdef01-1-00'];
  for (const name of [...dead, ...alive]) await mkdir(join(folder, name));
  await save(1);
  expect(await names()).toEqual([...alive, 'step-1'].sort());
});

test.each([
  ['write', 'writev'],
  ['create its file', 'create'],
  ['make it durable', 'sync'],
])(
  'a rank that cannot %s: every rank rejects naming it, nothing is left, and the next save works',
  async (_name, wanted) => {
    await save(1);
    const restore = watchDisk((operation, path) => {
      if (operation === wanted && path.includes('rank-1')) throw new Error('ENOSPC: no space left on device');
    });
    await runOnDisk(3, async ({ group: world }) => {
      const state = { model: modelOf(2), step: 2 };
      await expect(saveCheckpoint(folder, state, world)).rejects.toMatchObject({
        code: 'LOCKSTEP_CHECKPOINT',
        message: expect.stringMatching(/^saveCheckpoint: rank 1 of world: could not write .*ENOSPC/),
        context: { ranks: [1] },
      });
      await world.barrier();
      expect(await names()).toEqual(['step-1']);
      await world.barrier();
      restore();
      await saveCheckpoint(folder, state, world);
    });
    expect(await names()).toEqual(['step-1', 'step-2']);
  },
);

test('a directory that cannot be made is an error on every rank', async () => {
  await writeFile(join(folder, 'file'), '');
  await runOnDisk(2, async ({ group: world }) => {
    const saving = saveCheckpoint(join(folder, 'file'), { model: modelOf(1), step: 1 }, world);
    await expect(saving).rejects.toThrow(/rank 0 of world: .*(EEXIST|ENOTDIR)/);
  });
});

test.each<[string, (rank: number) => { state?: object; options?: object }, RegExp]>([
  ['different steps', (rank) => ({ state: { step: rank + 1 } }), /rank 1 saves step 2, and rank 0 saves step 1/],
  ['a step that is no number', () => ({ state: { step: -1 } }), /state.*options.step/],
  [
    'an unknown option',
    (rank) => ({ options: rank === 1 ? { keeep: 1 } : {} }),
    /rank 1 of world: .*unknown key 'keeep'/,
  ],
  ['an unknown field', () => ({ state: { sheduler: {} } }), /unknown key 'sheduler'/],
  ['no model', () => ({ state: { model: undefined } }), /state.model: expected a Module/],
  [
    'an optimizer of another model',
    () => ({ state: { optimizer: new AdamW(modelOf(1).parameters()) } }),
    /which is no parameter of the model/,
  ],
  [
    'a scheduler without state',
    () => ({ state: { scheduler: {} } }),
    /state.scheduler: expected an object with stateDict/,
  ],
  [
    'a state that JSON does not hold',
    () => ({ state: { scaler: { stateDict: () => ({ scale: [1n] }), loadStateDict: () => undefined } } }),
    /scaler.scale\[0\]: expected plain data.*bigint/,
  ],
  [
    'a field that is undefined, and would not come back',
    () => ({ state: { scaler: { stateDict: () => ({ a: { best: undefined } }), loadStateDict: () => undefined } } }),
    /scaler.a.best: expected plain data.*undefined/,
  ],
  [
    'a hole in an array',
    () => ({ state: { scaler: { stateDict: () => ({ a: new Array(1) }), loadStateDict: () => undefined } } }),
    /scaler.a\[0\]: expected plain data.*undefined/,
  ],
])('%s: InvalidArgumentError on every rank, and nothing is written', async (_name, make, message) => {
  await runOnDisk(2, async ({ group: world }) => {
    const { state, options } = make(world.rank);
    const saving = saveCheckpoint(folder, { model: modelOf(1), ...state }, world, options);
    await expect(saving).rejects.toMatchObject({
      code: 'LOCKSTEP_INVALID_ARGUMENT',
      message: expect.stringMatching(message),
    });
  });
  expect(await names()).toEqual([]);
});

test('NaN, infinities and negative zero in small states come back', async () => {
  const scaler = {
    values: { a: NaN, b: [-Infinity, -0], c: null as null | undefined },
    stateDict: () => scaler.values,
    loadStateDict: (state: never) => (scaler.values = state),
  };
  await saveCheckpoint(folder, { model: modelOf(1), scaler, step: 1 }, group);
  const saved = scaler.values;
  scaler.values = { a: 0, b: [], c: undefined };
  await loadCheckpoint(folder, { model: modelOf(1), scaler }, group);
  expect(scaler.values).toEqual(saved);
  expect(Object.is(scaler.values.b[1], -0)).toBe(true);
});

test('a GradScaler comes back with its scale and its count of good steps', async () => {
  const model = modelOf(1);
  const optimizer = new AdamW(model.parameters());
  const scaler = new GradScaler({ initScale: 8, growthInterval: 2 });
  for (let i = 0; i < 3; i++) {
    model.weight.grad = Tensor.ones([2, 3]);
    await scaler.step(optimizer);
    await scaler.update();
  }
  await saveCheckpoint(folder, { model, optimizer, scaler, step: 3 }, group);
  const other = new GradScaler({ growthInterval: 2 });
  await loadCheckpoint(folder, { model: modelOf(2), scaler: other }, group);
  expect(other.stateDict()).toEqual(scaler.stateDict());
  expect(other.getScale()).toBe(16);
});

test('a small state that cannot be loaded on one rank leaves everything as it was on all', async () => {
  const counterOf = (failOn: number | undefined) => {
    const counter = {
      count: 1,
      stateDict: () => ({ count: counter.count }),
      loadStateDict: ({ count }: { count: number }) => {
        if (count === failOn) throw new Error('of another kind');
        counter.count = count;
      },
    };
    return counter;
  };
  await save(1);
  await saveCheckpoint(
    folder,
    { model: modelOf(1), scheduler: counterOf(2), scaler: Object.assign(counterOf(2), { count: 2 }), step: 2 },
    group,
  );
  await runOnDisk(2, async ({ group: world }) => {
    const model = modelOf(9);
    const scheduler = Object.assign(counterOf(undefined), { count: 7 });
    const scaler = Object.assign(counterOf(world.rank === 1 ? 2 : undefined), { count: 8 });
    await expect(loadCheckpoint(folder, { model, scheduler, scaler }, world)).rejects.toThrow(
      /rank 1 of world: of another kind/,
    );
    expect([scheduler.count, scaler.count]).toEqual([7, 8]);
    expect(model.weight.data).toEqual(modelOf(9).weight.data);
  });
});

test('a state that throws half way through its load is brought back, too', async () => {
  const makeScheduler = (isBad: boolean) => {
    const values = { a: 1, b: 1 };
    const loadStateDict = (saved: { a: number; b: number }): void => {
      values.a = saved.a;
      if (isBad && saved.b === 2) throw new Error('b is bad');
      values.b = saved.b;
    };
    return { values, stateDict: () => values, loadStateDict };
  };
  const saved = makeScheduler(false);
  Object.assign(saved.values, { a: 2, b: 2 });
  await saveCheckpoint(folder, { model: modelOf(1), scheduler: saved, step: 1 }, group);
  const scheduler = makeScheduler(true);
  await expect(loadCheckpoint(folder, { model: modelOf(1), scheduler }, group)).rejects.toThrow('b is bad');
  expect(scheduler.values).toEqual({ a: 1, b: 1 });
});

test('a checkpoint without optimizer says so where one is wanted', async () => {
  await save(1);
  const model = modelOf(1);
  const loading = loadCheckpoint(folder, { model, optimizer: new AdamW(model.parameters()) }, group);
  await expect(loading).rejects.toThrow(/step-1: the checkpoint has no optimizer state\. Leave `optimizer` out/);
});

test('what is no optimizer at all does not compile, and is refused', async () => {
  // @ts-expect-error -- an optimizer has groups and steps
  const saving = saveCheckpoint(folder, { model: modelOf(1), optimizer: {}, step: 1 }, group);
  await expect(saving).rejects.toThrow(/state\.optimizer: expected an Optimizer/);
});

test('a step() that was not awaited is refused, and one during a save too', async () => {
  const model = modelOf(1);
  const optimizer = new AdamW(model.parameters());
  model.weight.grad = Tensor.ones([2, 3]);
  const saving = saveCheckpoint(folder, { model, optimizer, step: 1 }, group);
  await new Promise((resolve) => setImmediate(resolve));
  await new Promise((resolve) => setImmediate(resolve));
  const stepped = optimizer.step().then(
    () => 'stepped',
    (error: Error) => error.message,
  );
  await saving;
  expect(await stepped).toMatch(/not awaited/);
});

test('an old checkpoint that cannot be removed is a warning, not a failure', async () => {
  await save(1);
  const restore = watchDisk((operation, path) => {
    if (operation === 'rename' && path.endsWith('step-1')) throw new Error('EACCES: permission denied');
  });
  const warnings: string[] = [];
  const logger = { ...silent, warn: (text: string) => void warnings.push(text) };
  await saveCheckpoint(folder, { model: modelOf(2), step: 2 }, group, { keep: 1, logger });
  restore();
  expect(warnings).toEqual([expect.stringMatching(/could not remove what is not needed any more: EACCES/)]);
  expect(await names()).toEqual(['step-1', 'step-2']);
});
