/** A checkpoint of any stage and number of ranks loads into any other, and into a plain module. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadCheckpoint, saveCheckpoint } from '../../../src/checkpoint/checkpoint';
import { mseLoss } from '../../../src/nn/losses';
import { AdamW } from '../../../src/optim/adam';
import type { World } from '../../../src/process-group/world';
import { Tensor } from '../../../src/tensor/tensor';
import { withFullParameters } from '../../../src/zero/full-parameters';
import { zeroWrap } from '../../../src/zero/zero';
import type { ZeroStage } from '../../../src/zero/zero-options';
import { runPortable } from '../ddp/models';
import { bitsOf, numbers } from './training';
import { Zoo } from './zoo';

const USE = { left: true, right: true };
const adamW = (zoo: Zoo): AdamW => new AdamW([{ params: zoo.parameters(), lr: 0.05 }]);

interface Trainable {
  readonly forward: Zoo['forward'];
}

async function train(module: Trainable, optimizer: { step(): Promise<void>; zeroGrad(): void }): Promise<void> {
  for (const seed of [1, 2]) {
    const x = Tensor.from(numbers(seed, 6), [2, 3]); // the same on every rank: averages then do not depend on their number
    await mseLoss(await module.forward(x, USE), Tensor.ones([2, 2])).backward();
    await optimizer.step();
    optimizer.zeroGrad();
  }
}

async function makeWrapped(world: World, stage: ZeroStage, seed: number) {
  const { module, optimizer } = await zeroWrap(new Zoo(seed), adamW, world.group, { stage });
  const snapshot = async () => ({
    bits: await withFullParameters(module, () => bitsOf([...module.parameters(), ...module.buffers()])),
    state: await optimizer.stateDict(),
  });
  return { module, optimizer, snapshot };
}

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'lockstep-zero-'));
});
afterEach(() => rm(folder, { recursive: true }));

test.each([
  { from: 3, ranks: 2, to: 1, ontoRanks: 4 },
  { from: 1, ranks: 4, to: 3, ontoRanks: 2 },
  { from: 0, ranks: 2, to: 2, ontoRanks: 1 },
  { from: 2, ranks: 1, to: 0, ontoRanks: 2 },
] as const)('stage $from on $ranks ranks to stage $to on $ontoRanks', async ({ from, ranks, to, ontoRanks }) => {
  const [saved] = await runPortable(ranks, async (world) => {
    const { module, optimizer, snapshot } = await makeWrapped(world, from, 1);
    await train(module, optimizer);
    await saveCheckpoint(folder, { model: module, optimizer, step: 2 }, world.group);
    return snapshot();
  });
  const loaded = await runPortable(ontoRanks, async (world) => {
    const { module, optimizer, snapshot } = await makeWrapped(world, to, 2);
    await loadCheckpoint(folder, { model: module, optimizer }, world.group);
    return snapshot();
  });
  for (const snapshot of loaded) expect(snapshot).toEqual(saved);
});

test('inside withFullParameters of stage 3 what was changed there is saved, and what was loaded stays', async () => {
  await runPortable(2, async (world) => {
    const { module, optimizer, snapshot } = await makeWrapped(world, 3, 1);
    await train(module, optimizer);
    const set = (value: number): void => module.parameters().forEach(({ data }) => data.fill(value as never));
    await withFullParameters(module, async () => {
      set(3);
      await saveCheckpoint(folder, { model: module, optimizer, step: 1 }, world.group);
    });
    const saved = await snapshot();
    await withFullParameters(module, () => set(2));
    await withFullParameters(module, async () => {
      set(1);
      await loadCheckpoint(folder, { model: module, optimizer }, world.group);
      expect(new Set(module.parameters().flatMap(({ data }) => Array.from(data, Number)))).toEqual(new Set([3]));
    });
    expect(await snapshot()).toEqual(saved);
  });
});

test('stage 3 to a plain module and back', async () => {
  const [saved] = await runPortable(3, async (world) => {
    const { module, optimizer, snapshot } = await makeWrapped(world, 3, 1);
    await train(module, optimizer);
    await saveCheckpoint(folder, { model: module, optimizer, step: 2 }, world.group);
    return snapshot();
  });
  await runPortable(1, async ({ group }) => {
    const model = new Zoo(2);
    const optimizer = adamW(model);
    await loadCheckpoint(folder, { model, optimizer }, group);
    expect({ bits: bitsOf([...model.parameters(), ...model.buffers()]), state: optimizer.stateDict() }).toEqual(saved);
    await saveCheckpoint(folder, { model, optimizer, step: 3 }, group);
  });
  const loaded = await runPortable(2, async (world) => {
    const { module, optimizer, snapshot } = await makeWrapped(world, 3, 3);
    await loadCheckpoint(folder, { model: module, optimizer }, world.group);
    return snapshot();
  });
  for (const snapshot of loaded) expect(snapshot).toEqual(saved);
});
