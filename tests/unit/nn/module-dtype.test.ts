import { Linear } from '../../../src/nn/linear';
import { Module } from '../../../src/nn/module';
import { SGD } from '../../../src/optim/sgd';
import { markPendingCall } from '../../../src/tensor/pending-calls';
import { Tensor } from '../../../src/tensor/tensor';

class Counted extends Module {
  readonly fc = new Linear(2, 2);
  readonly mean = this.registerBuffer('mean', Tensor.from([0.1]));
  readonly count = this.registerBuffer('count', Tensor.from([1], [1], { dtype: 'int32' }));

  async forward(x: Tensor): Promise<Tensor> {
    return (await this.fc.forward(x)).add(this.mean);
  }
}

describe('Module.to', () => {
  test('converts floating point parameters, buffers and gradients in place, and leaves integers alone', async () => {
    const net = new Counted();
    const { weight } = net.fc;
    const rounded = weight.to('bfloat16').toArray();
    await (await net.forward(Tensor.ones([1, 2]))).sum().backward();
    expect(net.to('bfloat16')).toBe(net);
    expect(net.fc.weight).toBe(weight);
    expect(weight.toArray()).toEqual(rounded);
    expect([weight.dtype, weight.grad?.dtype, net.mean.dtype, net.count.dtype]).toEqual([
      'bfloat16',
      'bfloat16',
      'bfloat16',
      'int32',
    ]);
    const output = await net.forward(Tensor.ones([1, 2], { dtype: 'bfloat16' }));
    expect(output.dtype).toBe('bfloat16');
  });

  test('an optimizer made before goes on with the converted parameters', async () => {
    const net = new Linear(1, 1, { bias: false });
    net.weight.data[0] = 1;
    const optimizer = new SGD(net.parameters(), { lr: 0.5, momentum: 0.9 });
    const step = async (): Promise<void> => {
      optimizer.zeroGrad();
      await (await net.forward(Tensor.ones([1, 1], { dtype: net.weight.dtype }))).sum().backward();
      await optimizer.step();
    };
    await step();
    expect(net.weight.item()).toBe(0.5);
    net.to('float64');
    await step();
    expect(net.weight.item()).toBeCloseTo(0.5 - 0.5 * 1.9);
    expect(net.weight.dtype).toBe('float64');
  });

  test('refuses integers, and parameters that a call is at work on, and changes nothing', () => {
    const net = new Counted();
    expect(() => net.to('int32')).toThrow('Counted.to: expected a floating point dtype, got int32');
    const release = markPendingCall(net.parameters(), 'step()');
    expect(() => net.to('float64')).toThrow('not awaited');
    release();
    expect(net.fc.weight.dtype).toBe('float32');
  });

  test('refuses the parameters of a wrapped module', () => {
    const net = new Counted();
    net.fc.weight.gradientGate = { settle: async () => undefined };
    expect(() => net.to('float64')).toThrow('belongs to a wrapped module');
  });
});
