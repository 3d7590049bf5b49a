/** When a process speaks its last words, and when it keeps silent; what comes of them is tests/fault/processes/lost-ranks. */
import { beforeFatalError } from '../../../src/backend/grpc/last-words';

const MONITOR = 'uncaughtExceptionMonitor';
const fail = (error: unknown): boolean => (process as NodeJS.EventEmitter).emit(MONITOR, error, 'uncaughtException');

const forgets: (() => void)[] = [];
afterEach(() => {
  for (const forget of forgets.splice(0)) forget();
});

/** What it heard. */
function speaker(): Error[] {
  const heard: Error[] = [];
  forgets.push(beforeFatalError((error) => void heard.push(error)));
  return heard;
}

test('every world of the process speaks, of what is no error too', () => {
  const [a, b] = [speaker(), speaker()];
  const error = new RangeError('no data');
  fail(error);
  fail('a text');
  for (const heard of [a, b])
    expect(heard.map(String)).toEqual(['RangeError: no data', expect.stringMatching(/a text$/)]);
  expect(a[0]).toBe(error);
});

test('one that throws keeps nobody else from speaking', () => {
  const write = jest.spyOn(process.stderr, 'write').mockReturnValue(true);
  forgets.push(
    beforeFatalError(() => {
      throw new Error('no link');
    }),
  );
  const heard = speaker();
  expect(() => fail(new Error('fatal'))).not.toThrow();
  expect(heard).toHaveLength(1);
  expect(write.mock.calls.join()).toMatch(/the other ranks could not be told of an uncaught error: no link/);
  write.mockRestore();
});

test('an error that a handler catches is none, and nothing is said of it', () => {
  const heard = speaker();
  const handler = (): void => undefined;
  process.on('uncaughtException', handler);
  try {
    fail(new Error('handled'));
  } finally {
    process.off('uncaughtException', handler);
  }
  expect(heard).toEqual([]);
  fail(new Error('fatal'));
  expect(heard).toHaveLength(1);
});

test('nor of one that a capture callback takes', () => {
  const heard = speaker();
  const hasCallback = jest.spyOn(process, 'hasUncaughtExceptionCaptureCallback').mockReturnValue(true);
  fail(new Error('captured'));
  hasCallback.mockRestore();
  expect(heard).toEqual([]);
});

test('the process has one listener for all worlds, and none after the last', () => {
  const before = process.listenerCount(MONITOR);
  const heard = speaker();
  speaker();
  expect(process.listenerCount(MONITOR)).toBe(before + 1);
  const [forgetFirst, forgetSecond] = forgets.splice(0);
  forgetFirst?.();
  forgetFirst?.();
  expect(process.listenerCount(MONITOR)).toBe(before + 1);
  fail(new Error('fatal'));
  expect(heard).toEqual([]);
  forgetSecond?.();
  expect(process.listenerCount(MONITOR)).toBe(before);
});
