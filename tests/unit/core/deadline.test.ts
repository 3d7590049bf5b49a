import { checkTimeout, Deadline, DEFAULT_TIMEOUT_MS } from '../../../src/core/deadline';
import { InvalidArgumentError } from '../../../src/core/errors';

test('a deadline is taken once; what remains shrinks to nothing and stays there', () => {
  let nowMs = 1000;
  const clock = { now: () => nowMs, schedule: () => ({ cancel: () => undefined }) };
  const deadline = new Deadline(100, clock);
  expect(deadline.timeoutMs).toBe(100);
  expect([deadline.remainingMs, deadline.isPast]).toEqual([100, false]);
  nowMs += 99;
  expect([deadline.remainingMs, deadline.isPast]).toEqual([1, false]);
  nowMs += 1;
  expect([deadline.remainingMs, deadline.isPast]).toEqual([0, true]);
  nowMs += 1000;
  expect([deadline.remainingMs, deadline.isPast]).toEqual([0, true]);
});

test('on the machine’s clock a new deadline is not past', () => {
  const deadline = new Deadline(60_000);
  expect(deadline.isPast).toBe(false);
  expect(deadline.remainingMs).toBeLessThanOrEqual(60_000);
});

test('the default is ten minutes', () => {
  expect(DEFAULT_TIMEOUT_MS).toBe(600_000);
});

test('a timeout that was not given is the fallback', () => {
  expect(checkTimeout(undefined, 7)).toBe(7);
  expect(checkTimeout(0.5, 7)).toBe(0.5);
});

test.each([[0], [-0], [-1], [NaN], [Infinity], [-Infinity], ['100'], [null]])('a timeout of %p is refused', (value) => {
  expect(() => checkTimeout(value as number, 7)).toThrow(InvalidArgumentError);
  expect(() => checkTimeout(value as number, 7)).toThrow(`got ${String(value)}. Every wait has a deadline`);
});
