import { setImmediate as nextTurn } from 'node:timers/promises';
import fc from 'fast-check';
import { holds } from '../../helpers/property';
import {
  memory,
  MEMORY_CATEGORIES,
  MemoryAccount,
  memoryAccountKey,
  memoryCategoryKey,
} from '../../../src/core/memory-account';

const none = { parameters: 0, gradients: 0, optimizer: 0, activations: 0, communication: 0, other: 0 };

test('a new account is empty', () => {
  expect(new MemoryAccount().stats()).toEqual({ live: none, peak: none });
  expect(new MemoryAccount().totals()).toEqual({ live: 0, peak: 0 });
});

test('live is what is held, peak the most of each category, and the total peak is of one moment', () => {
  const account = new MemoryAccount();
  account.add('activations', 100);
  account.add('activations', -100);
  account.add('gradients', 60);
  expect(account.stats().live).toEqual({ ...none, gradients: 60 });
  expect(account.stats().peak).toEqual({ ...none, activations: 100, gradients: 60 });
  expect(account.totals()).toEqual({ live: 60, peak: 100 });
});

test('moving bytes changes categories and not the total', () => {
  const account = new MemoryAccount();
  account.add('activations', 80);
  account.move('activations', 'gradients', 30);
  expect(account.stats()).toEqual({
    live: { ...none, activations: 50, gradients: 30 },
    peak: { ...none, activations: 80, gradients: 30 },
  });
  expect(account.totals()).toEqual({ live: 80, peak: 80 });
});

test('resetPeak starts again from what is live', () => {
  const account = new MemoryAccount();
  account.add('other', 10);
  account.add('optimizer', 90);
  account.add('optimizer', -90);
  account.resetPeak();
  expect(account.stats()).toEqual({ live: { ...none, other: 10 }, peak: { ...none, other: 10 } });
  expect(account.totals()).toEqual({ live: 10, peak: 10 });
});

test('stats are a picture of the moment: they do not change afterwards', () => {
  const account = new MemoryAccount();
  const before = account.stats();
  account.add('other', 10);
  expect(before.live.other).toBe(0);
});

test('whatever is added, taken and moved: totals are the sums, peaks are never below live', () => {
  const category = fc.constantFrom(...MEMORY_CATEGORIES);
  holds(
    'memory account',
    fc.property(fc.array(fc.tuple(category, category, fc.nat(100), fc.boolean())), (steps) => {
      const account = new MemoryAccount();
      let peakTotal = 0;
      for (const [from, to, bytes, isMove] of steps) {
        if (isMove) account.move(from, to, Math.min(bytes, account.stats().live[from]));
        else account.add(to, bytes);
        const { live, peak } = account.stats();
        const total = MEMORY_CATEGORIES.reduce((sum, name) => sum + live[name], 0);
        peakTotal = Math.max(peakTotal, total);
        expect(account.totals()).toEqual({ live: total, peak: peakTotal });
        for (const name of MEMORY_CATEGORIES) expect(peak[name]).toBeGreaterThanOrEqual(live[name]);
      }
    }),
  );
});

test('memory shows the account of this context: two ranks that interleave count for themselves', async () => {
  const seen = await Promise.all(
    [1, 2].map((rank) =>
      memoryAccountKey.run(new MemoryAccount(), async () => {
        memoryAccountKey.get().add('parameters', rank);
        await nextTurn();
        memoryAccountKey.get().add('parameters', 10 * rank);
        await nextTurn();
        memory.resetPeak();
        return [memory.stats().live.parameters, memory.totals().live];
      }),
    ),
  );
  expect(seen).toEqual([
    [11, 11],
    [22, 22],
  ]);
});

test('the category is undefined unless somebody says it', () => {
  expect(memoryCategoryKey.get()).toBeUndefined();
  expect(memoryCategoryKey.run('optimizer', () => memoryCategoryKey.get())).toBe('optimizer');
});
