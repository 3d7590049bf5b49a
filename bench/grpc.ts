/**
 * All-reduce between processes of this machine, beside gloo in the same run: transports take turns, and a
 * ratio is the median of the ratios of neighbouring turns.
 */
import { mkdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { freePort } from '../tests/helpers/free-port';
import { RankProcess } from '../tests/helpers/rank-processes';
import { Gloo, pythonWithGloo } from './gloo';
import type { tasks } from './grpc-tasks';
import { describe, median, report, summarise } from './measure';

type Rank = RankProcess<typeof tasks>;

const MIB = 2 ** 20;
const LIMIT_MS = 120_000;

/** Bytes, and operations in a block. A turn is a block of warm-up and BLOCKS that count; its figure is their median. */
const SIZES = [
  { bytes: 4, iterations: 200 },
  { bytes: 4096, iterations: 200 },
  { bytes: MIB, iterations: 20 },
  { bytes: 25 * MIB, iterations: 4 },
  { bytes: 100 * MIB, iterations: 1 },
] as const;
const BLOCKS = 5;
const TURNS = 5;

const TRANSPORTS = [
  { name: 'Unix sockets', dataPlane: 'socket', isWithoutUnixSockets: false },
  { name: 'TCP', dataPlane: 'socket', isWithoutUnixSockets: true },
  { name: 'gRPC', dataPlane: 'grpc', isWithoutUnixSockets: false },
] as const;
type Transport = (typeof TRANSPORTS)[number];

/** Where ranks may leave rank order; many turns of one short block, since many ranks share few cores. */
const ANY_ORDER_SIZES = [
  { bytes: 4, iterations: 20 },
  { bytes: 4096, iterations: 20 },
  { bytes: 64 * 1024, iterations: 10 },
] as const;
const ANY_ORDER_TURNS = 100;

export async function benchGrpc(): Promise<void> {
  const python = pythonWithGloo();
  if (python === undefined) {
    process.stdout.write('gloo is not installed (Debian: python3-torch libopenblas0): its ratios are skipped\n');
  }
  for (const size of [2, 4]) await benchAllReduce(size, python);
  for (const size of [4, 7]) await benchAnyOrder(size);
  await benchPeakMemory();
  await benchDdp();
  rmSync(join(tmpdir(), 'lockstep-bench'), { recursive: true, force: true });
}

/** Unix sockets lie in the temporary folder; where its path is too long for them, ranks use TCP. */
function longTemporaryFolder(): string {
  const folder = join(tmpdir(), 'lockstep-bench', 'a-path-too-long-for-a-unix-socket-'.repeat(3));
  mkdirSync(folder, { recursive: true });
  return folder;
}

async function startWorld(
  size: number,
  { dataPlane, isWithoutUnixSockets }: Transport,
  deterministic = true,
): Promise<Rank[]> {
  const env = isWithoutUnixSockets ? { TMPDIR: longTemporaryFolder() } : {};
  const tasksFile = join(__dirname, 'grpc-tasks.ts');
  const ranks = Array.from({ length: size }, () => new RankProcess<typeof tasks>({ tasksFile, env }));
  const job = { worldSize: size, masterPort: await freePort(), dataPlane, deterministic, timeoutMs: LIMIT_MS };
  await Promise.all(ranks.map((process, rank) => process.call('open', { ...job, rank })));
  return ranks;
}

async function endWorld(ranks: readonly Rank[]): Promise<void> {
  await Promise.all(ranks.map((rank) => rank.call('close', undefined)));
  await Promise.all(ranks.map((rank) => rank.end()));
}

async function benchAllReduce(size: number, python: string | undefined): Promise<void> {
  const worlds: Rank[][] = [];
  for (const transport of TRANSPORTS) worlds.push(await startWorld(size, transport));
  const gloo = python === undefined ? undefined : await Gloo.start(python, size);
  try {
    for (const { bytes, iterations } of SIZES) {
      const glooMs: number[] = [];
      const ownMs: number[][] = worlds.map(() => []);
      for (let turn = 0; turn < TURNS; turn++) {
        for (const [index, ranks] of worlds.entries()) {
          const byRank = await Promise.all(
            ranks.map((rank) => rank.call('measure', { bytes, iterations, blocks: BLOCKS }, LIMIT_MS)),
          );
          ownMs[index]?.push(median(byRank[0] as number[]) / 1000);
        }
        if (gloo !== undefined) glooMs.push(median(await gloo.measure(bytes, iterations, BLOCKS)) / 1000);
      }
      if (gloo !== undefined)
        report(`all-reduce ${describeBytes(bytes)}, ${size} ranks, gloo`, describeFine(glooMs), 'reference');
      for (const [index, { name }] of TRANSPORTS.entries()) {
        const times = ownMs[index] as number[];
        const ratio =
          gloo === undefined ? '' : ` = ${median(times.map((ms, i) => ms / (glooMs[i] as number))).toFixed(2)}x`;
        report(
          `all-reduce ${describeBytes(bytes)}, ${size} ranks, ${name}`,
          describeFine(times) + ratio,
          targetOf(bytes, size, name),
        );
      }
    }
  } finally {
    for (const ranks of worlds) await endWorld(ranks);
    await gloo?.close();
  }
}

/** What `deterministic: false` saves. */
async function benchAnyOrder(size: number): Promise<void> {
  const [transport] = TRANSPORTS;
  const inRankOrder = await startWorld(size, transport);
  const inAnyOrder = await startWorld(size, transport, false);
  const blockMs = async (ranks: readonly Rank[], bytes: number, iterations: number): Promise<number> => {
    const block = { bytes, iterations, blocks: 1 };
    const [first] = await Promise.all(ranks.map((rank) => rank.call('measure', block, LIMIT_MS)));
    return median(first as number[]) / 1000;
  };
  for (const { bytes, iterations } of ANY_ORDER_SIZES) {
    const times: number[] = [];
    const ratios: number[] = [];
    for (let turn = -10; turn < ANY_ORDER_TURNS; turn++) {
      const reference = await blockMs(inRankOrder, bytes, iterations);
      const subject = await blockMs(inAnyOrder, bytes, iterations);
      if (turn < 0) continue;
      times.push(subject);
      ratios.push(subject / reference);
    }
    report(
      `all-reduce ${describeBytes(bytes)}, ${size} ranks, deterministic: false`,
      `${describeFine(times)} = ${median(ratios).toFixed(2)}x of true`,
      'under 1x',
    );
  }
  for (const ranks of [inRankOrder, inAnyOrder]) await endWorld(ranks);
}

function targetOf(bytes: number, size: number, transport: Transport['name']): string {
  if (bytes === 4 && transport === 'Unix sockets') return 'under 1x gloo';
  if (bytes !== 25 * MIB || transport === 'TCP') return 'none';
  if (transport === 'gRPC') return 'at most 4x gloo';
  return `at most ${size === 2 ? 1.4 : 1.8}x gloo`;
}

const describeBytes = (bytes: number): string =>
  bytes >= MIB ? `${bytes / MIB} MiB` : bytes >= 1024 ? `${bytes / 1024} KiB` : `${bytes} B`;

/** Milliseconds with enough digits for microseconds. */
function describeFine(samplesMs: readonly number[]): string {
  const { medianMs, spread } = summarise(samplesMs);
  return `${medianMs.toFixed(medianMs < 1 ? 3 : 1)} ms ±${(100 * spread).toFixed(0)} %`;
}

async function benchPeakMemory(): Promise<void> {
  const bytes = 100 * MIB;
  for (const transport of TRANSPORTS) {
    for (const size of [2, 4]) {
      const ranks = await startWorld(size, transport);
      const growth = await Promise.all(ranks.map((rank) => rank.call('peakMemory', { bytes }, LIMIT_MS)));
      await endWorld(ranks);
      const figure = `${(Math.max(...growth) / MIB).toFixed(0)} MiB`;
      report(
        `peak memory, all-reduce 100 MiB, ${size} ranks, ${transport.name}`,
        figure,
        'under 194 MiB (1.3x + 64 MiB)',
      );
    }
  }
}

async function benchDdp(): Promise<void> {
  const [transport] = TRANSPORTS;
  const ranks = await startWorld(2, transport);
  const steps = 15;
  const times: number[] = [];
  const ratios: number[] = [];
  for (let round = -1; round < 5; round++) {
    const alone = median(await (ranks[0] as Rank).call('train', { steps, isDistributed: false }, LIMIT_MS));
    const byRank = await Promise.all(ranks.map((rank) => rank.call('train', { steps, isDistributed: true }, LIMIT_MS)));
    if (round < 0) continue;
    times.push(median(byRank[0] as number[]));
    ratios.push(median(byRank[0] as number[]) / alone);
  }
  await endWorld(ranks);
  const figure = `${median(ratios).toFixed(2)}x, ${describe(summarise(times))}`;
  report('DDP step on 2 processes to 1 process, same batch a rank', figure, 'none; 1x would be free');
}
