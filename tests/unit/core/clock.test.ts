import { nextTurn, systemClock } from '../../../src/core/clock';
import type * as ClockModule from '../../../src/core/clock';
import { secondCopy } from '../../helpers/second-copy';
import { Deadline } from '../../../src/core/deadline';
import { Work } from '../../../src/core/work';

function elapse(ms: number, keepAlive?: boolean): Promise<void> {
  return new Promise((resolve) => systemClock.schedule(resolve, ms, keepAlive));
}

test('time never goes back, and a timer does not fire early', async () => {
  const start = systemClock.now();
  await elapse(20, true);
  const elapsed = systemClock.now() - start;
  expect(elapsed).toBeGreaterThanOrEqual(19); // node rounds to whole milliseconds
});

test('a cancelled timer does not fire, and cancelling twice or late is harmless', async () => {
  const fired = jest.fn();
  const timer = systemClock.schedule(fired, 1);
  timer.cancel();
  timer.cancel();
  await elapse(10, true);
  expect(fired).not.toHaveBeenCalled();
  const late = systemClock.schedule(fired, 1, true);
  await elapse(10, true);
  late.cancel();
  expect(fired).toHaveBeenCalledTimes(1);
});

test('a wait longer than setTimeout can take does not fire at once', async () => {
  const fired = jest.fn();
  const timer = systemClock.schedule(fired, 2 ** 40);
  await elapse(10, true);
  timer.cancel();
  expect(fired).not.toHaveBeenCalled();
});

test('a wait longer than setTimeout can take is made of several, and ends when it should', () => {
  const longest = 2 ** 31 - 1;
  const delayMs = 2 * longest + 5;
  let nowMs = 0;
  const pending: { callback: () => void; delayMs: number }[] = [];
  const { systemClock: slowClock } = secondCopy(() => {
    jest.doMock('node:perf_hooks', () => ({ performance: { now: () => nowMs } }));
    jest.doMock('node:timers', () => ({
      ...jest.requireActual<object>('node:timers'),
      setTimeout: (callback: () => void, ms: number) => {
        pending.push({ callback, delayMs: ms });
        return { unref: () => undefined };
      },
    }));
    return jest.requireActual<typeof ClockModule>('../../../src/core/clock');
  });
  jest.dontMock('node:perf_hooks').dontMock('node:timers');

  let firedAtMs: number | undefined;
  slowClock.schedule(() => (firedAtMs = nowMs), delayMs);
  const waits: number[] = [];
  for (let timer = pending.shift(); timer !== undefined; timer = pending.shift()) {
    waits.push(timer.delayMs);
    nowMs += timer.delayMs;
    timer.callback();
  }
  expect(waits).toEqual([longest, longest, 5]);
  expect(firedAtMs).toBe(delayMs);
});

test('nextTurn runs after all microtasks, and can be cancelled', async () => {
  const order: string[] = [];
  const turn = new Promise<void>((resolve) => {
    nextTurn(() => {
      order.push('turn');
      resolve();
    });
  });
  nextTurn(() => order.push('cancelled')).cancel();
  for (let i = 0; i < 100; i++) await Promise.resolve();
  order.push('microtasks');
  await turn;
  expect(order).toEqual(['microtasks', 'turn']);
});

describe('under the fake timers of Jest', () => {
  afterEach(() => jest.useRealTimers());

  async function expectTimePasses(clock: typeof systemClock, turn: typeof nextTurn): Promise<void> {
    const start = clock.now();
    await new Promise<void>((resolve) => clock.schedule(resolve, 5, true));
    await new Promise<void>((resolve) => turn(resolve));
    expect(clock.now()).toBeGreaterThan(start);
  }

  test('time goes on: timers fire, turns come, deadlines pass', async () => {
    jest.useFakeTimers();
    await expectTimePasses(systemClock, nextTurn);
    const deadline = new Deadline(1);
    await elapse(5, true);
    expect(deadline.isPast).toBe(true);
    await expect(Work.create({ op: 'barrier' }).work.wait({ timeoutMs: 1 })).rejects.toThrow('had not finished');
  });

  test('time goes on when the package is loaded only after they were switched on', async () => {
    jest.useFakeTimers();
    const late = secondCopy(() => jest.requireActual<typeof ClockModule>('../../../src/core/clock'));
    const { systemClock: lateClock, nextTurn: lateTurn } = late;
    await expectTimePasses(lateClock, lateTurn);
  });

  test('what the user does with fake time does not fire our timers', async () => {
    jest.useFakeTimers();
    const fired = jest.fn();
    const timer = systemClock.schedule(fired, 60_000);
    jest.advanceTimersByTime(120_000);
    await elapse(5, true);
    timer.cancel();
    expect(fired).not.toHaveBeenCalled();
  });
});

test('a timer never fires before its time, though it was set late in a long turn', async () => {
  const startOfTurn = systemClock.now();
  while (systemClock.now() - startOfTurn < 20); // Node would count these 20 ms as waited
  const setMs = systemClock.now();
  const firedMs = await new Promise<number>((resolve) =>
    systemClock.schedule(() => resolve(systemClock.now()), 15, true),
  );
  expect(firedMs - setMs).toBeGreaterThanOrEqual(15);
});
