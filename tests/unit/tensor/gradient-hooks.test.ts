import { afterBackward } from '../../../src/tensor/backward-session';
import { customFunction } from '../../../src/tensor/custom-function';
import type { GradientGate } from '../../../src/tensor/gradient-leaf';
import { enableGrad, isGradEnabled } from '../../../src/tensor/gradient-mode';
import { Tensor } from '../../../src/tensor/tensor';

const leaf = (values: number[]): Tensor => Tensor.from(values, undefined, { requiresGrad: true });

/** Runs `fn` without recording, and again with recording in backward, as activation checkpointing does. */
function recomputed(fn: (x: Tensor) => Tensor, hiddenLeaves: readonly Tensor[]): (x: Tensor) => Tensor {
  return customFunction(() => {
    let input: Tensor;
    return {
      forward: (x: Tensor) => {
        input = x.detach();
        return fn(x);
      },
      backward: async (gradient) => {
        input.requiresGrad = true;
        await enableGrad(() => fn(input)).backward(gradient);
        return input.grad;
      },
      hiddenLeaves: () => hiddenLeaves,
    };
  });
}

describe('onGradientReady', () => {
  test('runs once for each backward, after the last use, with .grad final', async () => {
    const x = leaf([2]);
    const seen: unknown[] = [];
    x.onGradientReady((tensor) => seen.push(tensor === x && tensor.grad?.item()));
    await x.mul(x).add(x.mul(3)).backward();
    expect(seen).toEqual([7]);
    await x.mul(1).backward();
    expect(seen).toEqual([7, 8]);
  });

  test('runs in the order in which leaves are used for the last time', async () => {
    const [a, b, c] = [leaf([1]), leaf([1]), leaf([1])];
    const order: string[] = [];
    a.onGradientReady(() => order.push('a'));
    b.onGradientReady(() => order.push('b'));
    c.onGradientReady(() => order.push('c'));
    await a.mul(2).mul(b).mul(c).add(b).backward();
    expect(order).toEqual(['c', 'b', 'a']);
  });

  test('does not run for a leaf that gets no gradient', async () => {
    const x = leaf([1]);
    const y = leaf([1]);
    const dropping = customFunction({ forward: (t: Tensor) => t.mul(2), backward: () => undefined });
    let isCalled = false;
    x.onGradientReady(() => (isCalled = true));
    await dropping(x).add(y).backward();
    expect(isCalled).toBe(false);
    expect(x.grad).toBeUndefined();
  });

  test('ends with the function that it returned; other hooks go on', async () => {
    const x = leaf([1]);
    const seen: string[] = [];
    const stop = x.onGradientReady(() => seen.push('first'));
    x.onGradientReady(() => seen.push('second'));
    stop();
    stop();
    await x.mul(1).backward();
    expect(seen).toEqual(['second']);
  });

  test('may replace the gradient', async () => {
    const x = leaf([1]);
    x.onGradientReady((tensor) => (tensor.grad = Tensor.from([42])));
    await x.mul(2).backward();
    expect(x.grad).toEqual(Tensor.from([42]));
  });

  test('that throws rejects backward(), and the next one works', async () => {
    const x = leaf([1]);
    const stop = x.onGradientReady(() => {
      throw new Error('no room');
    });
    await expect(x.mul(2).backward()).rejects.toThrow('no room');
    stop();
    x.grad = undefined;
    await x.mul(2).backward();
    expect(x.grad).toEqual(Tensor.from([2]));
  });
});

describe('a nested backward', () => {
  test('joins the outermost one: a leaf it reaches is ready once, when the node that runs it is done', async () => {
    const weight = leaf([3]);
    const x = leaf([2]);
    const seen: (number | undefined)[] = [];
    weight.onGradientReady(() => seen.push(weight.grad?.item()));
    const block = recomputed((t) => t.mul(weight), [weight]);
    await block(block(x)).mul(weight).backward();
    expect(seen).toEqual([54]); // d(x w^3)/dw = 3 x w^2
    expect(x.grad?.item()).toBe(27);
  });

  test('makes a result depend on hidden leaves, whether the input needs a gradient or not', async () => {
    const weight = leaf([3]);
    const result = recomputed((t) => t.mul(weight), [weight])(Tensor.from([2]));
    expect(result.requiresGrad).toBe(true);
    await result.backward();
    expect(weight.grad?.item()).toBe(2);
  });

  test('that reaches a leaf which was reported ready is refused, with what to do', async () => {
    const weight = leaf([3]);
    weight.onGradientReady(() => undefined);
    const x = leaf([2]);
    const forgetful = recomputed((t) => t.mul(weight), []);
    await expect(forgetful(x).mul(weight).backward()).rejects.toThrow(/List it in the hiddenLeaves/);
  });
});

describe('afterBackward', () => {
  test('runs at the end of the outermost backward, before it settles, in order, also when nested', async () => {
    const x = leaf([1]);
    const events: string[] = [];
    const inner = leaf([1]);
    inner.onGradientReady(() => {
      afterBackward(async () => {
        await Promise.resolve();
        events.push('callback of inner');
        afterBackward(() => void events.push('callback of a callback'));
      });
    });
    x.onGradientReady(() => {
      events.push('x ready');
      afterBackward(() => void events.push('callback of x'));
    });
    const nesting = customFunction({
      forward: (t: Tensor) => t.mul(1),
      backward: async (gradient) => {
        await enableGrad(() => inner.mul(2)).backward();
        events.push('nested backward is over');
        return gradient;
      },
      hiddenLeaves: () => [inner],
    });
    await nesting(x).backward();
    events.push('backward is over');
    expect(events).toEqual([
      'nested backward is over',
      'x ready',
      'callback of x',
      'callback of inner',
      'callback of a callback',
      'backward is over',
    ]);
  });

  test('rejects backward() when the callback does', async () => {
    const x = leaf([1]);
    x.onGradientReady(() => afterBackward(() => Promise.reject(new Error('link down'))));
    await expect(x.mul(1).backward()).rejects.toThrow('link down');
  });

  test('does not run when backward fails', async () => {
    const x = leaf([1]);
    let isCalled = false;
    x.onGradientReady(() => {
      afterBackward(() => void (isCalled = true));
      throw new Error('stop');
    });
    await expect(x.mul(1).backward()).rejects.toThrow('stop');
    expect(isCalled).toBe(false);
  });

  test('outside of a backward is refused, also from what a backward has started', async () => {
    expect(() => afterBackward(() => undefined)).toThrow(/no backward\(\) is running here/);
    const x = leaf([1]);
    let late: Promise<void> | undefined;
    x.onGradientReady(() => {
      late = new Promise<void>((resolve) => setImmediate(resolve)).then(() => afterBackward(() => undefined));
    });
    await x.mul(1).backward();
    await expect(late).rejects.toThrow(/no backward\(\) is running here/);
  });
});

describe('a gradient gate', () => {
  test('is prepared once for an outermost backward, before the first gradient, and told which leaves are reached', async () => {
    const events: unknown[] = [];
    const [a, b, free] = [leaf([1]), leaf([1]), leaf([1])];
    const gate: GradientGate = {
      prepare: async () => {
        await Promise.resolve();
        events.push(['prepare', a.grad, b.grad]);
        afterBackward(() => void events.push('after'));
      },
      inspect: (leaves) => events.push(leaves.map((tensor) => [a, b, free].indexOf(tensor)).sort()),
      settle: () => Promise.resolve(),
    };
    a.gradientGate = gate;
    b.gradientGate = gate;
    a.onGradientReady(() => events.push('a'));
    await a.mul(b).mul(free).backward();
    expect(events).toEqual([['prepare', undefined, undefined], [0, 1, 2], 'a', 'after']);
  });

  test('that refuses rejects backward() before any gradient is written', async () => {
    const x = leaf([1]);
    x.gradientGate = {
      inspect: () => {
        throw new Error('not mine');
      },
      settle: () => Promise.resolve(),
    };
    await expect(x.mul(1).backward()).rejects.toThrow('not mine');
    expect(x.grad).toBeUndefined();
  });
});

test('backward records nothing by itself', async () => {
  const x = leaf([1]);
  let wasEnabled: boolean | undefined;
  x.onGradientReady(() => (wasEnabled = isGradEnabled()));
  await x.mul(2).backward();
  expect(wasEnabled).toBe(false);
  expect(x.grad?.requiresGrad).toBe(false);
});
