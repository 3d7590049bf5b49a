/**
 * Train a character-level GPT with ZeRO, on mock ranks in this process or on one process a rank:
 *
 *     npx tsx examples/gpt/train.ts --mock 4 --sample 300
 *     npx lockstep run --nproc 4 examples/gpt/train.ts --stage 3 --checkpoint checkpoints
 *
 * Ctrl-C saves a checkpoint and stops; the same line with --resume goes on, to the same bits. A second Ctrl-C stops at once.
 * The launcher gives its ranks 5 s for that; a large model may need more: `lockstep run --grace-ms 60000 ...`.
 */
import { World } from 'lockstep';
import { runWorld } from 'lockstep/testing';
import { progressOf, say } from './report';
import { sampleText } from './sampling';
import { HELP, readSettings, type Settings } from './settings';
import { loadText, type Text } from './text';
import { trainGpt } from './training';

async function main(): Promise<void> {
  const settings = readSettings();
  if (settings === undefined) return say(HELP);
  const text = loadText(settings.text);
  const shouldStop = stopOnSignals();
  if (settings.mockRanks !== undefined) {
    await runWorld(settings.mockRanks, (world) => runRank(world, text, settings, shouldStop));
    return;
  }
  const world = await World.init();
  try {
    await runRank(world, text, settings, shouldStop);
  } finally {
    await world.close();
  }
}

async function runRank(world: World, text: Text, settings: Settings, shouldStop: () => boolean): Promise<void> {
  const result = await trainGpt(world, text, settings, progressOf(world, settings), shouldStop);
  if (world.isMain) {
    say(
      `${result.isStopped ? 'stopped' : 'done'} at step ${result.step}, validation loss ${result.validationLoss.toFixed(4)}`,
    );
  }
  if (result.isStopped || settings.sample === 0) return;
  const { sample: length, prompt, temperature, context, seed } = settings;
  const written = await sampleText(result.model, text.vocabulary, { length, prompt, temperature, context, seed });
  if (world.isMain) say(`\n${written}`);
}

/** Says whether the first SIGINT or SIGTERM has come; the second one has its usual effect. */
function stopOnSignals(): () => boolean {
  let isAsked = false;
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => (isAsked = true));
  return () => isAsked;
}

// An error that nobody catches ends the process with it, and the launcher says which rank it was.
void main();
