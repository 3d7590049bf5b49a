/** Ambient state belongs to an asynchronous context: flows that interleave on one event loop do not see each other's. */
import { memoryAccountKey, MemoryAccount } from '../../../src/core/memory-account';
import { customFunction } from '../../../src/tensor/custom-function';
import { enableGrad, isGradEnabled, noGrad } from '../../../src/tensor/gradient-mode';
import { Tensor } from '../../../src/tensor/tensor';
import { tidy } from '../../../src/tensor/tidy';

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

test('noGrad and enableGrad give back what the function gives, sync or async', async () => {
  expect(noGrad(() => isGradEnabled())).toBe(false);
  expect(noGrad(() => enableGrad(() => isGradEnabled()))).toBe(true);
  const mode = await noGrad(async () => {
    await turn();
    return isGradEnabled();
  });
  expect(mode).toBe(false);
  expect(isGradEnabled()).toBe(true);
});

test('a mode ends when its function throws', async () => {
  expect(() =>
    noGrad(() => {
      throw new Error('inside');
    }),
  ).toThrow('inside');
  await expect(noGrad(() => Promise.reject(new Error('later')))).rejects.toThrow('later');
  expect(isGradEnabled()).toBe(true);
});

test('two flows in opposite modes do not leak into each other at any await', async () => {
  const weight = Tensor.from([2], undefined, { requiresGrad: true });
  const observe = async (): Promise<boolean[]> => {
    const seen: boolean[] = [];
    for (let i = 0; i < 20; i++) {
      seen.push(isGradEnabled() && weight.mul(2).requiresGrad);
      await (i % 2 === 0 ? turn() : Promise.resolve());
    }
    return seen;
  };
  const [off, on] = await Promise.all([noGrad(observe), observe()]);
  expect(new Set(off)).toEqual(new Set([false]));
  expect(new Set(on)).toEqual(new Set([true]));
});

test('a backward that waits does not switch recording off for others', async () => {
  const slow = customFunction({
    forward: (x: Tensor) => x.mul(1),
    backward: async (gradient) => {
      await turn();
      return gradient;
    },
  });
  const weight = Tensor.from([2], undefined, { requiresGrad: true });
  const other = Tensor.from([3], undefined, { requiresGrad: true });
  const pending = slow(weight).backward();
  const isRecorded: boolean[] = [];
  for (let i = 0; i < 4; i++) {
    isRecorded.push(other.mul(2).requiresGrad);
    await turn();
  }
  await pending;
  expect(isRecorded).toEqual([true, true, true, true]);
});

test('each flow counts its own bytes', async () => {
  const flow = (account: MemoryAccount, size: number): Promise<number> =>
    memoryAccountKey.run(account, async () => {
      const kept: Tensor[] = [];
      for (let i = 0; i < 5; i++) {
        kept.push(Tensor.zeros([size]));
        await turn();
      }
      expect(kept).toHaveLength(5);
      return account.totals().live;
    });
  expect(await Promise.all([flow(new MemoryAccount(), 1), flow(new MemoryAccount(), 10)])).toEqual([20, 200]);
});

test('a tensor is counted where it was made, wherever it is disposed of', async () => {
  const account = new MemoryAccount();
  const tensor = memoryAccountKey.run(account, () => Tensor.zeros([4]));
  await memoryAccountKey.run(new MemoryAccount(), async () => {
    await turn();
    tensor.dispose();
  });
  expect(account.totals().live).toBe(0);
});

test('a tidy that waits does not dispose of what others make', async () => {
  let mine: Tensor | undefined;
  const scope = tidy(async () => {
    mine = Tensor.zeros([1]);
    await turn();
    await turn();
  });
  const others = Tensor.zeros([1]);
  await turn();
  await scope;
  expect(mine?.isDisposed).toBe(true);
  expect(others.isDisposed).toBe(false);
});
