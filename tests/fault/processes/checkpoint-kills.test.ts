/** Processes that are killed while they save, at seeded moments: what is left is a complete checkpoint, old or new. */
import { spawn } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadCheckpoint, saveCheckpoint } from '../../../src/checkpoint/checkpoint';
import { Generator } from '../../../src/core/generator';
import { count } from '../../helpers/counts';
import { runOnDisk } from '../../unit/checkpoint/training';
import { modelAt, PROGRESS } from './checkpoint-loop';

const ROOT = join(__dirname, '..', '..', '..');
/** A save takes a few milliseconds; so many that kills hit all of its moments, and several saves come before. */
const LONGEST_MS = 60;
const KILLS = count('kills during saveCheckpoint', 3, 100);
const SEED = 20240607;

let directory: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'lockstep-kills-'));
});
afterAll(() => rm(directory, { recursive: true, force: true }));

/** Start the loop, and kill it so long after its first save. */
function saveAndKill(firstStep: number, afterMs: number): Promise<void> {
  const args = ['--require', 'tsx/cjs', join(__dirname, 'checkpoint-loop.ts'), directory, String(firstStep)];
  const child = spawn(process.execPath, args, { cwd: ROOT, stdio: ['ignore', 'pipe', 'inherit'] });
  child.stdout.once('data', () => setTimeout(() => child.kill('SIGKILL'), afterMs));
  return new Promise((resolve, reject) => {
    child.on('exit', (code, signal) => {
      if (signal === 'SIGKILL') resolve();
      else reject(new Error(`the saving process ended by itself with ${code ?? signal}`));
    });
  });
}

async function lastSavedStep(): Promise<number> {
  const text = await readFile(join(directory, PROGRESS), 'utf8').catch(() => '');
  return Number(text.trim().split('\n').at(-1));
}

/** Every rank's step of the newest good checkpoint, and of all elements in it. */
async function loadedStep(): Promise<number> {
  const steps = await runOnDisk(3, async ({ group }) => {
    const model = modelAt(-1);
    const { step } = await loadCheckpoint(directory, { model }, group, {
      logger: { debug() {}, info() {}, warn() {}, error() {} },
    });
    for (const { data } of model.parameters()) expect(data.every((value) => value === step)).toBe(true);
    return step;
  });
  expect(new Set(steps).size).toBe(1);
  return steps[0] as number;
}

test(
  `killed ${KILLS} times`,
  async () => {
    const generator = new Generator(SEED);
    await runOnDisk(1, ({ group }) => saveCheckpoint(directory, { model: modelAt(0), step: 0 }, group));
    let newest = 0;
    for (let kill = 0; kill < KILLS; kill++) {
      await saveAndKill(newest + 1, generator.nextFloat() * LONGEST_MS);
      const step = await loadedStep();
      // never older than what a save has reported, and at most the one that was under way is newer
      const reported = Math.max(newest, await lastSavedStep());
      expect(step).toBeGreaterThanOrEqual(reported);
      expect(step).toBeLessThanOrEqual(reported + 1);
      newest = step;
    }
    expect(newest).toBeGreaterThanOrEqual(KILLS); // every process has saved at least once
    await runOnDisk(1, ({ group }) =>
      saveCheckpoint(directory, { model: modelAt(0), step: newest + 1 }, group, { keep: 1 }),
    );
    expect((await readdir(directory)).sort()).toEqual([PROGRESS, `step-${newest + 1}`].sort());
  },
  10 * 60_000,
);
