import { AsyncLocalStorage } from 'node:async_hooks';
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { inspect } from 'node:util';
import type { Clock } from '../../../src/core/clock';
import { CollectiveTimeoutError, InvalidArgumentError, PeerLostError } from '../../../src/core/errors';
import { Work } from '../../../src/core/work';
import { runnable } from '../../helpers/test-build';

const info = { op: 'allReduce', sequence: 3, group: 'world', rank: 1 };

/** A clock that the test moves by hand. */
function handClock(): { readonly clock: Clock; advance(ms: number): void; readonly pending: () => number } {
  let nowMs = 0;
  const timers = new Set<{ dueMs: number; callback: () => void }>();
  return {
    clock: {
      now: () => nowMs,
      schedule(callback, delayMs) {
        const timer = { dueMs: nowMs + delayMs, callback };
        timers.add(timer);
        return { cancel: () => void timers.delete(timer) };
      },
    },
    advance(ms) {
      nowMs += ms;
      for (const timer of timers) {
        if (timer.dueMs > nowMs) continue;
        timers.delete(timer);
        timer.callback();
      }
    },
    pending: () => timers.size,
  };
}

describe('a Work', () => {
  test('is a promise of nothing that is fulfilled when the call completes', async () => {
    const { work, complete } = Work.create(info);
    expect(work.isCompleted).toBe(false);
    complete();
    expect(work.isCompleted).toBe(true);
    expect(await work).toBeUndefined();
    expect(await work.then(() => 'next')).toBe('next');
    expect(Object.prototype.toString.call(work)).toBe('[object Work]');
  });

  test('rejects with the very error that it failed with, whether awaited before or after', async () => {
    const error = new PeerLostError('rank 2 was lost');
    const before = Work.create(info);
    const waiting = expect(before.work).rejects.toBe(error);
    before.fail(error);
    await waiting;
    const after = Work.failed(info, error);
    expect(after.isCompleted).toBe(true);
    expect(after.error).toBe(error);
    await expect(after).rejects.toBe(error);
    await expect(after.wait()).rejects.toBe(error);
    expect(await after.catch((caught: unknown) => caught)).toBe(error);
  });

  test('settles once: what comes later changes nothing', async () => {
    const done = Work.create(info);
    done.complete();
    done.fail(new Error('late'));
    await done.work;
    expect(done.work.error).toBeUndefined();
    const failed = Work.create(info);
    failed.fail(new Error('first'));
    failed.fail(new Error('second'));
    failed.complete();
    await expect(failed.work).rejects.toThrow('first');
  });

  test('runs finally on both ways', async () => {
    const seen: string[] = [];
    const done = Work.create(info);
    done.complete();
    await done.work.finally(() => seen.push('done'));
    await expect(Work.failed(info, new Error('no')).finally(() => seen.push('failed'))).rejects.toThrow('no');
    expect(seen).toEqual(['done', 'failed']);
  });

  test('works in Promise.all, allSettled and race', async () => {
    const works = [Work.create(info), Work.create(info)];
    const all = Promise.all(works.map(({ work }) => work));
    works.forEach(({ complete }) => complete());
    expect(await all).toEqual([undefined, undefined]);
    const settled = await Promise.allSettled([Work.failed(info, new Error('no')), Promise.race([works[0]?.work])]);
    expect(settled.map(({ status }) => status)).toEqual(['rejected', 'fulfilled']);
  });
});

describe('who waits', () => {
  test('the observer hears of the first wait, also of one for something finished', () => {
    const onAwait = jest.fn();
    const { work } = Work.create(info, { onAwait });
    expect(work.isAwaited).toBe(false);
    expect(onAwait).not.toHaveBeenCalled();
    void work.then();
    void work.wait();
    expect(onAwait.mock.calls).toEqual([[work]]);
    expect(work.isAwaited).toBe(true);
    const finished = Work.create(info, { onAwait });
    finished.complete();
    void finished.work.then();
    void finished.work.then();
    expect(onAwait.mock.calls).toEqual([[work], [finished.work]]);
  });

  test('looking at a Work is not waiting for it', () => {
    const onAwait = jest.fn();
    const { work } = Work.create(info, { onAwait });
    expect(work.isCompleted).toBe(false);
    expect(work.error).toBeUndefined();
    expect(inspect(work)).toContain('allReduce');
    expect(onAwait).not.toHaveBeenCalled();
    expect(work.isAwaited).toBe(false);
  });

  test('the listener of onSettled hears how it ended, once, before anybody who waits', async () => {
    const seen: unknown[] = [];
    const done = Work.create(info);
    done.work.onSettled((error) => seen.push(error));
    const waiting = done.work.then(() => seen.push('waiter'));
    done.complete();
    done.complete();
    expect(seen).toEqual([undefined]);
    await waiting;
    expect(seen).toEqual([undefined, 'waiter']);
    const error = new Error('no');
    const failed = Work.failed(info, error);
    failed.onSettled((reason) => seen.push(reason));
    expect(seen[2]).toBe(error);
    expect(failed.isAwaited).toBe(false);
  });
});

describe('wait with a timeout', () => {
  test('times out by itself while the call goes on, and the Work can be awaited again', async () => {
    const { clock, advance, pending } = handClock();
    const { work, complete } = Work.create(info, undefined, clock);
    const waiting = work.wait({ timeoutMs: 50 });
    advance(49);
    expect(pending()).toBe(1);
    advance(1);
    await expect(waiting).rejects.toThrow(CollectiveTimeoutError);
    await expect(waiting).rejects.toThrow(
      /^allReduce of group world on rank 1, sequence 3 had not finished after the 50 ms/,
    );
    await expect(waiting).rejects.toMatchObject({ context: { op: 'allReduce', sequence: 3, group: 'world', rank: 1 } });
    expect(work.isCompleted).toBe(false);
    complete();
    await work;
    await work.wait({ timeoutMs: 50 });
    expect(pending()).toBe(0);
  });

  test('leaves no timer when the call finishes or fails in time', async () => {
    const { clock, pending } = handClock();
    const done = Work.create(info, undefined, clock);
    const waiting = done.work.wait({ timeoutMs: 50 });
    expect(pending()).toBe(1);
    done.complete();
    await waiting;
    expect(pending()).toBe(0);
    const failed = Work.create(info, undefined, clock);
    const failing = expect(failed.work.wait({ timeoutMs: 50 })).rejects.toThrow('no');
    failed.fail(new Error('no'));
    await failing;
    expect(pending()).toBe(0);
  });

  test('on the machine’s clock', async () => {
    const { work } = Work.create(info);
    await expect(work.wait({ timeoutMs: 5 })).rejects.toThrow(CollectiveTimeoutError);
  });

  test.each([0, -1, NaN, Infinity])('of %p is refused', async (timeoutMs) => {
    await expect(Work.create(info).work.wait({ timeoutMs })).rejects.toThrow(InvalidArgumentError);
    await expect(Work.create(info).work.wait({ timeoutMs })).rejects.toThrow(/finite number of milliseconds above 0/);
  });
});

test('callbacks run in the context of the one who waits, not of the one who settles', async () => {
  const rank = new AsyncLocalStorage<number>();
  const { work, complete } = Work.create(info);
  const seen = [0, 1].map((self) =>
    rank.run(self, async () => {
      await work;
      return rank.getStore();
    }),
  );
  const chained = rank.run(2, () => work.then(() => rank.getStore()));
  const timed = rank.run(3, () => work.wait({ timeoutMs: 1000 }).then(() => rank.getStore()));
  rank.run(9, complete);
  expect(await Promise.all([...seen, chained, timed])).toEqual([0, 1, 2, 3]);
});

test('a Work that fails and is never awaited raises no unhandledRejection; one that somebody chained on does', () => {
  const { options, files } = runnable(join(__dirname, 'fixtures', 'unawaited-work.ts'));
  const run = (mode: string): unknown =>
    JSON.parse(execFileSync(process.execPath, [...options, ...files, mode], { encoding: 'utf8' }));
  expect(run('never-awaited')).toEqual([]);
  expect(run('chained')).toEqual(['rank 2 was lost']);
});

describe('inspect', () => {
  test.each([
    ['pending', Work.create(info).work, 'Work <allReduce group world #3, pending>'],
    [
      'failed',
      Work.failed(info, new Error('rank 2 was lost')),
      'Work <allReduce group world #3, failed: rank 2 was lost>',
    ],
    ['without a group', Work.create({ op: 'send' }).work, 'Work <send, pending>'],
  ])('of one that is %s', (_what, work, text) => {
    expect(inspect(work)).toBe(text);
  });

  test('of one that is done', () => {
    const { work, complete } = Work.create(info);
    complete();
    expect(inspect(work)).toBe('Work <allReduce group world #3, done>');
  });
});
