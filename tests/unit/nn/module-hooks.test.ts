import { stderrLogger } from '../../../src/core/logger';
import { Linear } from '../../../src/nn/linear';
import { Module } from '../../../src/nn/module';
import { Parameter } from '../../../src/nn/parameter';
import { Sequential } from '../../../src/nn/sequential';
import { noGrad } from '../../../src/tensor/gradient-mode';
import { Tensor } from '../../../src/tensor/tensor';

/** Lets other pending promises go first. */
const later = async () => {
  for (let i = 0; i < 5; i++) await Promise.resolve();
};

const two = () => Tensor.ones([1, 2]);

describe('forward hooks', () => {
  test('run in order around forward, and forward waits for async ones', async () => {
    const layer = new Linear(2, 1);
    const order: string[] = [];
    layer.registerForwardPreHook(async (_module, [x]) => {
      await later();
      order.push(`before ${x.shape.join('x')}`);
    });
    layer.registerForwardPreHook(() => order.push('before again'));
    layer.registerForwardHook(async (module, [x], y) => {
      await later();
      order.push(`after ${x.shape.join('x')} ${y.shape.join('x')} ${String(module === layer)}`);
    });
    layer.registerForwardCleanup(() => order.push('cleanup'));
    await layer.forward(two());
    expect(order).toEqual(['before 1x2', 'before again', 'after 1x2 1x1 true', 'cleanup']);
  });

  test('what a hook returns changes nothing', async () => {
    const layer = new Linear(2, 1);
    const expected = (await layer.forward(two())).data;
    layer.registerForwardPreHook(() => [Tensor.zeros([1, 2])]);
    layer.registerForwardHook(() => 7);
    expect((await layer.forward(two())).data).toEqual(expected);
  });

  test('an unsubscribed hook does not run again, and unsubscribing within a hook spares the others', async () => {
    const layer = new Linear(2, 1);
    const calls: string[] = [];
    const stop = layer.registerForwardPreHook(() => {
      calls.push('first');
      stop();
    });
    layer.registerForwardPreHook(() => calls.push('second'));
    await layer.forward(two());
    await layer.forward(two());
    stop();
    expect(calls).toEqual(['first', 'second', 'second']);
  });

  test('a hook that throws rejects forward; after-hooks are skipped and cleanups run', async () => {
    const layer = new Linear(2, 1);
    const after = jest.fn();
    const cleanup = jest.fn();
    const forward = jest.spyOn(Linear.prototype, 'forward');
    layer.registerForwardHook(after);
    layer.registerForwardCleanup(cleanup);
    const stop = layer.registerForwardPreHook(() => {
      throw new Error('no memory');
    });
    await expect(layer.forward(two())).rejects.toThrow('no memory');
    expect(forward).not.toHaveBeenCalled();
    forward.mockRestore();
    stop();
    await expect(layer.forward(Tensor.ones([3]))).rejects.toThrow('linear: expected x [..., in]');
    expect(after).not.toHaveBeenCalled();
    expect(cleanup).toHaveBeenCalledTimes(2);
  });

  test('a cleanup that throws rejects forward, unless forward failed first; the others run', async () => {
    const layer = new Linear(2, 1);
    const second = jest.fn();
    layer.registerForwardCleanup(() => {
      throw new Error('cannot free');
    });
    layer.registerForwardCleanup(second);
    await expect(layer.forward(two())).rejects.toThrow('cannot free');
    const warn = jest.spyOn(stderrLogger, 'warn').mockImplementation();
    await expect(layer.forward(Tensor.ones([3]))).rejects.toThrow('linear: expected x [..., in]');
    expect(warn).toHaveBeenCalledWith(expect.stringContaining('cannot free'));
    warn.mockRestore();
    expect(second).toHaveBeenCalledTimes(2);
  });
});

describe('[Note: backward hooks]', () => {
  /** Records when each layer is entered and left, and when each parameter's gradient is final. */
  function traced(model: Sequential): string[] {
    const events: string[] = [];
    for (const [name, layer] of model.namedChildren()) {
      layer.registerBackwardPreHook(async () => {
        await later();
        events.push(`enter ${name}`);
      });
      layer.registerBackwardHook(async () => {
        await later();
        events.push(`leave ${name}`);
      });
    }
    for (const [name, parameter] of model.namedParameters()) {
      parameter.onGradientReady(() => events.push(`ready ${name}`));
    }
    return events;
  }

  test('enclose the work of their module, and backward waits for them', async () => {
    const model = new Sequential(new Linear(2, 2), new Linear(2, 2), new Linear(2, 1));
    const events = traced(model);
    const input = Tensor.from([[1, 2]], undefined, { requiresGrad: true });
    await (await model.forward(input)).sum().backward();
    expect(events.map((event) => event.replace(/weight|bias/, 'parameter'))).toEqual(
      ['2', '1', '0'].flatMap((layer) => [
        `enter ${layer}`,
        `ready ${layer}.parameter`,
        `ready ${layer}.parameter`,
        `leave ${layer}`,
      ]),
    );
  });

  test('change neither outputs nor gradients', async () => {
    const run = async (hasHooks: boolean) => {
      const model = new Sequential(new Linear(2, 3), new Linear(3, 1));
      for (const parameter of model.parameters()) {
        (parameter.data as Float32Array).forEach((_value, i, data) => (data[i] = Math.sin(i + 1)));
      }
      if (hasHooks) traced(model);
      const input = Tensor.from([[1, 2]], undefined, { requiresGrad: true });
      const output = await model.forward(input);
      await output.sum().backward();
      return [output.data, input.grad?.data, ...model.parameters().map(({ grad }) => grad?.data)];
    };
    expect(await run(true)).toEqual(await run(false));
  });

  test('where no input needs a gradient, a module is left at the end of backward', async () => {
    const model = new Sequential(new Linear(2, 2), new Linear(2, 1));
    const events = traced(model);
    await (await model.forward(two())).sum().backward();
    expect(events.at(-1)).toBe('leave 0');
    expect(events.filter((event) => /enter|leave/.test(event))).toEqual(['enter 1', 'leave 1', 'enter 0', 'leave 0']);
  });

  test('run once for each forward that is differentiated', async () => {
    const layer = new Linear(2, 2);
    const [enter, leave] = [jest.fn(), jest.fn()];
    layer.registerBackwardPreHook(enter);
    layer.registerBackwardHook(leave);
    const twice = await layer.forward(await layer.forward(two()));
    await twice.sum().backward();
    expect([enter, leave].map((hook) => hook.mock.calls.length)).toEqual([2, 2]);
    await noGrad(async () => layer.forward(two()));
    expect(enter).toHaveBeenCalledTimes(2);
  });

  test('see every tensor of inputs and outputs that are tuples, arrays and objects', async () => {
    class Mix extends Module<
      [{ readonly parts: readonly Tensor[]; readonly scale: number }],
      { readonly sums: Tensor[] }
    > {
      async forward({ parts, scale }: { readonly parts: readonly Tensor[]; readonly scale: number }) {
        return { sums: parts.map((part) => part.mul(scale).sum()) };
      }
    }
    const mix = new Mix();
    const order: string[] = [];
    mix.registerBackwardPreHook(() => order.push('enter'));
    mix.registerBackwardHook(() => order.push('leave'));
    const leaves = [1, 2].map((value) => Tensor.from([value, value], [2], { requiresGrad: true }));
    const { sums } = await mix.forward({ parts: leaves, scale: 3 });
    const [first, second] = sums as [Tensor, Tensor];
    await first.backward();
    expect(leaves.map(({ grad }) => grad?.toArray())).toEqual([[3, 3], undefined]); // no zeros for what was not used
    await second.backward();
    expect(leaves.map(({ grad }) => grad?.toArray())).toEqual([
      [3, 3],
      [3, 3],
    ]);
    expect(order).toEqual(['enter', 'leave', 'enter', 'leave']);
  });

  test('one that throws rejects backward', async () => {
    const layer = new Linear(2, 1);
    layer.registerBackwardPreHook(async () => {
      await later();
      throw new Error('gather failed');
    });
    const loss = (await layer.forward(two())).sum();
    await expect(loss.backward()).rejects.toThrow('gather failed');
  });

  test('a parameter may be swapped in before backward, as ZeRO-3 does', async () => {
    // what backward needs of a parameter is saved by the operators; a hook only has to come before they run
    const layer = new Linear(1, 1, { bias: false });
    layer.weight = new Parameter(Tensor.from([[2]]));
    layer.registerBackwardPreHook(() => (layer.weight.data as Float32Array).fill(5));
    const input = Tensor.from([[3]], undefined, { requiresGrad: true });
    await (await layer.forward(input)).sum().backward();
    expect(input.grad?.item()).toBe(5);
  });

  test('all hooks of one forward and its way back get the same call, and two forwards two', async () => {
    const layer = new Linear(2, 1);
    const seen: object[][] = [];
    const note = (at: number, call: object): void => void (seen[at] ??= []).push(call);
    layer.registerForwardPreHook((_module, _input, call) => note(0, call));
    layer.registerForwardHook((_module, _input, _output, call) => note(1, call));
    layer.registerForwardCleanup((_module, call) => note(2, call));
    layer.registerBackwardPreHook((_module, call) => note(3, call));
    layer.registerBackwardHook((_module, call) => note(4, call));
    for (let i = 0; i < 2; i++) await (await layer.forward(two())).sum().backward();
    const [first, second] = seen[0] as [object, object];
    expect(first).not.toBe(second);
    for (const calls of seen) expect([calls[0] === first, calls[1] === second]).toEqual([true, true]);
    expect(seen.map((calls) => calls.length)).toEqual([2, 2, 2, 2, 2]);
  });
});
