import { memory } from '../../../src/core/memory-account';
import { Parameter } from '../../../src/nn/parameter';
import { tidy } from '../../../src/tensor/tidy';
import { Tensor } from '../../../src/tensor/tensor';

describe('Parameter', () => {
  test('is a trainable leaf over the memory of the tensor it is made of', () => {
    const tensor = Tensor.from([1, 2]);
    const parameter = new Parameter(tensor);
    expect([parameter.isLeaf, parameter.requiresGrad, parameter.placement]).toEqual([true, true, 'replicated']);
    (tensor.data as Float32Array)[0] = 7;
    expect(parameter.toArray()).toEqual([7, 2]);
    expect(new Parameter(tensor, { requiresGrad: false }).requiresGrad).toBe(false);
  });

  test('leaves behind the graph of a computed tensor', async () => {
    const x = Tensor.from([3], [1], { requiresGrad: true });
    const parameter = new Parameter(x.mul(2));
    await parameter.mul(5).sum().backward();
    expect(parameter.grad?.item()).toBe(5);
    expect(x.grad).toBeUndefined();
  });

  test('its bytes count as parameters, once', () => {
    const before = memory.stats().live;
    const parameter = new Parameter(Tensor.zeros([250]));
    const after = memory.stats().live;
    expect(after.parameters - before.parameters).toBe(1000);
    expect(after.other).toBe(before.other);
    parameter.dispose();
    expect(memory.stats().live.parameters).toBe(before.parameters);
  });

  test('tidy leaves it alone', () => {
    const holder: { parameter?: Parameter } = {};
    tidy(() => {
      holder.parameter = new Parameter(Tensor.ones([2]));
    });
    expect(holder.parameter?.isDisposed).toBe(false);
    expect(holder.parameter?.toArray()).toEqual([1, 1]);
  });

  test('equality of parameters is that of shape, dtype and values, not of names', () => {
    const [a, b] = [new Parameter(Tensor.ones([2]), { name: 'a' }), new Parameter(Tensor.ones([2]), { name: 'b' })];
    expect(a).toEqual(b);
    expect(a).not.toEqual(new Parameter(Tensor.zeros([2])));
  });

  test('messages name it', () => {
    const parameter = new Parameter(Tensor.ones([2]), { name: 'scale' });
    parameter.dispose();
    expect(() => parameter.storage).toThrow("parameter 'scale' (float32 [2]) was disposed of");
  });

  test.each([
    [() => new Parameter([1, 2] as never), 'new Parameter: expected a tensor, got object. Use Tensor.from(values)'],
    [
      () => new Parameter(Tensor.zeros([2], { dtype: 'int32' })),
      'only floating point tensors have gradients. Keep integers in a buffer',
    ],
  ])('a wrong argument is named (%#)', (make, message) => {
    expect(make).toThrow(message);
  });
});
