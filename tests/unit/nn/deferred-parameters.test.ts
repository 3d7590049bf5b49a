import { Generator } from '../../../src/core/generator';
import { memory } from '../../../src/core/memory-account';
import { manualSeed } from '../../../src/core/random';
import type { AnyModule } from '../../../src/nn/any-module';
import { Conv2d } from '../../../src/nn/conv2d';
import { Embedding } from '../../../src/nn/embedding';
import { deferParameters } from '../../../src/nn/initial-values';
import { Linear } from '../../../src/nn/linear';
import { Module } from '../../../src/nn/module';
import { MultiHeadAttention } from '../../../src/nn/multi-head-attention';
import { RMSNorm } from '../../../src/nn/normalization';
import { Parameter } from '../../../src/nn/parameter';
import { Sequential } from '../../../src/nn/sequential';
import { TransformerBlock } from '../../../src/nn/transformer-block';
import { Storage } from '../../../src/tensor/storage';
import { Tensor } from '../../../src/tensor/tensor';

class Everything extends Module {
  readonly tokens = new Embedding(5, 4);
  readonly conv = new Conv2d(1, 2, 3);
  readonly block = new TransformerBlock(4, 2);
  readonly attn = new MultiHeadAttention(4, 1);
  readonly norm = new RMSNorm(4);
  readonly scale = new Parameter(Tensor.randn([3]));
  readonly head = new Linear(4, 5, { generator: new Generator(9) });

  constructor() {
    super();
    this.head.weight = this.tokens.weight;
  }

  async forward(x: Tensor): Promise<Tensor> {
    return x;
  }
}

const bitsOf = (module: AnyModule): unknown => module.namedParameters().map(([name, { data }]) => [name, data]);

describe('deferred parameters', () => {
  test('have, once materialised, the bits of eager ones, and the generator goes on from the same place', () => {
    manualSeed(3);
    const eager = new Everything();
    const next = Tensor.randn([2]);
    manualSeed(3);
    const deferred = deferParameters(() => new Everything());
    expect(Tensor.randn([2])).toEqual(next);
    for (const parameter of deferred.parameters().reverse()) parameter.materialize();
    expect(bitsOf(deferred)).toEqual(bitsOf(eager));
  });

  test('take no memory before, but those of new Parameter(tensor)', () => {
    const before = memory.stats().live.parameters;
    const deferred = deferParameters(() => new Everything());
    expect(memory.stats().live.parameters - before).toBe(12);
    expect(
      deferred
        .namedParameters()
        .filter(([, { isDeferred }]) => !isDeferred)
        .map(([name]) => name),
    ).toEqual(['scale']);
    const weight = deferred.head.weight;
    weight.materialize();
    expect(memory.stats().live.parameters - before).toBe(12 + 80);
    weight.dispose();
    deferred.scale.dispose();
    expect(memory.stats().live.parameters - before).toBe(0);
  });

  test('throw when they are touched, naming the parameter', async () => {
    const net = deferParameters(() => new Sequential(new Linear(2, 3)));
    net.namedParameters();
    await expect(net.forward(Tensor.ones([1, 2]))).rejects.toThrow(
      "parameter '0.weight' (float32 [3, 2]) has no values yet",
    );
    expect(() => net.stateDict()).toThrow("parameter '0.weight'");
  });

  test('can be converted and moved while they are deferred', () => {
    manualSeed(4);
    const eager = new Linear(3, 2).to('bfloat16');
    manualSeed(4);
    const deferred = deferParameters(() => new Linear(3, 2).to('bfloat16'));
    expect(deferred.weight.isDeferred).toBe(true);
    const storage = Storage.allocate('bfloat16', 6);
    deferred.weight.moveInto(storage, 'test');
    deferred.bias?.materialize();
    expect(deferred.weight.storage).toBe(storage);
    expect(bitsOf(deferred)).toEqual(bitsOf(eager));
  });
});
