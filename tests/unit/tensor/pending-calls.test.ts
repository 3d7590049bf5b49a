import { customFunction } from '../../../src/tensor/custom-function';
import { assertNoPendingCall, markPendingCall } from '../../../src/tensor/pending-calls';
import { Tensor } from '../../../src/tensor/tensor';
import { runWorld } from '../../../src/testing/run-world';

class Weight extends Tensor {
  readonly name = 'fc1.weight';
}

const weight = (): Tensor => new Weight(Tensor.from([2]), { requiresGrad: true });

test('a backward() that nobody awaited is noticed by the next one on the same leaves', async () => {
  const w = weight();
  const first = w.mul(1).backward();
  const second = w.mul(2).backward();
  await expect(second).rejects.toThrow(/previous backward\(\) was not awaited.*parameter 'fc1.weight'/);
  await first;
  expect(w.grad?.toArray()).toEqual([1]);
  await w.mul(2).backward();
  expect(w.grad?.toArray()).toEqual([3]);
});

test('backward() calls without common leaves may overlap', async () => {
  const [a, b] = [weight(), weight()];
  await Promise.all([a.mul(3).backward(), b.mul(4).backward()]);
  expect([a.grad?.item(), b.grad?.item()]).toEqual([3, 4]);
});

test('a leaf is pending from the call of backward() until it settles, however fast it is', async () => {
  const w = weight();
  const pending = w.mul(1).backward();
  expect(() => assertNoPendingCall(w, 'step')).toThrow(/step: the previous backward\(\) was not awaited/);
  await pending;
  expect(() => assertNoPendingCall(w, 'step')).not.toThrow();
});

test('a backward() that fails leaves nothing pending', async () => {
  const w = weight();
  const failing = customFunction({
    forward: (x: Tensor) => x.mul(1),
    backward: () => Promise.reject(new Error('broken')),
  });
  await expect(failing(w).backward()).rejects.toThrow('broken');
  await w.mul(1).backward();
  expect(w.grad?.item()).toBe(1);
});

test('a marked call refuses backward() and other marked calls until it is over', async () => {
  const w = weight();
  const release = markPendingCall([w], 'step()');
  await expect(w.mul(1).backward()).rejects.toThrow(/previous step\(\) was not awaited/);
  expect(() => markPendingCall([w], 'step()')).toThrow(/previous step\(\) was not awaited/);
  release();
  await w.mul(1).backward();
  expect(w.grad?.item()).toBe(1);
});

test('a mark that is refused marks nothing', async () => {
  const [a, b] = [weight(), weight()];
  const pending = b.mul(1).backward();
  expect(() => markPendingCall([a, b], 'step()')).toThrow(/previous backward\(\) was not awaited/);
  await pending;
  await a.mul(1).backward();
});

test.each<[string, (w: Tensor) => unknown]>([
  ['backward\\(\\)', (w) => void w.mul(1).sum().backward()],
  ['optimizer\\.step\\(\\)', (w) => void markPendingCall([w], 'optimizer.step()')],
])('runWorld reports a %s that a rank has left at work, with the line of it', async (call, leave) => {
  const run = runWorld(2, ({ rank }) => {
    const w = Tensor.ones([1], { requiresGrad: true });
    return rank === 1 ? leave(w) : undefined;
  });
  await expect(run).rejects.toThrow(
    new RegExp(
      `rank 1 returned while its ${call}, at tests.unit.tensor.pending-calls.*, is still at work. Write .await.`,
    ),
  );
});
