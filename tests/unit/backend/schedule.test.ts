import { MockBackend } from '../../../src/backend/mock/mock-backend';
import type { MockOptions } from '../../../src/backend/mock/mock-options';
import { count } from '../../helpers/counts';
import { floats, results } from './mock-worlds';

const SIZES = [1, 2, 3, 4, 7];

/** All kinds of calls, several in flight at once, in two overlapping groups. */
async function mixedProgram(backend: MockBackend, log: string[] = []): Promise<number[]> {
  const { rank, worldSize: size } = backend;
  const note = (what: string): void => void log.push(`${what}${rank}`);
  const seen: number[] = [];
  const everyone = Array.from({ length: size }, (_unused, r) => r);
  const reversed = await backend.split([...everyone].reverse());
  const others = size > 1 ? await backend.split(everyone.slice(1)) : undefined;
  note('split');
  const [a, b, c] = [floats(rank + 1, 2), new Float32Array(size), floats(rank)];
  const works = [backend.allReduce(a, 'Sum'), reversed?.allGather(floats(rank), b), others?.allReduce(c, 'Max')];
  for (const work of works.reverse()) await work;
  note('launched');
  seen.push(...a, ...b, ...(rank > 0 ? c : []));
  const [send, parts, own] = [floats(rank), new Float32Array(size), floats(0)];
  for (let round = 0; round < 3; round++) {
    await backend.allGather(send, parts);
    send.fill(100 * round + rank); // its owner may use it again at once, whatever the others do
    seen.push(...parts);
    await backend.reduceScatter(parts, own, 'Sum');
    parts.fill(-1);
    seen.push(...own);
  }
  if (size > 1) {
    const [next, previous] = [(rank + 1) % size, (rank + size - 1) % size];
    const received = floats(0);
    await backend.batch([
      { op: 'send', data: floats(10 * rank), peer: next, tag: 3 },
      { op: 'recv', data: received, peer: previous, tag: 3 },
    ]);
    seen.push(...received);
  }
  note('ring');
  const root = floats(rank);
  await backend.broadcast(root, size - 1);
  seen.push(...root);
  await others?.close();
  await reversed?.close();
  await backend.barrier();
  note('end');
  return seen;
}

describe.each(SIZES)('on %i ranks', (size) => {
  test('a random schedule changes no result', async () => {
    const expected = await results(size, (backend) => mixedProgram(backend));
    const seeds = count('random schedules of a mixed program', 40, 2000);
    for (let seed = 0; seed < seeds; seed++) {
      const options: MockOptions = { schedule: 'random', seed, portable: seed % 2 === 0, timeoutMs: 20_000 };
      expect(await results(size, (backend) => mixedProgram(backend), options)).toEqual(expected);
    }
  }, 120_000);
});

async function trace(options: MockOptions): Promise<string> {
  const log: string[] = [];
  await results(4, (backend) => mixedProgram(backend, log), options);
  return log.join(' ');
}

test('the same seed gives the same order of events, other seeds give others', async () => {
  const traces = new Set<string>();
  for (let seed = 0; seed < 10; seed++) {
    const first = await trace({ schedule: 'random', seed });
    expect(await trace({ schedule: 'random', seed })).toBe(first);
    traces.add(first);
  }
  expect(traces.size).toBeGreaterThan(5);
});

test('in fifo order ranks go on in rank order', async () => {
  const log: number[] = [];
  await results(4, async (backend) => {
    await backend.barrier();
    log.push(backend.rank);
  });
  expect(log).toEqual([0, 1, 2, 3]);
});

test('a random schedule finds a race between ranks that fifo order hides', async () => {
  const lastToAnswer = async (options: MockOptions): Promise<number> => {
    let last = -1; // shared by all ranks, as a careless test might
    await results(
      3,
      async (backend) => {
        await backend.barrier();
        last = backend.rank;
      },
      options,
    );
    return last;
  };
  expect(await lastToAnswer({})).toBe(2);
  const seen = new Set<number>();
  for (let seed = 0; seed < 20; seed++) seen.add(await lastToAnswer({ schedule: 'random', seed }));
  expect(seen).toEqual(new Set([0, 1, 2]));
});

test('a result stays poison until its own rank is told', async () => {
  const world = MockBackend.createWorld(2, { schedule: 'random', seed: 1 });
  const buffers = [floats(1), floats(2)];
  const works = world.map((backend, rank) => backend.allReduce(buffers[rank] as Float32Array, 'Sum'));
  while (works.some((work) => !work.isCompleted)) {
    works.forEach((work, rank) => expect(buffers[rank]?.[0]).toBe(work.isCompleted ? 3 : NaN));
    await new Promise(setImmediate);
  }
  await Promise.all(works);
  expect(buffers.map((buffer) => buffer[0])).toEqual([3, 3]);
});
