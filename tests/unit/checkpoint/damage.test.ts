/** A checkpoint that is not good is never taken for one. */
import { cp, readdir, readFile, rename, rm, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import fc from 'fast-check';
import { loadCheckpoint, saveCheckpoint } from '../../../src/checkpoint/checkpoint';
import { CHUNK_BYTES } from '../../../src/checkpoint/index-file';
import { Generator } from '../../../src/core/generator';
import { Linear } from '../../../src/nn/linear';
import { Parameter } from '../../../src/nn/parameter';
import { Sequential } from '../../../src/nn/sequential';
import { AdamW } from '../../../src/optim/adam';
import { SGD } from '../../../src/optim/sgd';
import { ProcessGroup } from '../../../src/process-group/process-group';
import { Tensor } from '../../../src/tensor/tensor';
import { holdsAsync } from '../../helpers/property';
import { makeFolder, runOnDisk } from './training';

let folder: string;
beforeEach(async () => {
  folder = await makeFolder();
});
afterEach(() => rm(folder, { recursive: true }));

const makeState = async (seed: number) => {
  const model = new Linear(5, 3, { generator: new Generator(seed) });
  const optimizer = new AdamW(model.parameters());
  model.parameters().forEach((parameter) => (parameter.grad = Tensor.ones(parameter.shape)));
  await optimizer.step();
  return { model, optimizer };
};

const collect = () => {
  const warnings: string[] = [];
  const ignore = () => undefined;
  return {
    warnings,
    logger: { debug: ignore, info: ignore, warn: (text: string) => warnings.push(text), error: ignore },
  };
};

/** Steps 1 and 2, by two ranks. */
async function saveTwo(): Promise<void> {
  await runOnDisk(2, async ({ group }) => {
    for (const step of [1, 2]) await saveCheckpoint(folder, { ...(await makeState(step)), step }, group);
  });
}

/** Load as two ranks; gives the step and the warnings of rank 0. */
async function loadAsTwo(): Promise<{ step: number; warnings: string[] }> {
  const [result] = await runOnDisk(2, async ({ group }) => {
    const state = await makeState(99);
    const { warnings, logger } = collect();
    const { step } = await loadCheckpoint(folder, state, group, { logger });
    expect(state.model.weight.data).toEqual((await makeState(step)).model.weight.data);
    if (group.rank !== 0) expect(warnings).toEqual([]);
    return { step, warnings };
  });
  return result!;
}

test('one flipped bit or one missing end, in any file, and the checkpoint before it is loaded', async () => {
  await saveTwo();
  const pristine = join(folder, 'step-2');
  const names = (await readdir(pristine)).sort();
  expect(names).toEqual(['COMPLETE', 'index.json', 'rank-0.safetensors', 'rank-1.safetensors']);
  const contents = new Map(
    await Promise.all(names.map(async (name) => [name, await readFile(join(pristine, name))] as const)),
  );
  await holdsAsync(
    'damaged checkpoints',
    fc.asyncProperty(fc.constantFrom(...names), fc.nat(), fc.nat(7), fc.boolean(), async (name, place, bit, isCut) => {
      const whole = contents.get(name)!;
      const at = place % whole.length;
      const path = join(pristine, name);
      const flipped = Buffer.from(whole);
      flipped[at] = flipped[at]! ^ (1 << bit);
      await (isCut ? truncate(path, at) : writeFile(path, flipped));
      const { step, warnings } = await loadAsTwo();
      expect(step).toBe(1);
      expect(warnings).toEqual([expect.stringContaining('step-2')]);
      await writeFile(path, whole);
    }),
    { short: 30, long: 3000 },
  );
  expect((await loadAsTwo()).step).toBe(2);
});

describe('the wanted checkpoint is refused with the reason, and the newest good one is named', () => {
  test.each<[string, (path: string) => Promise<unknown>, RegExp]>([
    ['no marker', (path) => rm(join(path, 'COMPLETE')), /step-2: it is incomplete: it has no COMPLETE/],
    ['no index', (path) => rm(join(path, 'index.json')), /step-2: index.json is missing/],
    ['a missing file', (path) => rm(join(path, 'rank-1.safetensors')), /rank-1.safetensors cannot be opened: ENOENT/],
    [
      'a short file',
      (path) => truncate(join(path, 'rank-0.safetensors'), 100),
      /rank-0.safetensors has 100 bytes, and had \d+ when/,
    ],
    [
      'a foreign folder',
      async (path) => {
        await rm(path, { recursive: true });
        await cp(__dirname, path, { recursive: true });
      },
      /step-2: it is not a checkpoint of Lockstep/,
    ],
    [
      'a later version',
      (path) => writeFile(join(path, 'COMPLETE'), 'lockstep-checkpoint 2 step 2 index 00000000\n'),
      /it is of version 2 of the format, and this release reads version 1/,
    ],
    [
      'another step under this name',
      async (path) => {
        await rm(path, { recursive: true });
        await cp(join(folder, 'step-1'), path, { recursive: true });
      },
      /COMPLETE does not match index.json: one of them is damaged, or the folder was renamed/,
    ],
    ['no such folder', (path) => rm(path, { recursive: true }), /there is no step-2 in /],
  ])('%s', async (_name, damage, reason) => {
    await saveTwo();
    await damage(join(folder, 'step-2'));
    await runOnDisk(2, async ({ group }) => {
      const state = await makeState(99);
      const before = state.model.stateDict();
      await expect(loadCheckpoint(folder, state, group, { step: 2 })).rejects.toMatchObject({
        code: 'LOCKSTEP_CHECKPOINT',
        message: expect.stringMatching(reason),
      });
      await expect(loadCheckpoint(folder, state, group, { step: 2 })).rejects.toThrow(
        /The newest good one is .*step-1\./,
      );
      expect(state.model.stateDict()).toEqual(before);
      const { logger } = collect();
      expect(await loadCheckpoint(folder, state, group, { logger })).toEqual({ step: 1, path: join(folder, 'step-1') });
    });
  });

  test('none is good: every one is named with its reason', async () => {
    await saveTwo();
    await rm(join(folder, 'step-1', 'COMPLETE'));
    await truncate(join(folder, 'step-2', 'index.json'), 10);
    const loading = loadCheckpoint(folder, await makeState(1), ProcessGroup.mock());
    await expect(loading).rejects.toThrow(
      /no good checkpoint in .*step-2: COMPLETE does not match.*step-1: it is incomplete/,
    );
    await expect(loadCheckpoint(folder, await makeState(1), ProcessGroup.mock(), { step: 7 })).rejects.toThrow(
      /no step-7.*no good one/,
    );
  });

  test('an empty or missing directory', async () => {
    const loading = loadCheckpoint(join(folder, 'none'), await makeState(1), ProcessGroup.mock());
    await expect(loading).rejects.toThrow(/there is no checkpoint in .*none/);
  });
});

test('damage beyond what a rank reads is found by another, or because nobody reads it', async () => {
  // two chunks and a bit each of a parameter and of its momentum, which is not loaded
  const makeLarge = () => {
    const weight = new Parameter(Tensor.zeros([CHUNK_BYTES / 2 + 9]));
    const model = Object.assign(new Sequential(), { weight });
    return { model, optimizer: new SGD([weight], { momentum: 0.5 }), weight };
  };
  const { model, optimizer, weight } = makeLarge();
  weight.grad = Tensor.ones(weight.shape);
  await optimizer.step();
  await runOnDisk(3, ({ group }) => saveCheckpoint(folder, { model, optimizer, step: 1 }, group));
  const files = (await readdir(join(folder, 'step-1'))).filter((name) => name.startsWith('rank'));
  for (const name of files) {
    const path = join(folder, 'step-1', name);
    const file = await readFile(path);
    const at = file.length - 100;
    file[at]! ^= 1;
    await writeFile(path, file);
    const outcomes = await runOnDisk(2, async ({ group }) => {
      const loading = loadCheckpoint(folder, { model: makeLarge().model }, group);
      return loading.then(
        () => 'loaded',
        (error: Error) => error.message,
      );
    });
    expect(outcomes[0]).toMatch(new RegExp(`${name} is damaged: the checksum of '.*', element .* does not match`));
    expect(outcomes[1]).toBe(outcomes[0]);
    file[at]! ^= 1;
    await writeFile(path, file);
  }
  await loadCheckpoint(folder, { model: makeLarge().model }, ProcessGroup.mock());
});

test('ranks that do not see one folder are told so', async () => {
  await saveTwo();
  const other = await makeFolder();
  await runOnDisk(2, async ({ group }) => {
    const directory = group.rank === 0 ? folder : other;
    const state = await makeState(99);
    await expect(loadCheckpoint(directory, state, group)).rejects.toThrow(
      /rank 1 of 2 only: .*All ranks must see one shared folder/,
    );
    await expect(saveCheckpoint(directory, { ...state, step: 3 }, group)).rejects.toMatchObject({
      code: 'LOCKSTEP_CHECKPOINT',
      message: expect.stringMatching(/rank 1 of world: .*cannot be seen on rank 1.*as one shared folder/),
    });
  });
  await rename(join(folder, 'step-2'), join(other, 'step-2'));
  await cp(join(folder, 'step-1'), join(other, 'step-1'), { recursive: true });
  expect((await readdir(folder)).sort()).toEqual(['step-1']);
  await rm(other, { recursive: true });
});
