/** A call whose promise was not awaited is found by the next one, and changes no number. */
import { isLockstepError } from '../../../src/core/errors';
import { Linear } from '../../../src/nn/linear';
import { Parameter } from '../../../src/nn/parameter';
import { SGD } from '../../../src/optim/sgd';
import type { GradientGate } from '../../../src/tensor/gradient-leaf';
import { Tensor } from '../../../src/tensor/tensor';

function setUp() {
  const parameter = new Parameter(Tensor.from([1]), { name: 'w' });
  parameter.grad = Tensor.from([1]);
  return { parameter, optimizer: new SGD([parameter], { lr: 0.25 }) };
}

const notAwaited = /previous .* was not awaited/;

describe('after a step that was not awaited', () => {
  test('a second step rejects; the first one counts', async () => {
    const { parameter, optimizer } = setUp();
    const first = optimizer.step();
    const error: unknown = await optimizer.step().catch((reason: unknown) => reason);
    expect((error as Error).message).toBe(
      'optimizer.step(): the previous call was not awaited: optimizer.step() is still at work. ' +
        'Write `await optimizer.step()`.',
    );
    expect(isLockstepError(error, 'LOCKSTEP_INVALID_ARGUMENT')).toBe(true);
    await first;
    expect(parameter.item()).toBe(0.75);
    await optimizer.step();
    expect(parameter.item()).toBe(0.5);
  });

  test('clipGradNorm, zeroGrad, stateDict, loadStateDict and addParamGroup are refused', async () => {
    const { parameter, optimizer } = setUp();
    const state = optimizer.stateDict();
    const first = optimizer.step();
    for (const call of [
      () => optimizer.zeroGrad(),
      () => optimizer.stateDict(),
      () => optimizer.loadStateDict(state),
      () => optimizer.addParamGroup({ params: [new Parameter(Tensor.zeros([1]))] }),
    ]) {
      expect(call).toThrow(notAwaited);
    }
    await expect(optimizer.clipGradNorm(1)).rejects.toThrow(notAwaited);
    await first;
    expect(parameter.grad?.item()).toBe(1);
  });

  test('a step of another optimizer over the same parameter, and a backward through it, reject', async () => {
    const { parameter, optimizer } = setUp();
    const other = new SGD([parameter]);
    const loss = parameter.mul(3).sum();
    const first = optimizer.step();
    const [step, backward] = [other.step(), loss.backward()];
    await expect(step).rejects.toThrow(/step\(\) was not awaited .*parameter 'w'/);
    await expect(backward).rejects.toThrow(/step\(\) was not awaited .*parameter 'w'/);
    await first;
    await other.step();
  });

  test('the update is there all the same where no gradient is in flight: a forward sees new parameters', () => {
    const { parameter, optimizer } = setUp();
    void optimizer.step();
    expect(parameter.item()).toBe(0.75);
  });

  test('an optimizer of other parameters is not affected', async () => {
    const [a, b] = [setUp(), setUp()];
    await Promise.all([a.optimizer.step(), b.optimizer.step()]);
    expect([a.parameter.item(), b.parameter.item()]).toEqual([0.75, 0.75]);
  });
});

test('after clipGradNorm without await, step rejects', async () => {
  const { parameter, optimizer } = setUp();
  const clipping = optimizer.clipGradNorm(0.5);
  await expect(optimizer.step()).rejects.toThrow('optimizer.clipGradNorm() is still at work');
  await clipping;
  expect(parameter.item()).toBe(1);
});

test('after backward without await, step, clipGradNorm and zeroGrad name a parameter it is at work on', async () => {
  const layer = new Linear(1, 1);
  const optimizer = new SGD(layer.parameters());
  layer.parameters();
  const before = layer.weight.item();
  const backward = (await layer.forward(Tensor.ones([1, 1]))).sum().backward();
  const message = /backward\(\) was not awaited .* still at work on parameter 'weight'/;
  expect(() => optimizer.zeroGrad()).toThrow(message);
  const [step, clipping] = [optimizer.step(), optimizer.clipGradNorm(1)];
  await expect(step).rejects.toThrow(message);
  await expect(clipping).rejects.toThrow(message);
  await backward;
  expect(layer.weight.item()).toBe(before);
  await optimizer.step();
  expect(layer.weight.item()).not.toBe(before);
});

describe('a gradient gate', () => {
  test('is awaited once by step and clipGradNorm, for all its parameters, before anything changes', async () => {
    const parameters = [1, 2, 3].map((value) => new Parameter(Tensor.from([value])));
    const settled: string[] = [];
    let open: (() => void) | undefined;
    const gate: GradientGate = {
      settle: async (operation) => {
        settled.push(operation);
        await new Promise<void>((resolve) => (open = resolve));
        for (const parameter of parameters) parameter.grad = Tensor.from([1]); // what was in flight has arrived
      },
    };
    for (const parameter of parameters) parameter.gradientGate = gate;
    const optimizer = new SGD(parameters, { lr: 0.5 });
    const step = optimizer.step();
    await Promise.resolve();
    expect(parameters.map((parameter) => parameter.item())).toEqual([1, 2, 3]);
    open?.();
    await step;
    expect(parameters.map((parameter) => parameter.item())).toEqual([0.5, 1.5, 2.5]);
    const clipping = optimizer.clipGradNorm(1);
    await Promise.resolve();
    open?.();
    expect(await clipping).toBe(Math.sqrt(3));
    expect(settled).toEqual(['optimizer.step()', 'optimizer.clipGradNorm()']);
  });

  test('that rejects makes them reject, with nothing changed, and the optimizer usable', async () => {
    const { parameter, optimizer } = setUp();
    parameter.gradientGate = { settle: async (operation) => Promise.reject(new Error(`${operation} before sync`)) };
    await expect(optimizer.step()).rejects.toThrow('optimizer.step() before sync');
    await expect(optimizer.clipGradNorm(0.1)).rejects.toThrow('optimizer.clipGradNorm() before sync');
    expect([parameter.item(), parameter.grad?.item()]).toEqual([1, 1]);
    parameter.gradientGate = undefined;
    await optimizer.step();
    expect(parameter.item()).toBe(0.75);
  });
});
