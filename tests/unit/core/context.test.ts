import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import fc from 'fast-check';
import { bindToContext, ContextKey, runDetached } from '../../../src/core/context';
import { holdsAsync } from '../../helpers/property';

const colour = new ContextKey<string>('none');
const depth = new ContextKey<number>(0);

test('outside any run a key has its initial value', () => {
  expect(colour.get()).toBe('none');
});

test('runs nest, keys do not disturb each other, and the old value is back afterwards', () => {
  const result = colour.run('red', () => {
    const inner = depth.run(1, () => colour.run('blue', () => [colour.get(), depth.get()]));
    return [...inner, colour.get(), depth.get()];
  });
  expect(result).toEqual(['blue', 1, 'red', 0]);
  expect([colour.get(), depth.get()]).toEqual(['none', 0]);
});

test('the old value is back after a throw and after a rejection', async () => {
  expect(() =>
    colour.run('red', () => {
      throw new Error('no');
    }),
  ).toThrow('no');
  expect(colour.get()).toBe('none');
  await expect(colour.run('red', () => Promise.reject(new Error('no')))).rejects.toThrow('no');
  expect(colour.get()).toBe('none');
});

test.each([
  ['await', () => Promise.resolve()],
  ['a timer', () => sleep(1)],
  ['a turn of the event loop', () => nextTurn()],
  ['nextTick', () => new Promise<void>((resolve) => process.nextTick(resolve))],
  ['queueMicrotask', () => new Promise<void>((resolve) => queueMicrotask(resolve))],
])('a value lasts over %s', async (_what, pause) => {
  const seen = await colour.run('red', async () => {
    await pause();
    return colour.get();
  });
  expect(seen).toBe('red');
  expect(colour.get()).toBe('none');
});

test('asynchronous flows that interleave keep their own values, however they interleave', async () => {
  await holdsAsync(
    'interleaved contexts',
    fc.asyncProperty(
      fc.array(fc.array(fc.integer({ min: 0, max: 2 }), { maxLength: 6 }), { maxLength: 5 }),
      async (flows) => {
        const leaks: string[] = [];
        await Promise.all(
          flows.map((pauses, flow) =>
            depth.run(flow + 1, async () => {
              for (const pause of pauses) {
                const name = `${flow}/${pause}`;
                await colour.run(name, async () => {
                  if (pause > 0) await (pause === 1 ? Promise.resolve() : nextTurn());
                  if (colour.get() !== name) leaks.push(`expected ${name}, got ${colour.get()}`);
                });
                if (colour.get() !== 'none' || depth.get() !== flow + 1)
                  leaks.push(`flow ${flow} sees another's state`);
              }
            }),
          ),
        );
        expect(leaks).toEqual([]);
      },
    ),
  );
});

test('runDetached runs as from the top of a program, what it awaits too', async () => {
  const seen = await colour.run('red', () =>
    runDetached(async () => {
      await Promise.resolve();
      return colour.get();
    }),
  );
  expect(seen).toBe('none');
});

test('a bound function runs with the state of its binding, wherever it is called from', async () => {
  const bound = colour.run('red', () =>
    bindToContext(async (prefix: string) => {
      await Promise.resolve();
      return prefix + colour.get();
    }),
  );
  expect(await colour.run('blue', () => bound('it is '))).toBe('it is red');
  const unbound = bindToContext(() => colour.get());
  expect(colour.run('blue', unbound)).toBe('none');
});

test('a key may hold false, null and zero', () => {
  const key = new ContextKey<unknown>('initial');
  for (const value of [false, null, 0, '']) expect(key.run(value, () => key.get())).toBe(value);
});
