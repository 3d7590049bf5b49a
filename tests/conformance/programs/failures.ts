import type { Backend } from '../../../src/backend/backend';
import type { Work } from '../../../src/core/work';
import { computeFor, endingOf, everybody, leave, type Ending } from '../program';

const floats = (length: number): Float32Array => new Float32Array(length);

/** Calls of rank 0 that cannot complete without the last rank of three, and that rank's part in them. */
const timedCalls: Record<string, (group: Backend, timeoutMs: number | undefined) => PromiseLike<unknown>> = {
  allReduce: (group, timeoutMs) => group.allReduce(floats(2), 'Sum', { timeoutMs }),
  broadcast: (group, timeoutMs) => group.broadcast(floats(2), 2, { timeoutMs }),
  allGather: (group, timeoutMs) => group.allGather(floats(2), floats(6), { timeoutMs }),
  reduceScatter: (group, timeoutMs) => group.reduceScatter(floats(6), floats(2), 'Sum', { timeoutMs }),
  reduce: (group, timeoutMs) =>
    group.reduce(floats(2), group.rank === 0 ? floats(2) : undefined, 0, 'Sum', { timeoutMs }),
  gather: (group, timeoutMs) => group.gather(floats(2), group.rank === 0 ? floats(6) : undefined, 0, { timeoutMs }),
  scatter: (group, timeoutMs) => group.scatter(group.rank === 2 ? floats(6) : undefined, floats(2), 2, { timeoutMs }),
  allToAll: (group, timeoutMs) => group.allToAll(floats(3), floats(3), { timeoutMs }),
  barrier: (group, timeoutMs) => group.barrier({ timeoutMs }),
  split: (group, timeoutMs) => group.split([0, 1, 2], { timeoutMs }),
  send: (group, timeoutMs) => group.send(floats(2), 2, 5, { timeoutMs }),
  recv: (group, timeoutMs) => group.recv(floats(2), 2, 5, { timeoutMs }),
  batch: (group, timeoutMs) => group.batch([{ op: 'recv', data: floats(2), peer: 2, tag: 5 }], { timeoutMs }),
};

export const TIMED_CALLS = Object.keys(timedCalls);

export interface TimedEnding {
  readonly call: string;
  readonly ending: Ending;
  readonly elapsedMs: number;
  readonly sequence: number | null;
  readonly later: Ending;
}

const closingCalls: Record<string, (backend: Backend) => PromiseLike<unknown>> = {
  allReduce: (backend) => backend.allReduce(floats(1), 'Sum'),
  broadcast: (backend) => backend.broadcast(floats(1), 0),
  allGather: (backend) => backend.allGather(floats(1), floats(backend.worldSize)),
  reduceScatter: (backend) => backend.reduceScatter(floats(backend.worldSize), floats(1), 'Sum'),
  reduce: (backend) => backend.reduce(floats(1), floats(1), backend.rank, 'Sum'),
  gather: (backend) => backend.gather(floats(1), floats(backend.worldSize), backend.rank),
  scatter: (backend) => backend.scatter(floats(backend.worldSize), floats(1), backend.rank),
  allToAll: (backend) => backend.allToAll(floats(backend.worldSize), floats(backend.worldSize)),
  barrier: (backend) => backend.barrier(),
  send: (backend) => backend.send(floats(1), (backend.rank + 1) % backend.worldSize),
  recv: (backend) => backend.recv(floats(1), (backend.rank + 1) % backend.worldSize),
  batch: (backend) => backend.batch([{ op: 'send', data: floats(1), peer: (backend.rank + 1) % backend.worldSize }]),
  split: (backend) => backend.split([0]),
};

export const failurePrograms = {
  /** Each call in a group of its own, all at once, while the last rank is busy for `lateMs`; then once more. */
  async lateRank(
    backend: Backend,
    args: { readonly calls: readonly string[]; readonly timeoutMs: number; readonly lateMs: number },
  ): Promise<TimedEnding[]> {
    const groups: Backend[] = [];
    for (let i = 0; i < args.calls.length; i++) groups.push(await everybody(backend));
    for (const group of groups) await group.barrier(); // so that the sequence number is not the first
    if (backend.rank === 2) await computeFor(args.lateMs);
    const start = performance.now();
    const endings = await Promise.all(
      args.calls.map(async (call, i): Promise<TimedEnding> => {
        const group = groups[i] as Backend;
        const timeoutMs = backend.rank === 0 ? args.timeoutMs : undefined; // one deadline, so that it is known when it passes
        const isOneSided = ['send', 'recv', 'batch'].includes(call);
        if (isOneSided && backend.rank !== 0) return emptyEnding(call);
        const work = timedCalls[call]?.(group, timeoutMs) as Work | Promise<unknown>;
        const ending = await endingOf(work);
        const sequence = 'info' in work ? (work.info.sequence ?? null) : null;
        return { call, ending, elapsedMs: performance.now() - start, sequence, later: await endingOf(group.barrier()) };
      }),
    );
    await leave(backend, groups);
    return endings;
  },

  /** The deadline of the group holds where the call gives none. */
  async lateRankInWorld(
    backend: Backend,
    args: { readonly lateMs: number },
  ): Promise<{ ending: Ending; elapsedMs: number }> {
    if (backend.rank === backend.worldSize - 1) await computeFor(args.lateMs);
    const start = performance.now();
    const ending = await endingOf(backend.allReduce(floats(2), 'Sum'));
    return { ending, elapsedMs: performance.now() - start };
  },

  /** A wait may give up before the call does; the call goes on. */
  async impatientWait(
    backend: Backend,
    args: { readonly lateMs: number },
  ): Promise<{ first: Ending; isCompleted: boolean; sum: number }> {
    if (backend.rank === 1) await computeFor(args.lateMs);
    const data = Int32Array.of(1);
    const work = backend.allReduce(data, 'Sum');
    const first = backend.rank === 0 ? await endingOf(work.wait({ timeoutMs: 5 })) : ({ ok: true } as const);
    const isCompleted = work.isCompleted;
    await work;
    return { first, isCompleted, sum: data[0] as number };
  },

  /** The last rank closes while the others wait in a collective, and rank 0 in a receive too. */
  async closeWhileOthersWait(backend: Backend): Promise<{ endings: Ending[]; later: Ending }> {
    if (backend.rank === backend.worldSize - 1) {
      await computeFor(20);
      await backend.close();
      return { endings: [], later: await endingOf(backend.barrier()) };
    }
    const calls: PromiseLike<unknown>[] = [backend.allReduce(floats(2), 'Sum')];
    if (backend.rank === 0) calls.push(backend.recv(floats(1), backend.worldSize - 1));
    const endings = await Promise.all(calls.map(endingOf));
    return { endings, later: await endingOf(backend.barrier()) };
  },

  /** A rank closes with a call of its own in flight. */
  async closeWithOwnCallPending(backend: Backend): Promise<Ending> {
    if (backend.rank !== 0) return { ok: true };
    const pending = endingOf(backend.allReduce(floats(2), 'Sum'));
    await backend.close();
    return pending;
  },

  /** As every program ends: all ranks close as soon as their last call is done. */
  async closeAtOnce(backend: Backend, args: { readonly rounds: number }): Promise<Ending[]> {
    const endings: Ending[] = [];
    for (let round = 0; round < args.rounds; round++) {
      const group = await everybody(backend);
      const root = round % backend.worldSize;
      endings.push(await endingOf(round % 2 === 0 ? group.barrier() : group.broadcast(floats(1000), root)));
      await group.close();
    }
    return endings;
  },

  /** Every call after `close`, and that closing again, in both ways, is harmless. */
  async callsAfterClose(backend: Backend): Promise<{ call: string; ending: Ending }[]> {
    await backend.barrier();
    await Promise.all([backend.close(), backend.close()]);
    await backend.close();
    await backend[Symbol.asyncDispose]();
    backend.abort(new Error('after the end'));
    const endings: { call: string; ending: Ending }[] = [];
    for (const [call, make] of Object.entries(closingCalls))
      endings.push({ call, ending: await endingOf(make(backend)) });
    return endings;
  },

  /** Rank 1 aborts a group: with a call of its own pending, while rank 0 waits and before rank 2 calls. */
  async abort(
    backend: Backend,
    args: { readonly reason: string },
  ): Promise<{ first: Ending; later: Ending; world: Ending }> {
    const group = await everybody(backend);
    if (group.rank === 1) await computeFor(20);
    if (group.rank === 2) await computeFor(60);
    const work = group.allReduce(floats(2), 'Sum');
    if (group.rank === 1) group.abort(new RangeError(args.reason));
    const first = await endingOf(work);
    const later = await endingOf(group.barrier());
    const world = await endingOf(backend.barrier());
    await leave(backend, [group]);
    return { first, later, world };
  },

  /** Rank 1 throws out of its program; a group without it goes on. */
  async lostRank(
    backend: Backend,
    args: { readonly message: string },
  ): Promise<{ world: Ending; group: Ending; later: Ending; others: number }> {
    const withLost = await backend.split([0, 1]);
    const withoutLost = await backend.split([0, 2]);
    if (backend.rank === 1) {
      await computeFor(10);
      throw new TypeError(args.message);
    }
    const inGroup = withLost === undefined ? Promise.resolve<Ending>({ ok: true }) : endingOf(withLost.barrier());
    const world = await endingOf(backend.allReduce(floats(2), 'Sum'));
    const group = await inGroup;
    const later = await endingOf(backend.barrier());
    const sum = Int32Array.of(1);
    await withoutLost?.allReduce(sum, 'Sum');
    await withLost?.close();
    await withoutLost?.close();
    return { world, group, later, others: sum[0] as number };
  },
};

function emptyEnding(call: string): TimedEnding {
  return { call, ending: { ok: true }, elapsedMs: 0, sequence: null, later: { ok: true } };
}
