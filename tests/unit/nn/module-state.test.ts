import { memory } from '../../../src/core/memory-account';
import { Embedding } from '../../../src/nn/embedding';
import { Linear } from '../../../src/nn/linear';
import { Module } from '../../../src/nn/module';
import { Parameter } from '../../../src/nn/parameter';
import { Sequential } from '../../../src/nn/sequential';
import { Tensor } from '../../../src/tensor/tensor';
import { tidy } from '../../../src/tensor/tidy';

/** Counts its calls in a buffer, and keeps a scratch buffer that is not saved. */
class Counting extends Module {
  readonly layer = new Linear(2, 2);
  readonly calls = this.registerBuffer('calls', Tensor.zeros([1], { dtype: 'int32' }));
  readonly scratch = this.registerBuffer('scratch', Tensor.zeros([3]), { persistent: false });

  async forward(x: Tensor): Promise<Tensor> {
    (this.calls.data as Int32Array)[0]!++;
    return this.layer.forward(x);
  }
}

/** A language model whose head is its embedding. */
class Tied extends Module {
  readonly embedding = new Embedding(3, 2);
  readonly head = new Linear(2, 3, { bias: false });

  constructor() {
    super();
    this.head.weight = this.embedding.weight;
  }

  async forward(ids: Tensor): Promise<Tensor> {
    return this.head.forward(await this.embedding.forward(ids));
  }
}

const valuesOf = (module: Module) =>
  Object.fromEntries(Object.entries(module.stateDict()).map(([name, { data }]) => [name, Array.from(data, Number)]));

describe('buffers', () => {
  test('are properties, listed with their names, and not parameters', async () => {
    const model = new Sequential(new Counting());
    expect(model.namedBuffers().map(([name]) => name)).toEqual(['0.calls', '0.scratch']);
    expect(model.buffers().map(({ shape }) => shape)).toEqual([[1], [3]]);
    expect(model.namedBuffers({ persistentOnly: true }).map(([name]) => name)).toEqual(['0.calls']);
    expect(model.namedParameters().map(([name]) => name)).toEqual(['0.layer.weight', '0.layer.bias']);
    await model.forward(Tensor.ones([1, 2]));
    expect(model.buffers()[0]?.item()).toBe(1);
  });

  test('outlive a tidy in which their module was made', () => {
    const made: Counting[] = [];
    tidy(() => void made.push(new Counting()));
    expect(made[0]?.calls.item()).toBe(0);
    expect(made[0]?.layer.weight.size).toBe(4);
  });

  test('one that is assigned anew is the one that is listed', () => {
    class Running extends Module {
      mean = this.registerBuffer('mean', Tensor.zeros([1]));

      async forward(x: Tensor): Promise<Tensor> {
        this.mean = x.mean();
        return x;
      }
    }
    const module = new Running();
    const [before] = module.buffers();
    module.mean = Tensor.ones([1]);
    expect(module.buffers()).toEqual([module.mean]);
    expect(module.buffers()[0]).not.toBe(before);
  });

  test.each(['', 'a.b', 'layer', 'forward', 'parameters'])("'%s' is no name for one", (name) => {
    const module = new Counting();
    expect(() => module.registerBuffer(name, Tensor.zeros([1]))).toThrow(`Counting.registerBuffer: '${name}' is`);
  });
});

describe('stateDict', () => {
  test('holds parameters and saved buffers, in copies that training does not change', () => {
    const model = new Counting();
    const state = model.stateDict();
    expect(Object.keys(state)).toEqual(['layer.weight', 'layer.bias', 'calls']);
    const before = Array.from(state['layer.weight']?.data ?? [], Number);
    (model.layer.weight.data as Float32Array).fill(7);
    expect(Array.from(state['layer.weight']?.data ?? [], Number)).toEqual(before);
    expect(state['layer.weight']?.requiresGrad).toBe(false);
  });

  test('does not count its copies as parameters', () => {
    const model = new Linear(100, 100);
    const before = memory.stats().live.parameters;
    const state = model.stateDict();
    expect(memory.stats().live.parameters).toBe(before);
    Object.values(state).forEach((tensor) => tensor.dispose());
  });

  test('goes back into another module of the same form, bit for bit, from an object and from a Map', () => {
    const [from, object, map] = [new Counting(), new Counting(), new Counting()];
    (from.calls.data as Int32Array)[0] = 5;
    object.loadStateDict(from.stateDict());
    map.loadStateDict(new Map(Object.entries(from.stateDict())));
    expect(valuesOf(object)).toEqual(valuesOf(from));
    expect(valuesOf(map)).toEqual(valuesOf(from));
  });

  test('a tied parameter is saved once, and loads from any of its names', () => {
    const model = new Tied();
    const state = model.stateDict();
    expect(Object.keys(state)).toEqual(['embedding.weight']);
    const weight = Tensor.full([3, 2], 4);
    for (const given of [
      { 'embedding.weight': weight },
      { 'head.weight': weight },
      { 'embedding.weight': weight, 'head.weight': weight.clone() },
    ]) {
      const other = new Tied();
      expect(other.loadStateDict(given)).toEqual({ missingKeys: [], unexpectedKeys: [] });
      expect(other.head.weight.data).toEqual(weight.data);
      expect(other.head.weight).toBe(other.embedding.weight);
    }
  });

  test('values of another floating point dtype are converted', () => {
    const layer = new Linear(1, 2, { bias: false });
    layer.loadStateDict({ weight: Tensor.from([[1.5], [-2]], undefined, { dtype: 'bfloat16' }) });
    expect(layer.weight.toArray()).toEqual([[1.5], [-2]]);
    layer.weight = new Parameter(Tensor.zeros([2, 1], { dtype: 'float16' }));
    layer.loadStateDict({ weight: Tensor.from([[0.1], [70_000]]) });
    expect(layer.weight.toArray()).toEqual([[0.0999755859375], [Infinity]]);
  });
});

describe('loadStateDict refuses what does not fit, says all of it, and changes nothing', () => {
  const shape = (...sizes: number[]) => Tensor.full(sizes, 9);

  test.each([
    ['missing names', { weight: shape(2, 2) }, ["missing 'bias'"]],
    ['unexpected names', { weight: shape(2, 2), bias: shape(2), scale: shape(1) }, ["unexpected 'scale'"]],
    ['a shape', { weight: shape(3, 2), bias: shape(2) }, ["'weight': expected shape [2, 2], got [3, 2]"]],
    ['no tensor', { weight: [1, 2], bias: shape(2) }, ["'weight': expected a tensor, got object"]],
    [
      'several at once',
      { weight: shape(1, 2), scale: shape(1) },
      ["missing 'bias'", "unexpected 'scale'", "'weight': expected shape [2, 2], got [1, 2]"],
    ],
    [
      'integers for floats',
      { weight: Tensor.zeros([2, 2], { dtype: 'int32' }), bias: shape(2) },
      ["'weight': expected float32, got int32"],
    ],
  ])('%s', (_what, state, messages) => {
    const layer = new Linear(2, 2);
    const before = valuesOf(layer);
    const load = () => layer.loadStateDict(state as never);
    for (const message of messages) expect(load).toThrow(message);
    expect(load).toThrow('Linear.loadStateDict: ');
    expect(load).toThrow('Nothing was changed');
    expect(valuesOf(layer)).toEqual(before);
  });

  test('a shape also without strict, where names only are returned', () => {
    const layer = new Linear(2, 2);
    const names = { missingKeys: ['bias'], unexpectedKeys: ['scale'] };
    expect(layer.loadStateDict({ weight: shape(2, 2), scale: shape(1) }, { strict: false })).toEqual(names);
    expect(layer.weight.data[3]).toBe(9);
    expect(() => layer.loadStateDict({ weight: shape(4) }, { strict: false })).toThrow(
      'expected shape [2, 2], got [4]',
    );
  });

  test('a tied parameter that the state gives two values', () => {
    const state = { 'embedding.weight': shape(3, 2), 'head.weight': Tensor.zeros([3, 2]) };
    expect(() => new Tied().loadStateDict(state)).toThrow(
      "'embedding.weight' and 'head.weight' are one parameter here, but the state has different values for them",
    );
  });

  test('a parameter whose memory is gone', () => {
    const layer = new Linear(2, 2);
    const state = layer.stateDict();
    (layer.weight.data as Float32Array).fill(1);
    layer.bias?.dispose();
    expect(() => layer.loadStateDict(state)).toThrow("parameter 'bias' (float32 [2]) was disposed of");
    expect(layer.weight.data[0]).toBe(1);
  });

  test('a module whose backward is pending', async () => {
    const layer = new Linear(1, 1);
    const state = layer.stateDict();
    const pending = (await layer.forward(Tensor.ones([1, 1]))).sum().backward();
    expect(() => layer.loadStateDict(state)).toThrow(/^Linear.loadStateDict: .*not awaited/);
    await pending;
    layer.loadStateDict(state);
  });

  test.each([undefined, null, 3, [1], Tensor.zeros([1])])('%p for a state', (state) => {
    expect(() => new Linear(1, 1).loadStateDict(state as never)).toThrow(
      'expected an object or a Map of tensors by name',
    );
  });
});
