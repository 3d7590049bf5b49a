/** What every rank holds must be the same on all, since each writes a share of it. */
import { readdir, rm } from 'node:fs/promises';
import { saveCheckpoint } from '../../../src/checkpoint/checkpoint';
import type { CheckpointState } from '../../../src/checkpoint/training-state';
import { Generator } from '../../../src/core/generator';
import { Linear } from '../../../src/nn/linear';
import { AdamW } from '../../../src/optim/adam';
import { Tensor } from '../../../src/tensor/tensor';
import { makeFolder, runOnDisk } from './training';

let folder: string;
beforeEach(async () => {
  folder = await makeFolder();
});
afterEach(() => rm(folder, { recursive: true }));

function makeState(): CheckpointState & { readonly model: Linear; readonly optimizer: AdamW } {
  const model = new Linear(3, 2, { generator: new Generator(1) });
  return { model, optimizer: new AdamW(model.parameters()), step: 1 };
}

/** A state that is wrong on one rank in one place. */
const differences: [string, (rank: number) => CheckpointState | Promise<CheckpointState>, RegExp][] = [
  [
    'one element of a parameter',
    (rank) => {
      const state = makeState();
      if (rank === 2) (state.model.weight.data as Float32Array)[5]! += 1;
      return state;
    },
    /rank 2 of world .* other is 'model\/weight'\./,
  ],
  [
    'another module',
    (rank) => ({ model: new Linear(3, 2, { bias: rank !== 1, generator: new Generator(1) }), step: 1 }),
    /rank 1 of world does not hold the same as rank 0: it has 2 tensors and settings, and rank 0 has 3\./,
  ],
  [
    "the optimizer's state",
    async (rank) => {
      const state = makeState();
      for (const parameter of state.model.parameters()) parameter.grad = Tensor.full(parameter.shape, rank);
      const { weight, bias } = state.model;
      const values = [weight.data.slice(), bias!.data.slice()];
      await state.optimizer.step();
      [weight, bias!].forEach((parameter, i) => parameter.data.set(values[i] as never));
      return state;
    },
    /rank 1 of world .* other is 'optimizer\/weight\/expAvg' and 3 more\./,
  ],
  [
    'a setting of the optimizer',
    (rank) => {
      const state = makeState();
      state.optimizer.paramGroups[0]!.lr = rank === 1 ? 0.5 : 0.25;
      return state;
    },
    /rank 1 of world .* other is the settings and steps of the optimizer\./,
  ],
  [
    "the scheduler's state",
    (rank) => {
      const scheduler = { stateDict: () => ({ best: [0, rank] }), loadStateDict: () => undefined };
      return { ...makeState(), scheduler };
    },
    /state\.scheduler\.best\[1\] is another one on rank 1 of world/,
  ],
];

test.each(differences)('%s: refused on every rank, naming it, with nothing written', async (_name, make, message) => {
  await runOnDisk(3, async ({ group }) => {
    const saving = saveCheckpoint(folder, await make(group.rank), group);
    await expect(saving).rejects.toMatchObject({
      code: 'LOCKSTEP_INVALID_ARGUMENT',
      message: expect.stringMatching(message),
    });
    await group.barrier();
  });
  expect(await readdir(folder)).toEqual([]);
});

test('checkReplicas: false on any rank saves such a mixture all the same', async () => {
  await runOnDisk(3, async ({ group }) => {
    const [, make] = differences[0]!;
    await saveCheckpoint(folder, await make(group.rank), group, { checkReplicas: group.rank !== 1 });
  });
  expect(await readdir(folder)).toEqual(['step-1']);
});
