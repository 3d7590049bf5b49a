/** Saving while training goes on. */
import { readdir, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { loadCheckpoint, saveCheckpoint, saveCheckpointAsync } from '../../../src/checkpoint/checkpoint';
import { Generator } from '../../../src/core/generator';
import { memory } from '../../../src/core/memory-account';
import { Linear } from '../../../src/nn/linear';
import { watchDisk } from './faulty-disk';
import { bitsOf, makeFolder, runOnDisk, startRun } from './training';

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

const modelOf = (seed: number) => new Linear(3, 2, { generator: new Generator(seed) });
const silent = { debug() {}, info() {}, warn() {}, error() {} };

test('a save in the background has the bits of its moment, while training goes on with collectives', async () => {
  const options = { portable: true, schedule: 'random', seed: 5 } as const;
  const moments = await runOnDisk(
    3,
    async ({ group }) => {
      const run = startRun(group, 11);
      await run.train(2);
      const atTwo = bitsOf(run);
      const first = await saveCheckpointAsync(folder, run.state, group, { step: 2 });
      await run.train(2); // meanwhile
      const atFour = bitsOf(run);
      const second = await saveCheckpointAsync(folder, run.state, group, { step: 4 }); // waits for the first
      await run.train(2);
      expect(await Promise.all([first.done, second.done])).toEqual([2, 4].map((step) => join(folder, `step-${step}`)));
      return { 2: atTwo, 4: atFour };
    },
    options,
  );
  for (const step of [2, 4] as const) {
    const loaded = await runOnDisk(3, async ({ group }) => {
      const run = startRun(group, 99);
      await loadCheckpoint(folder, run.state, group, { step });
      return bitsOf(run);
    });
    expect(loaded).toEqual(moments.map((bits) => bits[step]));
  }
  expect((await readdir(join(folder, 'step-4'))).sort()).toEqual([
    'COMPLETE',
    'index.json',
    ...[0, 1, 2].map((rank) => `rank-${rank}.safetensors`),
  ]);
});

test('the snapshot is a copy of what this rank writes, counted until it is written', async () => {
  await runOnDisk(2, async ({ group }) => {
    const model = new Linear(50, 20, { generator: new Generator(1) });
    const expected = model.weight.detach().clone();
    const before = memory.stats().live.other;
    const pending = await saveCheckpointAsync(folder, { model, step: 1 }, group);
    expect(memory.stats().live.other - before).toBe((4 * (50 * 20 + 20)) / 2);
    (model.weight.data as Float32Array).fill(7);
    await pending.done;
    expect(memory.stats().live.other).toBe(before);
    await loadCheckpoint(folder, { model }, group);
    expect(model.weight.data).toEqual(expected.data);
  });
});

describe('a failure in the background', () => {
  const failRank1 = (): void => {
    restoreDisk = watchDisk((operation, path) => {
      if (operation === 'writev' && path.includes('rank-1')) throw new Error('ENOSPC: no space left on device');
    });
  };

  test('is told where `done` is awaited, on every rank, and the next save works', async () => {
    failRank1();
    await runOnDisk(2, async ({ group }) => {
      const pending = await saveCheckpointAsync(folder, { model: modelOf(1), step: 1 }, group);
      await expect(pending.done).rejects.toMatchObject({
        code: 'LOCKSTEP_CHECKPOINT',
        message: expect.stringMatching(/^saveCheckpointAsync: rank 1 of world: could not write .*ENOSPC/),
      });
      await group.barrier();
      restoreDisk?.();
      await saveCheckpoint(folder, { model: modelOf(2), step: 2 }, group);
      expect(await readdir(folder)).toEqual(['step-2']);
    });
  });

  test.each<[string, (path: string) => boolean, boolean, RegExp[]]>([
    [
      'no place for its report, but for a name',
      (path) => path.includes('report-1') && path.endsWith('.part'),
      false,
      [/rank 1 of world: it could not write .*report-1/, /rank 1 of world: ENOSPC/],
    ],
    ['the folder is gone before', () => false, true, [/rank 1 of world: .* is gone/, /rank 1 of world: .*ENOENT/]],
  ])('%s: no rank waits for long', async (_name, isFull, isGone, messages) => {
    restoreDisk = watchDisk(async (operation, path) => {
      if (operation === 'writeFile' && isFull(path)) throw new Error('ENOSPC: no space left on device');
      if (operation === 'create' && isGone && path.endsWith('rank-1.safetensors'))
        await rm(dirname(path), { recursive: true });
    });
    await runOnDisk(2, async ({ group }) => {
      const model = modelOf(1);
      const pending = await saveCheckpointAsync(folder, { model, step: 1 }, group, { logger: silent });
      await expect(pending.done).rejects.toMatchObject({
        code: 'LOCKSTEP_CHECKPOINT',
        message: expect.stringMatching(messages[group.rank] as RegExp),
      });
      await group.barrier();
    });
  });

  test('the folder goes when all have reported: the others notice within the time for which they wait', async () => {
    restoreDisk = watchDisk(async (operation, path) => {
      if (operation === 'create' && path.endsWith('index.json')) await rm(dirname(path), { recursive: true });
    });
    await runOnDisk(2, async ({ group }) => {
      const options = { logger: silent, timeoutMs: 1000 };
      const pending = await saveCheckpointAsync(folder, { model: modelOf(1), step: 1 }, group, options);
      await expect(pending.done).rejects.toMatchObject({
        code: 'LOCKSTEP_CHECKPOINT',
        message: expect.stringMatching(group.rank === 0 ? /ENOENT/ : /is gone/),
      });
    });
  });

  test('while cleaning up after a failure does not hide that', async () => {
    restoreDisk = watchDisk((operation, path) => {
      if (operation === 'writev' && path.includes('rank-1')) throw new Error('ENOSPC: no space left on device');
      if (operation === 'rm' && path.includes('rank-1')) throw new Error('EISDIR: is a folder');
    });
    await runOnDisk(2, async ({ group }) => {
      const pending = await saveCheckpointAsync(folder, { model: modelOf(1), step: 1 }, group);
      await expect(pending.done).rejects.toThrow(/rank 1 of world: could not write .*ENOSPC/);
    });
  });

  test('that nobody has asked for is thrown by the next save, once', async () => {
    failRank1();
    await runOnDisk(2, async ({ group }) => {
      await saveCheckpointAsync(folder, { model: modelOf(1), step: 1 }, group);
      const saving = saveCheckpoint(folder, { model: modelOf(2), step: 2 }, group);
      await expect(saving).rejects.toThrow(/an earlier save in the background failed: .*rank 1 of world.*ENOSPC/);
      restoreDisk?.();
      await saveCheckpoint(folder, { model: modelOf(2), step: 2 }, group);
    });
  });

  test('a rank that does not finish its part in time is named', async () => {
    let release = (): void => undefined;
    const isReleased = new Promise<void>((resolve) => (release = resolve));
    restoreDisk = watchDisk(async (operation, path) => {
      if (operation === 'writev' && path.includes('rank-1')) await isReleased;
    });
    await runOnDisk(2, async ({ group }) => {
      const options = { timeoutMs: 100, logger: silent };
      const pending = await saveCheckpointAsync(folder, { model: modelOf(1), step: 1 }, group, options);
      const outcome = pending.done.catch((error: Error) => error.message).finally(release);
      expect(await outcome).toMatch(/rank 1 of world: it gave no report within 100 ms/);
    });
    expect((await readdir(folder)).filter((name) => name.startsWith('step'))).toEqual([]);
  });

  test('the group fails meanwhile: nobody waits for the rank that is gone', async () => {
    let release = (): void => undefined;
    const isReleased = new Promise<void>((resolve) => (release = resolve));
    restoreDisk = watchDisk(async (operation, path) => {
      if (operation === 'writev' && path.includes('rank-1')) await isReleased;
    });
    const messages: string[] = [];
    const ends: Promise<unknown>[] = [];
    const running = runOnDisk(2, async ({ group }) => {
      const pending = await saveCheckpointAsync(folder, { model: modelOf(1), step: 1 }, group, { logger: silent });
      ends.push(pending.done.catch(() => undefined));
      if (group.rank === 1) throw new Error('rank 1 dies');
      await group.barrier().catch(() => undefined);
      messages.push(await pending.done.catch((error: Error) => error.message));
    });
    await expect(running).rejects.toThrow(/rank 1 dies/);
    release();
    await Promise.all(ends);
    expect(messages).toEqual([expect.stringMatching(/rank 1 of world: it gave no report before the group failed/)]);
  });
});
