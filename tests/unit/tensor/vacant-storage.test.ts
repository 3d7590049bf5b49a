import { BFloat16Buffer } from '../../../src/core/half-buffer';
import { memory } from '../../../src/core/memory-account';
import { markPendingCall } from '../../../src/tensor/pending-calls';
import { conv2d, layerNorm, linear, where } from '../../../src/tensor/functional';
import { noGrad } from '../../../src/tensor/gradient-mode';
import { Storage } from '../../../src/tensor/storage';
import { Tensor } from '../../../src/tensor/tensor';
import { Generator } from '../../../src/core/generator';

const away = (): Error => new Error("parameter 'w' is released");
const liveBytes = (): number => memory.totals().live;

function leaf(shape: readonly number[], seed = 1): Tensor {
  return Tensor.randn(shape, { generator: new Generator(seed), requiresGrad: true });
}

/** Take the memory of `tensor` away, scribble over it, and give back what was in it, elsewhere. */
function moveMemory(tensor: Tensor): void {
  const old = tensor.data as Float32Array;
  const copy = Float32Array.from(old);
  tensor.vacate(away);
  old.fill(NaN);
  tensor.occupy(copy);
}

describe('storage that is vacant', () => {
  test('throws what it was vacated with, and keeps its length, dtype and identity', () => {
    const storage = Storage.of(Float32Array.of(1, 2, 3));
    storage.vacate(away);
    expect(storage.isVacant).toBe(true);
    expect(() => storage.buffer).toThrow("parameter 'w' is released");
    expect([storage.length, storage.dtype]).toEqual([3, 'float32']);
    storage.occupy(Float32Array.of(4, 5, 6));
    expect(storage.isVacant).toBe(false);
    expect(storage.buffer).toEqual(Float32Array.of(4, 5, 6));
  });

  test('refuses memory of another length or dtype', () => {
    const storage = Storage.vacant('float32', 3, away);
    expect(() => storage.occupy(new Float32Array(2))).toThrow('internal error');
    expect(() => storage.occupy(new Float64Array(3))).toThrow('internal error');
  });

  test('leaves the account when its allocation is suspended, whatever holds it, and comes back with resume', () => {
    const before = liveBytes();
    const tensor = new Tensor({ storage: Storage.of(new Float32Array(100), 'other'), shape: [100] });
    const view = tensor.reshape(10, 10);
    expect(liveBytes()).toBe(before + 400);
    const { allocation } = tensor.storage;
    allocation.suspend();
    allocation.suspend();
    expect(liveBytes()).toBe(before);
    view.dispose();
    allocation.resume();
    allocation.resume();
    expect(liveBytes()).toBe(before + 400);
    tensor.dispose();
    expect(liveBytes()).toBe(before);
  });

  test('is not counted by holders that come while it is suspended', () => {
    const before = liveBytes();
    const storage = Storage.vacant('float32', 50, away, 'parameters');
    const tensor = new Tensor({ storage, shape: [50] });
    expect(liveBytes()).toBe(before);
    tensor.occupy(new Float32Array(50));
    storage.allocation.resume();
    expect(liveBytes()).toBe(before + 200);
    tensor.dispose();
    storage.allocation.suspend();
    storage.allocation.resume();
    expect(liveBytes()).toBe(before);
  });
});

describe('a tensor whose memory is away', () => {
  test('cannot be used, and comes back as it was', () => {
    const tensor = leaf([2, 2]);
    const twin = leaf([2, 2]);
    const values = tensor.data;
    tensor.vacate(away);
    expect(() => tensor.data).toThrow('released');
    expect(() => tensor.add(1)).toThrow('released');
    expect(() => tensor.reshape(4)).toThrow('released');
    expect(() => tensor.detach()).toThrow('released');
    expect(() => linear(Tensor.ones([1, 2]), tensor)).toThrow('released');
    expect(String(tensor)).toBe('Tensor [2, 2] float32 (released)');
    expect(tensor).not.toEqual(twin);
    tensor.occupy(values);
    expect(Object.keys(tensor).sort()).toEqual(['data', 'dtype', 'shape']);
    expect(tensor.data).toBe(values);
    expect(tensor).toEqual(twin);
  });

  test('has its gradient all the same', async () => {
    const tensor = leaf([3]);
    const loss = tensor.add(1).sum();
    tensor.vacate(away);
    await loss.backward();
    expect(tensor.grad?.toArray()).toEqual([1, 1, 1]);
  });
});

describe('backward reads the memory that is there when it runs', () => {
  const x = Tensor.randn([2, 4], { generator: new Generator(7) });
  const image = Tensor.randn([2, 2, 4, 4], { generator: new Generator(8) });
  const mask = Tensor.from([1, 0, 1, 0], [4], { dtype: 'uint8' });
  const operators: Record<string, { readonly shape: readonly number[]; readonly run: (w: Tensor) => Tensor }> = {
    add: { shape: [4], run: (w) => x.add(w) },
    mul: { shape: [4], run: (w) => x.mul(w) },
    div: { shape: [4], run: (w) => x.div(w) },
    'div of it': { shape: [4], run: (w) => w.div(x) },
    pow: { shape: [4], run: (w) => w.abs().pow(w) },
    matmul: { shape: [4, 3], run: (w) => x.matmul(w) },
    'matmul from the left': { shape: [3, 2], run: (w) => w.matmul(x) },
    'matmul with itself': { shape: [3, 3], run: (w) => w.matmul(w) },
    linear: { shape: [3, 4], run: (w) => linear(x, w) },
    conv2d: { shape: [3, 2, 2, 2], run: (w) => conv2d(image, w) },
    layerNorm: { shape: [4], run: (w) => layerNorm(x, [4], { weight: w, bias: w }) },
    gelu: { shape: [4], run: (w) => w.gelu() },
    softmax: { shape: [4], run: (w) => w.softmax(0) },
    max: { shape: [4], run: (w) => w.max() },
    where: { shape: [4], run: (w) => where(mask, w, 0) },
    reshape: { shape: [12], run: (w) => x.matmul(w.reshape(4, 3)) },
    'a cast': { shape: [4], run: (w) => x.to('float64').mul(w.to('float64')) },
  };

  test.each(Object.entries(operators))('%s', async (_name, { shape, run }) => {
    const inputs = [x, image];
    const gradients = async (isMoved: boolean): Promise<unknown> => {
      for (const input of inputs) {
        input.requiresGrad = true;
        input.grad = undefined;
      }
      const w = leaf(shape);
      const output = run(w);
      const loss = output.mul(output.detach()).sum();
      if (isMoved) moveMemory(w);
      await loss.backward();
      return [w, ...inputs].map((tensor) => tensor.grad?.toArray());
    };
    expect(await gradients(true)).toEqual(await gradients(false));
  });
});

describe('replaceStorage', () => {
  test('swaps the memory for good: dtype, data and account follow', () => {
    const before = liveBytes();
    const tensor = leaf([4]);
    tensor.replaceStorage(Storage.of(new BFloat16Buffer(4), 'other'), 'test');
    expect([tensor.dtype, tensor.data.length, liveBytes() - before]).toEqual(['bfloat16', 4, 8]);
    expect(tensor.storage.dtype).toBe('bfloat16');
    tensor.dispose();
    expect(liveBytes()).toBe(before);
  });

  test('is refused for a tensor that was computed, and while a step is at work', () => {
    const tensor = leaf([4]);
    const storage = Storage.of(new Float32Array(4));
    expect(() => tensor.add(1).replaceStorage(storage, 'test')).toThrow('was computed from others');
    const release = markPendingCall([tensor], 'step()');
    expect(() => tensor.replaceStorage(storage, 'test')).toThrow('test: the previous step() is still at work');
    release();
    tensor.replaceStorage(storage, 'test');
    expect(tensor.storage).toBe(storage);
  });

  test('makes a graph that saved the old memory unusable, as a change in place does', async () => {
    const tensor = leaf([4]);
    const loss = tensor.mul(tensor).sum();
    tensor.replaceStorage(noGrad(() => tensor.clone()).storage, 'test');
    await expect(loss.backward()).rejects.toThrow('changed in place');
  });
});
