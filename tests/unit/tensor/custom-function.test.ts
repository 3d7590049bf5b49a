import { customFunction } from '../../../src/tensor/custom-function';
import { isGradEnabled, noGrad } from '../../../src/tensor/gradient-mode';
import { Tensor } from '../../../src/tensor/tensor';

const leaf = (values: number[]): Tensor => Tensor.from(values, undefined, { requiresGrad: true });

test('forward and backward are what the caller writes', async () => {
  const double = customFunction({
    forward: (x: Tensor) => x.mul(2),
    backward: (gradient) => gradient.mul(100),
  });
  const x = leaf([1, 2]);
  const y = double(x);
  expect(y.toArray()).toEqual([2, 4]);
  await y.sum().backward();
  expect(x.grad?.toArray()).toEqual([100, 100]);
});

test('backward may be async, and backward() waits for it', async () => {
  const slow = customFunction({
    forward: (x: Tensor) => x.mul(1),
    backward: async (gradient) => {
      await new Promise((resolve) => setImmediate(resolve));
      return gradient;
    },
  });
  const x = leaf([1]);
  await slow(slow(x)).mul(3).backward();
  expect(x.grad?.item()).toBe(3);
});

test('several inputs and outputs: zeros come for an output that is not used, undefined goes to an input', async () => {
  const seen: unknown[] = [];
  const both = customFunction({
    forward: (a: Tensor, b: Tensor) => [a.add(b), a.mul(b)],
    backward: (ofSum, ofProduct) => {
      seen.push(ofSum?.toArray(), ofProduct?.toArray());
      return [ofSum?.mul(7), undefined];
    },
  });
  const a = leaf([1, 2]);
  const b = leaf([3, 4]);
  const [total, product] = both(a, b);
  expect(product?.toArray()).toEqual([3, 8]);
  await total?.sum().backward();
  expect(seen).toEqual([
    [1, 1],
    [0, 0],
  ]);
  expect(a.grad?.toArray()).toEqual([7, 7]);
  expect(b.grad).toBeUndefined();
});

test('a definition that is a function is called for each use, so that a use can save what it needs', async () => {
  const square = customFunction(() => {
    let input: Tensor;
    return {
      forward: (x: Tensor) => (input = x).mul(x),
      backward: (gradient) => gradient.mul(input).mul(2),
    };
  });
  const x = leaf([3]);
  await square(square(x)).backward();
  expect(x.grad?.item()).toBe(4 * 27);
});

test('nothing is recorded inside, and nothing at all under noGrad or without a gradient to compute', () => {
  const modes: boolean[] = [];
  const identity = customFunction({
    forward: (x: Tensor) => {
      modes.push(isGradEnabled());
      return x;
    },
    backward: (gradient) => gradient,
  });
  expect(identity(leaf([1])).requiresGrad).toBe(true);
  expect(noGrad(() => identity(leaf([1]))).requiresGrad).toBe(false);
  expect(identity(Tensor.from([1])).requiresGrad).toBe(false);
  expect(modes).toEqual([false, false, false]);
});

test('a gradient that the caller keeps is not changed by later backwards', async () => {
  const constant = Tensor.from([5]);
  const fixed = customFunction({ forward: (x: Tensor) => x.mul(1), backward: () => constant });
  const x = leaf([1]);
  await fixed(x).backward();
  await fixed(x).backward();
  expect(x.grad?.item()).toBe(10);
  expect(constant.item()).toBe(5);
});

test('the wrong number of gradients, or one of another form, rejects with both', async () => {
  const x = leaf([1, 2]);
  const tooFew = customFunction({ name: 'tooFew', forward: (a: Tensor) => a.mul(1), backward: () => [] });
  await expect(tooFew(x).sum().backward()).rejects.toThrow(/tooFew: backward gave 0 gradients for 1 inputs/);
  const wrong = customFunction({ forward: (a: Tensor) => a.mul(1), backward: () => Tensor.from([1]) });
  await expect(wrong(x).sum().backward()).rejects.toThrow(
    /customFunction: backward gave a float32 gradient of shape \[1\] for input 0, which is float32 \[2\]/,
  );
});
