import { memory } from '../../../src/core/memory-account';
import type { AnyModule } from '../../../src/nn/any-module';
import { Linear } from '../../../src/nn/linear';
import { Module } from '../../../src/nn/module';
import { Parameter } from '../../../src/nn/parameter';
import { Sequential } from '../../../src/nn/sequential';
import { Tensor } from '../../../src/tensor/tensor';

const parameter = (...values: number[]) => new Parameter(Tensor.from(values));

class Scale extends Module {
  constructor(readonly factor: Parameter) {
    super();
  }

  async forward(x: Tensor): Promise<Tensor> {
    return x.mul(this.factor);
  }
}

const one = () => Tensor.ones([1]);
const namesOf = (module: AnyModule) => module.namedParameters().map(([name]) => name);

describe('what a Module finds', () => {
  class Everything extends Module {
    readonly first = parameter(1);
    readonly child = new Scale(parameter(2));
    readonly list = [new Scale(parameter(3)), new Scale(parameter(4))];
    readonly pairs = [[new Scale(parameter(5))]];
    readonly loose = [parameter(6)];
    readonly notThese = {
      map: new Map([['a', parameter(7)]]),
      object: { hidden: parameter(8) },
      plain: Tensor.zeros([2]),
      nothing: undefined,
    };
    readonly #hidden = parameter(9);
    readonly last = parameter(10);

    async forward(x: Tensor): Promise<Tensor> {
      return x.mul(this.#hidden);
    }
  }

  test('parameters and modules among enumerable properties and in arrays, in order of assignment', () => {
    const module = new Everything();
    expect(module.namedParameters().map(([name, { data }]) => [name, data[0]])).toEqual([
      ['first', 1],
      ['child.factor', 2],
      ['list.0.factor', 3],
      ['list.1.factor', 4],
      ['pairs.0.0.factor', 5],
      ['loose.0', 6],
      ['last', 10],
    ]);
    expect(module.parameters().map(({ data }) => data[0])).toEqual([1, 2, 3, 4, 5, 6, 10]);
    expect(module.namedModules().map(([name]) => name)).toEqual(['', 'child', 'list.0', 'list.1', 'pairs.0.0']);
    expect(module.children()).toEqual([module.child, ...module.list, ...module.pairs.flat()]);
    expect(module.modules()[0]).toBe(module);
  });

  test('a tied parameter is listed once, under its first name, and a module used twice too', () => {
    const shared = parameter(1);
    const [a, b] = [new Scale(shared), new Scale(shared)];
    const model = new Sequential(a, b, a);
    expect(namesOf(model)).toEqual(['0.factor']);
    expect(model.namedModules().map(([name]) => name)).toEqual(['', '0', '1']);
  });

  test('a child that refers back to its parent does not send the search in circles', () => {
    class Child extends Scale {
      parent: AnyModule | undefined;
    }
    const child = new Child(parameter(1));
    const root = new Sequential(child);
    child.parent = root;
    expect(namesOf(root)).toEqual(['0.factor']);
    expect(root.loadStateDict(root.stateDict()).missingKeys).toEqual([]);
  });

  test('a property assigned later, or removed, is seen', () => {
    const layer = new Linear(2, 2, { bias: false });
    expect(namesOf(layer)).toEqual(['weight']);
    layer.bias = parameter(0, 0);
    expect(namesOf(layer)).toEqual(['weight', 'bias']);
    layer.bias = undefined;
    expect(namesOf(layer)).toEqual(['weight']);
  });

  test('messages call a parameter by the longest name under which it was listed', () => {
    const model = new Sequential(new Linear(1, 1));
    const [weight] = model[0]?.parameters() ?? [];
    expect(weight?.name).toBe('weight');
    model.parameters();
    expect(weight?.name).toBe('0.weight');
    model[0]?.parameters();
    expect(weight?.name).toBe('0.weight');
    const named = new Parameter(Tensor.zeros([1]), { name: 'mine' });
    new Scale(named).parameters();
    expect(named.name).toBe('mine');
  });
});

describe('modes and gradients', () => {
  test('train and eval reach every module below and keep the type', () => {
    const inner = new Scale(parameter(1));
    const model = new Sequential(new Sequential(inner));
    expect(model.isTraining).toBe(true);
    const same: Sequential = model.eval();
    expect(same).toBe(model);
    expect(model.modules().map((module) => module.isTraining)).toEqual([false, false, false]);
    inner.train();
    expect(model.modules().map((module) => module.isTraining)).toEqual([false, false, true]);
    expect(model.train(false).isTraining).toBe(false);
  });

  test('zeroGrad drops the gradients of all parameters', async () => {
    const model = new Sequential(new Linear(2, 2), new Linear(2, 1));
    await (await model.forward(Tensor.ones([3, 2]))).sum().backward();
    expect(model.parameters().every(({ grad }) => grad !== undefined)).toBe(true);
    expect(memory.stats().live.gradients).toBeGreaterThan(0);
    model.zeroGrad();
    expect(model.parameters().every(({ grad }) => grad === undefined)).toBe(true);
    expect(memory.stats().live.gradients).toBe(0);
  });

  test('zeroGrad while a backward is pending says that it was not awaited', async () => {
    const model = new Linear(1, 1);
    const pending = (await model.forward(Tensor.ones([1, 1]))).sum().backward();
    expect(() => model.zeroGrad()).toThrow(/not awaited.*parameter 'weight'/);
    await pending;
    model.zeroGrad();
  });
});

describe('[Note: forward and hooks]', () => {
  test('forward is an own property that is writable and neither enumerable nor configurable', () => {
    const module = new Scale(parameter(2));
    expect(Object.getOwnPropertyDescriptor(module, 'forward')).toMatchObject({
      writable: true,
      enumerable: false,
      configurable: false,
    });
    expect(Object.keys(module)).toEqual(['factor']);
  });

  test('a class that declares forward as a field fails when it is built', () => {
    class ArrowField extends Module {
      override forward = async (x: Tensor): Promise<Tensor> => x;
    }
    expect(() => new ArrowField()).toThrow(new TypeError('Cannot redefine property: forward'));
  });

  test('super.forward is the parent alone: hooks run once', async () => {
    class Twice extends Scale {
      override async forward(x: Tensor): Promise<Tensor> {
        return (await super.forward(x)).add(await super.forward(x));
      }
    }
    const module = new Twice(parameter(2));
    const hook = jest.fn();
    module.registerForwardHook(hook);
    expect((await module.forward(one())).item()).toBe(4);
    expect(hook).toHaveBeenCalledTimes(1);
  });

  test('a spy on the instance sees calls and passes them on, and restores', async () => {
    const module = new Scale(parameter(2));
    const spy = jest.spyOn(module, 'forward');
    expect((await new Sequential(module).forward(one())).item()).toBe(2);
    expect(spy).toHaveBeenCalledTimes(1);
    spy.mockResolvedValueOnce(Tensor.zeros([1]));
    expect((await module.forward(one())).item()).toBe(0);
    spy.mockRestore();
    expect((await module.forward(one())).item()).toBe(2);
  });

  test('a spy on the class sees calls, hooks included', async () => {
    const module = new Scale(parameter(2));
    const hook = jest.fn();
    module.registerForwardHook(hook);
    const spy = jest.spyOn(Scale.prototype, 'forward').mockResolvedValue(Tensor.zeros([1]));
    expect((await module.forward(one())).item()).toBe(0);
    expect(hook).toHaveBeenCalledTimes(1);
    spy.mockRestore();
  });

  test('an error of forward is a rejection, also one thrown before the first await', async () => {
    class Throws extends Module {
      forward(): Promise<Tensor> {
        throw new RangeError('not today');
      }
    }
    await expect(new Throws().forward()).rejects.toThrow('not today');
  });

  test('a class without forward says so', async () => {
    class Empty extends (Module as unknown as new () => Scale) {}
    await expect(new Empty().forward(one())).rejects.toThrow('Empty.forward: the class does not define it');
  });

  test('modules of several inputs and other outputs keep their types', async () => {
    class Pair extends Module<[Tensor, number], readonly [Tensor, number]> {
      async forward(x: Tensor, times: number): Promise<readonly [Tensor, number]> {
        return [x.mul(times), times];
      }
    }
    const any: AnyModule = new Pair();
    expect(any.parameters()).toEqual([]);
    const [y, times] = await new Pair().forward(one(), 3);
    expect([y.item(), times]).toEqual([3, 3]);
  });
});
