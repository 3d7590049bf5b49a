import { customFunction } from '../../../src/tensor/custom-function';
import { Tensor } from '../../../src/tensor/tensor';
import { keep, tidy } from '../../../src/tensor/tidy';

class Weight extends Tensor {}

test('disposes of every tensor that was made inside and is not returned', () => {
  const outside = Tensor.from([1, 2]);
  let inside: Tensor | undefined;
  const result = tidy(() => {
    inside = outside.mul(2);
    return inside.add(1);
  });
  expect(inside?.isDisposed).toBe(true);
  expect(outside.isDisposed).toBe(false);
  expect(result.toArray()).toEqual([3, 5]);
});

test('keeps what is returned in arrays, objects and Maps', () => {
  const made = tidy(() => ({
    list: [Tensor.from([1]), [Tensor.from([2])]],
    map: new Map([['a', Tensor.from([3])]]),
    number: 4,
  }));
  expect(JSON.stringify([made.list.flat().map((t) => t.item()), made.map.get('a')?.item(), made.number])).toBe(
    '[[1,2],3,4]',
  );
});

test('waits for an async function', async () => {
  let inside: Tensor | undefined;
  const result = await tidy(async () => {
    inside = Tensor.from([1]);
    await Promise.resolve();
    const late = Tensor.from([2]);
    return inside.add(late);
  });
  expect(inside?.isDisposed).toBe(true);
  expect(result.item()).toBe(3);
});

test('disposes when the function throws or rejects', async () => {
  const made: Tensor[] = [];
  const make = (): Tensor => {
    const tensor = Tensor.from([1]);
    made.push(tensor);
    return tensor;
  };
  expect(() =>
    tidy(() => {
      make();
      throw new Error('inside');
    }),
  ).toThrow('inside');
  await expect(
    tidy(async () => {
      make();
      await Promise.resolve();
      throw new Error('later');
    }),
  ).rejects.toThrow('later');
  expect(made.map((tensor) => tensor.isDisposed)).toEqual([true, true]);
});

test('passes what is returned to the scope around it', () => {
  let inner: Tensor | undefined;
  tidy(() => {
    inner = tidy(() => Tensor.from([1]));
    expect(inner.isDisposed).toBe(false);
  });
  expect(inner?.isDisposed).toBe(true);
});

test('leaves alone what is kept, and tensors that a class makes for itself', () => {
  let kept: Tensor | undefined;
  let weight: Tensor | undefined;
  tidy(() =>
    tidy(() => {
      kept = keep(Tensor.from([1]));
      weight = new Weight(Tensor.from([2]));
    }),
  );
  expect(kept?.item()).toBe(1);
  expect(weight?.item()).toBe(2);
});

test('leaves gradients alone, and what backward needs', async () => {
  const x = Tensor.from([3], undefined, { requiresGrad: true });
  const loss = tidy(() => x.mul(2).mul(x).exp().log());
  await loss.backward();
  expect(x.grad?.item()).toBeCloseTo(12, 3);
  const y = Tensor.from([3], undefined, { requiresGrad: true });
  await tidy(async () => {
    await y.mul(y).backward();
  });
  expect(y.grad?.item()).toBe(6);
});

test('leaves alone what was set as a gradient', async () => {
  const x = Tensor.ones([2], { requiresGrad: true });
  await tidy(async () => {
    await x.sum().backward();
    x.grad = x.grad?.mul(3);
  });
  expect(x.grad?.toArray()).toEqual([3, 3]);
});

test('disposes of what the backward of a customFunction makes, but not of the gradients it gives', async () => {
  const x = Tensor.from([3], undefined, { requiresGrad: true });
  let scratch: Tensor | undefined;
  const fn = customFunction({
    forward: (t: Tensor) => t.mul(1),
    backward: (gradient) => (scratch = gradient.mul(2)).mul(3),
  });
  await tidy(async () => {
    await fn(x).backward();
  });
  expect(scratch?.isDisposed).toBe(true);
  expect(x.grad?.item()).toBe(6);
});
