/** Values and gradients of operators against the golden vectors, which torch computed in float64. */
import {
  concat,
  conv2d,
  crossEntropyLoss,
  embedding,
  layerNorm,
  linear,
  rmsNorm,
  type CrossEntropyOptions,
} from '../../src/tensor/functional';
import { Tensor } from '../../src/tensor/tensor';
import { readGolden } from '../helpers/golden';

type JsonNumber = number | 'NaN' | 'Infinity' | '-Infinity';

interface GoldenInput {
  readonly dtype: 'float32' | 'int64';
  readonly shape: readonly number[];
  readonly data: readonly JsonNumber[];
}

interface GoldenResult {
  readonly shape: readonly number[];
  readonly data: readonly JsonNumber[];
  readonly atol: number;
  readonly rtol: number;
}

interface GoldenCase {
  readonly name: string;
  readonly op: string;
  readonly attrs: Attributes;
  readonly inputs: Readonly<Record<string, GoldenInput>>;
  readonly output: GoldenResult;
  readonly lossWeights?: { readonly shape: readonly number[]; readonly data: readonly JsonNumber[] };
  readonly grads?: Readonly<Record<string, GoldenResult>>;
}

interface Attributes extends CrossEntropyOptions {
  readonly dim0: number;
  readonly dim1: number;
  readonly dim: number;
  readonly start: number;
  readonly end: number;
  readonly shape: readonly number[];
  readonly dims: readonly number[] | null;
  readonly keepDim: boolean;
  readonly normalizedShape: readonly number[];
  readonly eps: number;
  readonly stride: number | readonly [number, number];
  readonly padding: number | readonly [number, number];
}

type Inputs = Readonly<Record<string, Tensor>>;

const at = (inputs: Inputs, name: string): Tensor => {
  const input = inputs[name];
  if (input === undefined) throw new Error(`the case has no input ${name}`);
  return input;
};

type Operator = (inputs: Inputs, attrs: Attributes) => Tensor;

const ofTwo = (op: 'add' | 'sub' | 'mul' | 'div' | 'matmul'): Operator => {
  return (inputs) => at(inputs, 'a')[op](at(inputs, 'b'));
};

const ofOne = (apply: (x: Tensor, attrs: Attributes) => Tensor): Operator => {
  return (inputs, attrs) => apply(at(inputs, 'x'), attrs);
};

const reduction = (op: 'sum' | 'mean' | 'max' | 'min'): Operator =>
  ofOne((x, { dims, keepDim }) => x[op](dims ?? undefined, keepDim));

const OPERATORS: Readonly<Record<string, Operator>> = {
  add: ofTwo('add'),
  sub: ofTwo('sub'),
  mul: ofTwo('mul'),
  div: ofTwo('div'),
  matmul: ofTwo('matmul'),
  transpose: ofOne((x, { dim0, dim1 }) => x.transpose(dim0, dim1)),
  reshape: ofOne((x, { shape }) => x.reshape(shape)),
  slice: ofOne((x, { dim, start, end }) => x.slice(dim, start, end)),
  concat: (inputs, { dim }) => concat(Object.values(inputs), dim),
  sum: reduction('sum'),
  mean: reduction('mean'),
  max: reduction('max'),
  min: reduction('min'),
  exp: ofOne((x) => x.exp()),
  log: ofOne((x) => x.log()),
  sqrt: ofOne((x) => x.sqrt()),
  tanh: ofOne((x) => x.tanh()),
  sigmoid: ofOne((x) => x.sigmoid()),
  relu: ofOne((x) => x.relu()),
  gelu: ofOne((x) => x.gelu('none')),
  geluTanh: ofOne((x) => x.gelu('tanh')),
  silu: ofOne((x) => x.silu()),
  softmax: ofOne((x, { dim }) => x.softmax(dim)),
  logSoftmax: ofOne((x, { dim }) => x.logSoftmax(dim)),
  crossEntropy: (inputs, { reduction, ignoreIndex, labelSmoothing }) =>
    crossEntropyLoss(at(inputs, 'logits'), at(inputs, 'target'), { reduction, ignoreIndex, labelSmoothing }),
  mseLoss: (inputs, { reduction }) => {
    const squares = at(inputs, 'input').sub(at(inputs, 'target')).pow(2);
    return reduction === 'sum' ? squares.sum() : squares.mean();
  },
  Linear: (inputs) => linear(at(inputs, 'x'), at(inputs, 'weight'), inputs['bias']),
  Embedding: (inputs) => embedding(at(inputs, 'ids'), at(inputs, 'weight')),
  LayerNorm: (inputs, { normalizedShape, eps }) =>
    layerNorm(at(inputs, 'x'), normalizedShape, { weight: inputs['weight'], bias: inputs['bias'], eps }),
  RMSNorm: (inputs, { normalizedShape, eps }) =>
    rmsNorm(at(inputs, 'x'), normalizedShape, { weight: inputs['weight'], eps }),
  Conv2d: (inputs, { stride, padding }) =>
    conv2d(at(inputs, 'x'), at(inputs, 'weight'), inputs['bias'], { stride, padding }),
};

/** These are modules of several layers, and are compared in the tests of nn. */
const ELSEWHERE = ['MultiHeadAttention', 'TransformerBlock'];

const { cases } = readGolden<{ cases: readonly GoldenCase[] }>('ops.json');

const decode = (data: readonly JsonNumber[]): number[] => data.map(Number);

function asTensor({ dtype, shape, data }: GoldenInput): Tensor {
  return Tensor.from(decode(data), shape, { dtype, requiresGrad: dtype === 'float32' });
}

function isClose(got: number, want: number, { atol, rtol }: GoldenResult): boolean {
  if (Number.isNaN(want)) return Number.isNaN(got);
  if (!Number.isFinite(want)) return got === want;
  return Math.abs(got - want) <= atol + rtol * Math.abs(want);
}

function expectClose(got: Tensor, want: GoldenResult, what: string): void {
  expect({ what, shape: got.shape }).toEqual({ what, shape: want.shape });
  const wanted = decode(want.data);
  const wrong = wanted.flatMap((expected, index) => {
    const actual = Number(got.data[index]);
    return isClose(actual, expected, want) ? [] : [{ what, index, actual, expected }];
  });
  expect(wrong).toEqual([]);
}

const ours = cases.filter(({ op }) => !ELSEWHERE.includes(op));

test.each(ours.map((golden) => [golden.name, golden] as const))('%s', async (_name, golden) => {
  const operator = OPERATORS[golden.op];
  if (operator === undefined) throw new Error(`no operator for ${golden.op}: add it to OPERATORS`);
  const inputs = Object.fromEntries(Object.entries(golden.inputs).map(([name, input]) => [name, asTensor(input)]));
  const output = operator(inputs, golden.attrs);
  expectClose(output, golden.output, 'output');
  if (golden.grads === undefined || golden.lossWeights === undefined) return;
  const { shape, data } = golden.lossWeights;
  await output
    .mul(Tensor.from(decode(data), shape))
    .sum()
    .backward();
  for (const [name, want] of Object.entries(golden.grads)) {
    const { grad } = at(inputs, name);
    if (grad === undefined) throw new Error(`${name} has no gradient`);
    expectClose(grad, want, `gradient of ${name}`);
  }
});

test('every golden case is compared, here or in the tests of nn', () => {
  expect(ours.length).toBeGreaterThan(200);
  expect(ours.length + cases.filter(({ op }) => ELSEWHERE.includes(op)).length).toBe(cases.length);
});
