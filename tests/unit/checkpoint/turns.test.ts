/** Saves and loads of one group that are started together: each gets all of its own state, in the order of the calls. */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { loadCheckpoint, saveCheckpoint, saveCheckpointAsync } from '../../../src/checkpoint/checkpoint';
import { Linear } from '../../../src/nn/linear';
import type { ProcessGroup } from '../../../src/process-group/process-group';
import { watchDisk } from './faulty-disk';
import { makeFolder, runOnDisk } from './training';

let folder: string;
let restoreDisk: (() => void) | undefined;
beforeEach(async () => {
  folder = await makeFolder();
});
afterEach(async () => {
  restoreDisk?.();
  restoreDisk = undefined;
  await rm(folder, { recursive: true });
});

function filled(value: number): Linear {
  const model = new Linear(20, 20, { bias: false });
  (model.weight.data as Float32Array).fill(value);
  return model;
}

const valuesOf = (model: Linear): number[] => [...new Set(Array.from(model.weight.data, Number))];

/** Rank 0 makes the first folder slowly, so that the second save would overtake the first. */
function delayFirst(): void {
  let isFirst = true;
  restoreDisk = watchDisk(async (operation, path) => {
    if (operation !== 'mkdir' || !path.includes('.saving') || !isFirst) return;
    isFirst = false;
    await new Promise((resolve) => setTimeout(resolve, 30));
  });
}

const saves = {
  async saveCheckpoint(directory: string, value: number, step: number, group: ProcessGroup) {
    return saveCheckpoint(directory, { model: filled(value), step }, group);
  },
  async saveCheckpointAsync(directory: string, value: number, step: number, group: ProcessGroup) {
    return (await saveCheckpointAsync(directory, { model: filled(value), step }, group)).done;
  },
};

describe.each(['saveCheckpoint', 'saveCheckpointAsync'] as const)('%s', (first) => {
  test.each(['saveCheckpoint', 'saveCheckpointAsync'] as const)(
    'and %s at the same time do not mix, in one directory or two',
    async (second) => {
      for (const [one, other] of [
        ['a', 'a'],
        ['b', 'c'],
      ] as const) {
        delayFirst();
        const started = await runOnDisk(3, ({ group }) =>
          Promise.all([
            saves[first](join(folder, one), 1, 1, group),
            saves[second](join(folder, other), 2, 2, group),
            loadCheckpoint(join(folder, one), { model: filled(0) }, group).then(({ step }) => step),
          ]),
        );
        restoreDisk?.();
        const paths = [join(folder, one, 'step-1'), join(folder, other, 'step-2'), one === other ? 2 : 1];
        expect(started).toEqual([paths, paths, paths]);
        const loaded = await runOnDisk(2, async ({ group }) => {
          const [model1, model2] = [filled(0), filled(0)];
          await Promise.all([
            loadCheckpoint(join(folder, one), { model: model1 }, group, { step: 1 }),
            loadCheckpoint(join(folder, other), { model: model2 }, group, { step: 2 }),
          ]);
          return [valuesOf(model1), valuesOf(model2)];
        });
        expect(loaded).toEqual(Array(2).fill([[1], [2]]));
      }
    },
  );
});

test('a save that is refused gives its turn to the next', async () => {
  await runOnDisk(2, async ({ group }) => {
    const refused = saveCheckpoint(folder, { model: filled(1), step: -1 }, group);
    const saved = saveCheckpoint(folder, { model: filled(2), step: 2 }, group);
    await expect(refused).rejects.toMatchObject({ code: 'LOCKSTEP_INVALID_ARGUMENT' });
    expect(await saved).toBe(join(folder, 'step-2'));
  });
});
