import type { Backend } from '../../../src/backend/backend';
import type { Work } from '../../../src/core/work';

export const inFlightPrograms = {
  /** The same few collectives over and over; returns the rounds that went wrong. */
  async repeated(backend: Backend, args: { readonly rounds: number }): Promise<string[]> {
    const { rank, worldSize } = backend;
    const wrong: string[] = [];
    for (let round = 0; round < args.rounds; round++) {
      const sum = Float32Array.of(rank + round);
      await backend.allReduce(sum, 'Sum');
      if (sum[0] !== worldSize * round + (worldSize * (worldSize - 1)) / 2) wrong.push(`round ${round}: sum ${sum[0]}`);
      const all = new Int32Array(worldSize);
      await backend.allGather(Int32Array.of(rank * 1000 + round), all);
      if (all.some((value, peer) => value !== peer * 1000 + round))
        wrong.push(`round ${round}: gathered [${all.join()}]`);
      const root = round % worldSize;
      const word = Int32Array.of(rank === root ? round : -1);
      await backend.broadcast(word, root);
      if (word[0] !== round) wrong.push(`round ${round}: broadcast ${word[0]}`);
    }
    return wrong;
  },

  /** Launch `count` collectives of all kinds, then await them, backwards if asked; returns what went wrong. */
  async manyInFlight(
    backend: Backend,
    args: { readonly count: number; readonly awaitReversed: boolean },
  ): Promise<string[]> {
    const { rank, worldSize } = backend;
    const works: Work[] = [];
    const checks: (() => string | undefined)[] = [];
    const expectElements = (what: string, data: Int32Array, value: (i: number) => number): void => {
      checks.push(() => (data.every((got, i) => got === value(i)) ? undefined : `${what}: [${data.join()}]`));
    };
    for (let index = 0; index < args.count; index++) {
      const root = index % worldSize;
      switch (index % 5) {
        case 0: {
          const data = Int32Array.of(rank, index);
          works.push(backend.allReduce(data, 'Max'));
          expectElements(`allReduce ${index}`, data, (i) => (i === 0 ? worldSize - 1 : index));
          break;
        }
        case 1: {
          const data = Int32Array.of(rank * 100 + index);
          works.push(backend.broadcast(data, root));
          expectElements(`broadcast ${index}`, data, () => root * 100 + index);
          break;
        }
        case 2: {
          const data = new Int32Array(worldSize);
          works.push(backend.allGather(Int32Array.of(rank + index), data));
          expectElements(`allGather ${index}`, data, (i) => i + index);
          break;
        }
        case 3: {
          const data = new Int32Array(1);
          works.push(
            backend.reduceScatter(
              Int32Array.from({ length: worldSize }, (_unused, i) => i + index),
              data,
              'Sum',
            ),
          );
          expectElements(`reduceScatter ${index}`, data, () => worldSize * (rank + index));
          break;
        }
        default:
          works.push(backend.barrier());
      }
    }
    for (const work of args.awaitReversed ? works.toReversed() : works) await work;
    return checks.map((check) => check()).filter((problem) => problem !== undefined);
  },

  /** Rank 0 launches an all-reduce, lets the others know, and only then do they join: is it completed before, after? */
  async completion(backend: Backend): Promise<boolean[]> {
    const { rank, worldSize } = backend;
    const data = Int32Array.of(rank);
    const go = new Int32Array(1);
    if (rank !== 0) {
      await backend.recv(go, 0);
      await backend.allReduce(data, 'Sum');
      return [];
    }
    const work = backend.allReduce(data, 'Sum');
    const before = work.isCompleted;
    for (let peer = 1; peer < worldSize - 1; peer++) await backend.send(go, peer);
    const withoutLast = work.isCompleted;
    await backend.send(go, worldSize - 1);
    await work;
    return [before, withoutLast, work.isCompleted];
  },

  /** Awaiting a Work twice, by `then` and `wait`, before and after it settles. */
  async awaitedTwice(backend: Backend): Promise<number[]> {
    const data = Int32Array.of(1);
    const work = backend.allReduce(data, 'Sum');
    await Promise.all([work, work.wait(), work.wait({ timeoutMs: 60_000 }), work.then(() => undefined)]);
    await work;
    await work.wait({ timeoutMs: 1 });
    return [...data];
  },
};
