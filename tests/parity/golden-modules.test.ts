/** The modules of nn, built from options and loaded by name, against the golden vectors of torch. */
import { Conv2d } from '../../src/nn/conv2d';
import { Embedding } from '../../src/nn/embedding';
import { Linear } from '../../src/nn/linear';
import { crossEntropy, mseLoss } from '../../src/nn/losses';
import type { Module } from '../../src/nn/module';
import { MultiHeadAttention } from '../../src/nn/multi-head-attention';
import { LayerNorm, RMSNorm } from '../../src/nn/normalization';
import { TransformerBlock } from '../../src/nn/transformer-block';
import { Tensor } from '../../src/tensor/tensor';
import { readGolden } from '../helpers/golden';

type JsonNumber = number | string;
type ByName<T> = Readonly<Record<string, T>>;

interface Numbers {
  readonly shape: readonly number[];
  readonly data: readonly JsonNumber[];
}

interface Result extends Numbers {
  readonly atol: number;
  readonly rtol: number;
}

interface Case {
  readonly name: string;
  readonly op: string;
  readonly attrs: ByName<never>;
  readonly inputs: ByName<Numbers & { readonly dtype: 'float32' | 'int64' }>;
  readonly output: Result;
  readonly lossWeights?: Numbers;
  readonly grads?: ByName<Result>;
}

const { cases } = readGolden<{ readonly cases: readonly Case[] }>('ops.json');

const makeModule: ByName<(attrs: ByName<never>) => Module> = {
  Linear: (attrs) => new Linear(attrs['inFeatures'] ?? 0, attrs['outFeatures'] ?? 0, { bias: attrs['bias'] }),
  Conv2d: ({ inChannels = 0, outChannels = 0, kernelSize = 0, stride, padding, bias }) =>
    new Conv2d(inChannels, outChannels, kernelSize, { stride, padding, bias }),
  LayerNorm: ({ normalizedShape = 0, eps }) => new LayerNorm(normalizedShape, { eps }),
  RMSNorm: ({ normalizedShape = 0, eps }) => new RMSNorm(normalizedShape, { eps }),
  Embedding: ({ numEmbeddings = 0, embeddingDim = 0 }) => new Embedding(numEmbeddings, embeddingDim),
  MultiHeadAttention: ({ dim = 0, heads = 0, causal, bias }) => new MultiHeadAttention(dim, heads, { causal, bias }),
  TransformerBlock: ({ dim = 0, heads = 0, mlpHidden = 0, causal, eps, gelu }) =>
    new TransformerBlock(dim, heads, { causal, mlpRatio: mlpHidden / dim, eps, gelu }),
};

const makeLoss: ByName<(inputs: ByName<Tensor>, attrs: ByName<never>) => Tensor> = {
  crossEntropy: ({ logits, target }, attrs) => crossEntropy(logits as Tensor, target as Tensor, attrs),
  mseLoss: ({ input, target }, attrs) => mseLoss(input as Tensor, target as Tensor, attrs),
};

/** `qWeight` is the module's `q.weight`; those of a block's attention are one level further down. */
function parameterName(op: string, input: string): string {
  const [, owner = '', kind = ''] = /^(.*?)(weight|bias)$/i.exec(input) ?? [];
  const layer = op === 'TransformerBlock' && /^(q|k|v|proj)$/.test(owner) ? `attn.${owner}` : owner;
  return layer === '' ? kind : `${layer}.${kind.toLowerCase()}`;
}

const tensorOf = ({ data, shape }: Numbers, dtype: 'float32' | 'int64' = 'float32'): Tensor =>
  Tensor.from(data.map(Number), shape, { dtype, requiresGrad: dtype === 'float32' });

function expectClose(got: Tensor | undefined, want: Result, what: string): void {
  expect({ what, shape: got?.shape }).toEqual({ what, shape: want.shape });
  const wrong = want.data.flatMap((value, i) => {
    const [actual, expected] = [Number(got?.data[i]), Number(value)];
    const isClose =
      Object.is(actual, expected) || Math.abs(actual - expected) <= want.atol + want.rtol * Math.abs(expected);
    return isClose ? [] : [{ what, i, actual, expected }];
  });
  expect(wrong).toEqual([]);
}

const moduleCases = cases.filter(({ op }) => op in makeModule);
const lossCases = cases.filter(({ op }) => op in makeLoss);

describe('modules compute what torch computes', () => {
  test.each(moduleCases.map((c) => [c.name, c] as const))('%s', async (_name, { op, attrs, ...golden }) => {
    const module = makeModule[op]?.(attrs) as Module;
    const inputs = Object.entries(golden.inputs).map(([name, value]) => [name, tensorOf(value, value.dtype)] as const);
    const [[firstName, x], ...values] = inputs as [(typeof inputs)[0], ...typeof inputs];
    module.loadStateDict(Object.fromEntries(values.map(([name, value]) => [parameterName(op, name), value])));

    const output = await module.forward(x);
    expectClose(output, golden.output, 'output');
    if (golden.lossWeights === undefined) return;
    await output.mul(tensorOf(golden.lossWeights)).sum().backward();
    const parameters = Object.fromEntries(module.namedParameters());
    for (const [name, want] of Object.entries(golden.grads ?? {})) {
      const tensor = name === firstName ? x : parameters[parameterName(op, name)];
      expectClose(tensor?.grad, want, `gradient of ${name}`);
    }
  });
});

describe('losses compute what torch computes', () => {
  test.each(lossCases.map((c) => [c.name, c] as const))('%s', async (_name, { op, attrs, ...golden }) => {
    const inputs = Object.fromEntries(
      Object.entries(golden.inputs).map(([name, value]) => [name, tensorOf(value, value.dtype)]),
    );
    const loss = makeLoss[op]?.(inputs, attrs) as Tensor;
    expectClose(loss, golden.output, 'loss');
    if (golden.lossWeights === undefined) return;
    await loss.mul(tensorOf(golden.lossWeights)).sum().backward();
    for (const [name, want] of Object.entries(golden.grads ?? {})) expectClose(inputs[name]?.grad, want, name);
  });
});

test('the vectors hold cases of every module and loss that is compared here', () => {
  const found = new Set([...moduleCases, ...lossCases].map(({ op }) => op));
  expect([...found].sort()).toEqual([...Object.keys(makeModule), ...Object.keys(makeLoss)].sort());
});
