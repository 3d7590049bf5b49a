/**
 * A process that saves one checkpoint after another until it is killed: `checkpoint-loop.ts <directory> <first step>`. It
 * prints a line when the first one is there.
 */
import { appendFileSync } from 'node:fs';
import { join } from 'node:path';
import { saveCheckpoint, saveCheckpointAsync } from '../../../src/checkpoint/checkpoint';
import { Linear } from '../../../src/nn/linear';
import { runWorld } from '../../../src/testing/run-world';

/** Where the steps are noted whose save has settled. */
export const PROGRESS = 'progress.txt';

const WIDTH = 160; // 100 KB, so that a kill may hit a file half written

/** A model all of whose elements say which step it is of. */
export function modelAt(step: number): Linear {
  const model = new Linear(WIDTH, WIDTH);
  for (const { data } of model.parameters()) (data as Float32Array).fill(step);
  return model;
}

async function saveForever(directory: string, firstStep: number): Promise<void> {
  await runWorld(2, async ({ group }) => {
    for (let step = firstStep; ; step++) {
      const state = { model: modelAt(step), step };
      if (step % 3 === 0) await (await saveCheckpointAsync(directory, state, group, { keep: 2 })).done;
      else await saveCheckpoint(directory, state, group, { keep: 2 });
      if (step % 4 === 0) await saveCheckpoint(directory, state, group, { keep: 2 }); // the same step again
      if (group.rank === 0) appendFileSync(join(directory, PROGRESS), `${step}\n`);
      if (group.rank === 0 && step === firstStep) process.stdout.write('ready\n');
    }
  });
}

if (require.main === module) {
  const [, , directory, firstStep] = process.argv;
  void saveForever(directory as string, Number(firstStep));
}
