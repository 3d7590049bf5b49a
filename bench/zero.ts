/** What a step costs with ZeRO, beside the same step with DDP: the ways take turns, and ratios are of one round. */
import { join } from 'node:path';
import { runWorld } from 'lockstep/testing';
import { freePort } from '../tests/helpers/free-port';
import { RankProcess } from '../tests/helpers/rank-processes';
import { describe, median, report, summarise, time } from './measure';
import type { tasks } from './zero-tasks';
import { MODELS, WAYS, makeTrainers, type Way } from './zero-trainer';

const WARM_UP = 2;
const ROUNDS = 9;
const MOCK_RANKS = 4;
const PROCESSES = 2;
const LIMIT_MS = 120_000;

const TARGETS: Record<Way, string> = { DDP: 'reference', 1: 'at most 1.15x', 2: 'at most 1.15x', 3: 'at most 1.5x' };

/** By way, milliseconds of each round. */
type Samples = ReadonlyMap<Way, number[]>;

export async function benchZero(): Promise<void> {
  for (const model of MODELS) {
    const onMock = await runWorld(MOCK_RANKS, async (world) => {
      const trainers = await makeTrainers(world, model);
      return sampleInTurn((way) =>
        time(async () => {
          await trainers.get(way)?.();
          await world.barrier();
        }),
      );
    });
    reportSamples(`${model}, ${MOCK_RANKS} mock ranks`, onMock[0] as Samples);
  }
  const tasksFile = join(__dirname, 'zero-tasks.ts');
  const ranks = Array.from({ length: PROCESSES }, () => new RankProcess<typeof tasks>({ tasksFile }));
  try {
    const job = { worldSize: PROCESSES, masterPort: await freePort(), timeoutMs: LIMIT_MS };
    await Promise.all(ranks.map((process, rank) => process.call('open', { ...job, rank })));
    for (const model of MODELS) {
      await Promise.all(ranks.map((process) => process.call('prepare', model, LIMIT_MS)));
      const samples = await sampleInTurn(async (way) => {
        const byRank = await Promise.all(ranks.map((process) => process.call('step', way, LIMIT_MS)));
        return byRank[0] as number;
      });
      reportSamples(`${model}, ${PROCESSES} processes`, samples);
    }
    await Promise.all(ranks.map((process) => process.call('close', undefined)));
  } finally {
    await Promise.all(ranks.map((process) => process.end()));
  }
}

async function sampleInTurn(measure: (way: Way) => Promise<number>): Promise<Samples> {
  const samples = new Map<Way, number[]>(WAYS.map((way) => [way, []]));
  for (let round = -WARM_UP; round < ROUNDS; round++) {
    for (const way of WAYS) {
      const ms = await measure(way);
      if (round >= 0) samples.get(way)?.push(ms);
    }
  }
  return samples;
}

function reportSamples(where: string, samples: Samples): void {
  const reference = samples.get('DDP') as number[];
  for (const [way, times] of samples) {
    const ratio = median(times.map((ms, round) => ms / (reference[round] as number)));
    const figure = describe(summarise(times));
    const name = way === 'DDP' ? 'DDP' : `ZeRO stage ${way}`;
    report(`step of ${where}, ${name}`, way === 'DDP' ? figure : `${ratio.toFixed(2)}x (${figure})`, TARGETS[way]);
  }
}
