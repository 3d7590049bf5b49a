/** Whenever a save dies, the old checkpoint or the new one is there, whole. Real kills are in tests/fault. */
import { readdir, rm } from 'node:fs/promises';
import { loadCheckpoint, saveCheckpoint, saveCheckpointAsync } from '../../../src/checkpoint/checkpoint';
import { Generator } from '../../../src/core/generator';
import { Linear } from '../../../src/nn/linear';
import type { ProcessGroup } from '../../../src/process-group/process-group';
import { isLong } from '../../helpers/counts';
import { CrashingDisk, watchDisk } from './faulty-disk';
import { makeFolder, runOnDisk } from './training';

/** Every change of the disk is tried in the long run. */
const STRIDE = isLong ? 1 : 2;

const silent = { debug() {}, info() {}, warn() {}, error() {} };
const modelOf = (seed: number) => new Linear(3, 2, { generator: new Generator(seed) });

/** Two ranks save `step` from the values of `seed`. */
async function save(
  directory: string,
  step: number,
  seed: number,
  isAsync: boolean,
  disk?: CrashingDisk,
): Promise<void> {
  const groups: ProcessGroup[] = [];
  if (disk !== undefined) {
    disk.onCrash = () => {
      groups[0]?.abort(new Error('a process has died'));
      for (const group of groups) void group.barrier().catch(() => undefined); // the next collective of training tells
    };
  }
  await runOnDisk(2, async ({ group }) => {
    groups.push(group);
    const options = { keep: 1, logger: silent, timeoutMs: 5000 };
    const state = { model: modelOf(seed), step };
    if (isAsync) await (await saveCheckpointAsync(directory, state, group, options)).done;
    else await saveCheckpoint(directory, state, group, options);
  });
}

/** The seed of the newest good checkpoint's values. */
async function loadedSeed(directory: string): Promise<number> {
  const [seed] = await runOnDisk(2, async ({ group }) => {
    const model = modelOf(0);
    await loadCheckpoint(directory, { model }, group, { logger: silent });
    return [10, 20].find((candidate) => model.weight.toString() === modelOf(candidate).weight.toString());
  });
  return seed as number;
}

describe.each([
  ['a newer step', 2, false],
  ['the same step again', 1, false],
  ['in the background', 2, true],
])('%s', (_name, step, isAsync) => {
  test('a save that dies before a change of the disk leaves the old checkpoint or the new one', async () => {
    const seeds: number[] = [];
    for (let crashAt = 0; ; crashAt += STRIDE) {
      const directory = await makeFolder();
      await save(directory, 1, 10, false);
      const disk = new CrashingDisk(crashAt);
      const restore = watchDisk(disk.hook);
      const isDone = await save(directory, step, 20, isAsync, disk).then(
        () => true,
        () => false,
      );
      restore();
      await disk.losePower((crashAt % 3) / 2);
      const seed = await loadedSeed(directory);
      seeds.push(seed);
      if (isDone) expect(seed).toBe(20); // a save that has succeeded is there
      await save(directory, 3, 20, false);
      expect(await readdir(directory)).toEqual(['step-3']); // and nothing that the dead one had left
      await rm(directory, { recursive: true });
      if (!disk.hasCrashed) break;
    }
    // the new one counts from some moment on, for good
    const firstNew = seeds.indexOf(20);
    expect(seeds.slice(0, firstNew).every((seed) => seed === 10)).toBe(true);
    expect(seeds.slice(firstNew).every((seed) => seed === 20)).toBe(true);
    expect(firstNew * STRIDE).toBeGreaterThan(10);
    expect(seeds.length).toBeGreaterThan(firstNew);
  });
});
