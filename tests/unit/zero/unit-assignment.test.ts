import { Embedding } from '../../../src/nn/embedding';
import { Linear } from '../../../src/nn/linear';
import { Module } from '../../../src/nn/module';
import { Parameter } from '../../../src/nn/parameter';
import { Sequential } from '../../../src/nn/sequential';
import { TransformerBlock } from '../../../src/nn/transformer-block';
import { Tensor } from '../../../src/tensor/tensor';
import { assignUnits } from '../../../src/zero/unit-assignment';
import type { AnyModule } from '../../../src/nn/any-module';

/** The units as `name: parameters < modules that gather it`. */
function show(root: AnyModule, mergeElements = 0, persistenceThreshold = 0): string[] {
  const names = new Map<unknown, string>([...root.namedParameters(), ...root.namedModules()].map(([n, x]) => [x, n]));
  return assignUnits(root, { mergeElements, persistenceThreshold }).map(({ name, parameters, modules }) => {
    const list = (items: readonly unknown[]): string => items.map((item) => names.get(item) || '.').join(' ');
    return `${name || '.'}: ${list(parameters)} < ${list(modules)}`;
  });
}

const linear = (inputs: number, outputs: number): Linear => new Linear(inputs, outputs, { bias: false });

class Model extends Module {
  readonly tokens = new Embedding(4, 2);
  readonly scale = new Parameter(Tensor.ones([2]));
  readonly blocks = [new Sequential(linear(2, 2), linear(2, 2)), new Sequential(linear(2, 2))];
  readonly head = linear(2, 4);

  async forward(x: Tensor): Promise<Tensor> {
    return x;
  }
}

describe('the units of stage 3', () => {
  test('with nothing merged, every module that owns parameters is one, in the order of registration', () => {
    expect(show(new Model())).toEqual([
      'tokens: tokens.weight < tokens',
      '.: scale < .',
      'blocks.0.0: blocks.0.0.weight < blocks.0.0',
      'blocks.0.1: blocks.0.1.weight < blocks.0.1',
      'blocks.1.0: blocks.1.0.weight < blocks.1.0',
      'head: head.weight < head',
    ]);
  });

  test('small subtrees are one unit, gathered by its module and by every owner', () => {
    expect(show(new Sequential(new Sequential(linear(2, 2), linear(2, 2)), linear(4, 4)), 8)).toEqual([
      '0: 0.0.weight 0.1.weight < 0 0.0 0.1',
      '1: 1.weight < 1',
    ]);
    expect(show(new Model(), 1000)).toHaveLength(1);
  });

  test('a large module takes up only its tiny subtrees', () => {
    expect(show(new TransformerBlock(4, 1, { bias: false }), 256).length).toBe(1);
    expect(show(new TransformerBlock(8, 1, { bias: false }), 512)).toEqual([
      '.: norm1.weight norm1.bias norm2.weight norm2.bias < . norm1 norm2',
      'attn: attn.q.weight attn.k.weight attn.v.weight attn.proj.weight < attn attn.q attn.k attn.v attn.proj',
      'fc1: fc1.weight < fc1',
      'fc2: fc2.weight < fc2',
    ]);
  });

  test('a tied parameter belongs to the lowest module above its owners, and each of them gathers it', () => {
    const model = new Model();
    model.head.weight = model.tokens.weight;
    expect(show(model)[0]).toBe('.: tokens.weight scale < . tokens head');
    const inner = new Model();
    const [first, second] = [inner.blocks[0]?.[0] as Linear, inner.blocks[0]?.[1] as Linear];
    second.weight = first.weight;
    expect(show(inner)[2]).toBe('blocks.0: blocks.0.0.weight < blocks.0 blocks.0.0 blocks.0.1');
  });

  test('parameters up to the threshold are left out', () => {
    expect(show(new Model(), 0, 4)).toEqual(['tokens: tokens.weight < tokens', 'head: head.weight < head']);
  });

  test('a module that is used twice is one unit', () => {
    const shared = linear(2, 2);
    expect(show(new Sequential(shared, new Sequential(shared)))).toEqual(['0: 0.weight < 0']);
  });

  test('nothing is merged into a class without forward', () => {
    class Container extends Module {
      readonly a = linear(2, 2);
      readonly b = linear(2, 2);
      declare forward: (x: Tensor) => Promise<Tensor>;
    }
    expect(show(new Sequential(new Container()), 1000)).toEqual(['0.a: 0.a.weight < 0.a', '0.b: 0.b.weight < 0.b']);
  });
});
