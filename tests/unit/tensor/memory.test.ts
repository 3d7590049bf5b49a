/** Bytes in the account, exactly. */
import { setImmediate, setTimeout } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { MemoryAccount, memoryAccountKey, type MemoryCategory } from '../../../src/core/memory-account';
import { customFunction } from '../../../src/tensor/custom-function';
import { linear } from '../../../src/tensor/functional';
import { noGrad } from '../../../src/tensor/gradient-mode';
import { Storage, withMemoryCategory } from '../../../src/tensor/storage';
import { adoptMemory, Tensor } from '../../../src/tensor/tensor';
import { tidy } from '../../../src/tensor/tidy';

type Live = Partial<Record<MemoryCategory, number>>;

/** Categories that hold something. */
function live(account: MemoryAccount): Live {
  return Object.fromEntries(Object.entries(account.stats().live).filter(([, bytes]) => bytes !== 0));
}

const inAccount = <R>(fn: (account: MemoryAccount) => R): R => {
  const account = new MemoryAccount();
  return memoryAccountKey.run(account, () => fn(account));
};

test('a tensor counts its bytes from creation to dispose()', () =>
  inAccount((account) => {
    const tensor = Tensor.zeros([10], { dtype: 'float16' });
    expect(live(account)).toEqual({ other: 20 });
    tensor.dispose();
    tensor.dispose();
    expect(live(account)).toEqual({});
    expect(account.stats().peak.other).toBe(20);
  }));

test('tensors over the same memory count it once, until the last is gone', () =>
  inAccount((account) => {
    const tensor = Tensor.zeros([10]);
    const alias = tensor.detach();
    const reshaped = tensor.reshape([2, 5]);
    const part = new Tensor({ storage: tensor.storage.view(0, 5), shape: [5] });
    expect(live(account)).toEqual({ other: 40 });
    for (const holder of [tensor, alias, reshaped]) holder.dispose();
    expect(live(account)).toEqual({ other: 40 });
    part.dispose();
    expect(live(account)).toEqual({});
  }));

test('results count as activations, or as what the context says', () =>
  inAccount((account) => {
    const x = Tensor.zeros([10]);
    const y = x.mul(2);
    const z = withMemoryCategory('optimizer', () => x.mul(2));
    expect(live(account)).toEqual({ other: 40, activations: 40, optimizer: 40 });
    expect([y, z]).toHaveLength(2);
  }));

test('a category may wait: it holds over awaits and moves with the memory', async () =>
  inAccount(async (account) => {
    const made = await withMemoryCategory('communication', async () => {
      await setImmediate();
      return Tensor.zeros([10]);
    });
    expect(live(account)).toEqual({ communication: 40 });
    made.storage.allocation.moveTo('optimizer');
    expect(live(account)).toEqual({ optimizer: 40 });
    made.dispose();
    expect(live(account)).toEqual({});
  }));

test('memory that is adopted is counted with the new owner only', () =>
  inAccount((account) => {
    const first = Tensor.zeros([10]);
    const owner = new Tensor(first, { requiresGrad: true });
    adoptMemory(owner, first, 'parameters');
    expect(live(account)).toEqual({ parameters: 40 });
    expect(first.toArray()).toHaveLength(10);
    owner.dispose();
    expect(live(account)).toEqual({});
  }));

test('backward leaves the gradients, and nothing of the graph', async () =>
  inAccount(async (account) => {
    const x = Tensor.zeros([4, 8]);
    const w = Tensor.zeros([16, 8], { requiresGrad: true });
    const b = Tensor.zeros([16], { requiresGrad: true });
    const loss = linear(x, w, b).relu().mul(2).mean();
    const inputs = 4 * (32 + 128 + 16);
    expect(live(account)).toEqual({ other: inputs, activations: 4 * (64 + 64 + 64 + 1) });
    await loss.backward();
    expect(live(account)).toEqual({ other: inputs, gradients: 4 * (128 + 16) });
    expect(loss.item()).toBe(0);
    w.grad = undefined;
    b.grad = undefined;
    expect(live(account)).toEqual({ other: inputs });
  }));

test('the graph is released as backward goes: the peak is far below all gradients together', async () =>
  inAccount(async (account) => {
    const x = Tensor.zeros([1000], { requiresGrad: true });
    let y = x;
    for (let i = 0; i < 50; i++) y = y.relu();
    const forward = account.totals().live;
    await y.sum().backward();
    expect(account.totals().peak).toBeLessThan(forward + 3 * 4000 + 100);
  }));

test('what was disposed of before backward is counted as long as backward needs it', async () =>
  inAccount(async (account) => {
    const x = Tensor.zeros([100], { requiresGrad: true });
    const loss = tidy(() => x.exp().add(1).sum());
    expect(live(account)).toEqual({ other: 400, activations: 404 }); // exp saved its result, add nothing
    await loss.backward();
    expect(live(account)).toEqual({ other: 400, gradients: 400 });
  }));

test('a backward that fails releases its graph and its gradients', async () =>
  inAccount(async (account) => {
    const x = Tensor.zeros([10], { requiresGrad: true });
    const failing = customFunction({
      forward: (t: Tensor) => t.mul(1),
      backward: () => Promise.reject(new Error('broken')),
    });
    const loss = failing(x).mul(2).add(x.mul(3)).sum();
    await expect(loss.backward()).rejects.toThrow('broken');
    expect(live(account)).toEqual({ other: 40 });
  }));

test('a customFunction counts its results once, and nothing after backward', async () =>
  inAccount(async (account) => {
    const x = Tensor.zeros([10], { requiresGrad: true });
    const fn = customFunction({ forward: (t: Tensor) => t.mul(1), backward: (gradient) => gradient.mul(2) });
    const y = fn(x);
    expect(live(account)).toEqual({ other: 40, activations: 40 });
    await y.backward(noGrad(() => y));
    expect(live(account)).toEqual({ other: 40, gradients: 40 });
  }));

test('a gradient counts as one while it is .grad, also one that was assigned', async () =>
  inAccount(async (account) => {
    const x = Tensor.zeros([10], { requiresGrad: true });
    await x.sum().backward();
    x.grad = Tensor.ones([10]);
    expect(live(account)).toEqual({ other: 40, gradients: 40 });
    x.grad.dispose();
    expect(x.grad).toBeUndefined();
    expect(live(account)).toEqual({ other: 40 });
  }));

test('a gradient buffer counts as what it is, whether .grad is set or not', async () =>
  inAccount(async (account) => {
    const bucket = withMemoryCategory('gradients', () => Tensor.zeros([20]));
    const x = Tensor.zeros([10], { requiresGrad: true });
    x.gradientBuffer = new Tensor({ storage: bucket.storage.view(0, 10), shape: [10] });
    await x.sum().backward();
    expect(live(account)).toEqual({ other: 40, gradients: 80 });
    x.grad = undefined;
    expect(live(account)).toEqual({ other: 40, gradients: 80 });
    x.gradientBuffer = withMemoryCategory('gradients', () => Tensor.zeros([10])); // with memory of its own
    bucket.dispose();
    await x.sum().backward();
    x.grad = undefined;
    expect(live(account)).toEqual({ other: 40, gradients: 80 + 40 });
  }));

test('storage that no tensor holds counts nothing', () =>
  inAccount((account) => {
    Storage.allocate('float32', 1000);
    expect(live(account)).toEqual({});
  }));

test('the collector is the net for tensors that nobody disposed of', async () => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  await inAccount(async (account) => {
    const makeGarbage = (): void => {
      const x = Tensor.zeros([1000], { requiresGrad: true });
      x.mul(2).exp(); // a graph that no backward goes through
    };
    const graphBytes = 12_000;
    for (let i = 0; i < 10; i++) makeGarbage();
    expect(account.totals().live).toBe(10 * graphBytes);
    // V8 may keep the last graph reachable through a stale register of this frame; no more than that
    // finalizers run as tasks of their own, when the engine gets to them
    const giveUpMs = performance.now() + 15_000;
    while (account.totals().live > graphBytes && performance.now() < giveUpMs) {
      collect();
      await setTimeout(20);
    }
    expect(account.totals().live).toBeLessThanOrEqual(graphBytes);
  });
});
