/** Whole trainings, in one process, against those that torch did in float64. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { Embedding } from '../../src/nn/embedding';
import { Linear } from '../../src/nn/linear';
import { crossEntropy } from '../../src/nn/losses';
import { Module } from '../../src/nn/module';
import { LayerNorm } from '../../src/nn/normalization';
import { TransformerBlock } from '../../src/nn/transformer-block';
import { AdamW, type AdamOptions } from '../../src/optim/adam';
import { SGD, type SGDOptions } from '../../src/optim/sgd';
import { Tensor } from '../../src/tensor/tensor';
import { readGolden } from '../helpers/golden';

type ByName<T> = Readonly<Record<string, T>>;

interface Numbers {
  readonly shape: readonly number[];
  readonly data: readonly number[];
}

type OptimizerOptions = SGDOptions & AdamOptions & { readonly name: 'SGD' | 'AdamW' };

interface Summary {
  readonly sum: number;
  readonly norm2: number;
  readonly probe: number;
  readonly indices: readonly number[];
  readonly values: readonly number[];
}

interface GptRun {
  readonly tiedHead: boolean;
  readonly lossesFloat64: readonly number[];
  readonly gradNormsFloat64: readonly number[];
  readonly firstGradNorms: ByName<number>;
  readonly gradientIsRoundingNoise: readonly string[];
  readonly final: ByName<Summary>;
}

interface TrainingFile {
  readonly mlp: {
    readonly config: {
      readonly layers: readonly [number, number, number];
      readonly activation: 'tanh' | 'relu';
      readonly firstRow: number;
      readonly globalBatch: number;
      readonly steps: number;
    };
    readonly optimizers: ByName<OptimizerOptions>;
    readonly initial: ByName<Numbers>;
  };
  readonly mlpReferenceFloat64: ByName<{
    readonly losses: readonly number[];
    readonly final: ByName<readonly number[]>;
    readonly firstGrad?: ByName<readonly number[]>;
  }>;
  readonly mlpRuns: ByName<{ readonly optimizer: string; readonly world: number; readonly microBatches: number }>;
  readonly gpt: {
    readonly config: ByName<number> & { readonly gelu: 'exact' | 'tanh' };
    readonly optimizer: OptimizerOptions;
    readonly tokens: readonly (readonly (readonly number[])[])[];
    readonly initial: ByName<Numbers>;
  };
  readonly gptRuns: ByName<GptRun>;
}

const golden = readGolden<TrainingFile>('ddp.json');

const digits = gunzipSync(readFileSync(join(__dirname, '../../data/digits.csv.gz')))
  .toString('utf8')
  .trim()
  .split('\n')
  .map((line) => line.split(',').map(Number));

/** `fc1Weight` to `fc1.weight`, `blocks.0.qWeight` to `blocks.0.attn.q.weight`. */
const nameOf = (key: string): string =>
  key.replace(/(Weight|Bias)$/, (kind) => `.${kind.toLowerCase()}`).replace(/\.(q|k|v|proj)\./, '.attn.$1.');

const stateOf = (initial: ByName<Numbers>) =>
  Object.fromEntries(
    Object.entries(initial).map(([key, { data, shape }]) => [nameOf(key), Tensor.from(data, shape)] as const),
  );

function makeOptimizer(module: Module, { name, ...options }: OptimizerOptions) {
  return name === 'SGD' ? new SGD(module.parameters(), options) : new AdamW(module.parameters(), options);
}

function expectClose(got: ArrayLike<number | bigint>, want: readonly number[], atol: number, rtol: number): void {
  expect(got).toHaveLength(want.length);
  const wrong = want.flatMap((expected, i) => {
    const actual = Number(got[i]);
    return Math.abs(actual - expected) <= atol + rtol * Math.abs(expected) ? [] : [{ i, actual, expected }];
  });
  expect(wrong).toEqual([]);
}

class Mlp extends Module {
  readonly #activation: 'tanh' | 'relu';
  readonly fc1: Linear;
  readonly fc2: Linear;

  constructor([input, hidden, output]: readonly [number, number, number], activation: 'tanh' | 'relu') {
    super();
    this.#activation = activation;
    this.fc1 = new Linear(input, hidden);
    this.fc2 = new Linear(hidden, output);
  }

  async forward(x: Tensor): Promise<Tensor> {
    const hidden = await this.fc1.forward(x);
    return this.fc2.forward(hidden[this.#activation]());
  }
}

describe('an MLP on the digits', () => {
  const { config, initial, optimizers } = golden.mlp;
  const singles = Object.entries(golden.mlpRuns).filter(([, run]) => run.world === 1);

  test.each(singles)('%s ends where torch does', async (_name, { optimizer: kind, microBatches }) => {
    const reference = golden.mlpReferenceFloat64[kind];
    const options = optimizers[kind];
    if (reference === undefined || options === undefined) throw new Error(`no optimizer ${kind}`);
    const model = new Mlp(config.layers, config.activation);
    model.loadStateDict(stateOf(initial));
    const optimizer = makeOptimizer(model, options);
    const microBatch = config.globalBatch / microBatches;
    const losses: number[] = [];
    for (let step = 0; step < config.steps; step++) {
      optimizer.zeroGrad();
      let loss = 0;
      for (let micro = 0; micro < microBatches; micro++) {
        const first = config.firstRow + step * config.globalBatch + micro * microBatch;
        const rows = digits.slice(first, first + microBatch);
        const pixels = Tensor.from(rows.map((row) => row.slice(0, -1))).div(16);
        const labels = Tensor.from(
          rows.map((row) => row.at(-1) ?? NaN),
          [microBatch],
          { dtype: 'int32' },
        );
        const part = crossEntropy(await model.forward(pixels), labels).div(microBatches);
        await part.backward();
        loss += part.item();
      }
      losses.push(loss);
      if (step === 0) {
        const grads = new Map(model.namedParameters().map(([name, { grad }]) => [name, grad?.data ?? []]));
        for (const [key, want] of Object.entries(reference.firstGrad ?? {})) {
          expectClose(grads.get(nameOf(key)) ?? [], want, 5e-6, 0);
        }
      }
      await optimizer.step();
    }
    expectClose(losses, reference.losses, 0, 1e-5);
    const final = model.stateDict();
    for (const [key, want] of Object.entries(reference.final))
      expectClose(final[nameOf(key)]?.data ?? [], want, 5e-6, 0);
  });
});

class Gpt extends Module {
  readonly tokenEmbedding: Embedding;
  readonly positionEmbedding: Embedding;
  readonly blocks: readonly TransformerBlock[];
  readonly norm: LayerNorm;
  readonly head: Linear;

  constructor({ config }: TrainingFile['gpt'], isTied: boolean) {
    super();
    const { vocab = 0, layers = 0, dim = 0, heads = 0, context = 0, mlpHidden = 0 } = config;
    this.tokenEmbedding = new Embedding(vocab, dim);
    this.positionEmbedding = new Embedding(context, dim);
    this.blocks = Array.from({ length: layers }, () => {
      return new TransformerBlock(dim, heads, { causal: true, mlpRatio: mlpHidden / dim, gelu: config.gelu });
    });
    this.norm = new LayerNorm(dim);
    this.head = new Linear(dim, vocab, { bias: false });
    if (isTied) this.head.weight = this.tokenEmbedding.weight;
  }

  async forward(ids: Tensor): Promise<Tensor> {
    const positions = Tensor.from(Int32Array.from({ length: ids.shape[1] ?? 0 }, (_unused, i) => i));
    const tokens = await this.tokenEmbedding.forward(ids);
    let x = tokens.add(await this.positionEmbedding.forward(positions));
    for (const block of this.blocks) x = await block.forward(x);
    return this.head.forward(await this.norm.forward(x));
  }
}

describe('a small GPT', () => {
  const { initial, optimizer: options, tokens } = golden.gpt;

  test.each(Object.entries(golden.gptRuns))('%s ends where torch does', async (_name, run) => {
    const model = new Gpt(golden.gpt, run.tiedHead);
    const { headWeight, ...others } = initial;
    model.loadStateDict(stateOf(run.tiedHead || headWeight === undefined ? others : initial));
    const optimizer = makeOptimizer(model, options);
    const losses: number[] = [];
    const norms: number[] = [];
    for (const [step, batch] of tokens.entries()) {
      const inputs = Tensor.from(
        batch.map((row) => row.slice(0, -1)),
        undefined,
        { dtype: 'int32' },
      );
      const targets = Tensor.from(
        batch.flatMap((row) => row.slice(1)),
        undefined,
        { dtype: 'int32' },
      );
      const logits = await model.forward(inputs);
      const loss = crossEntropy(logits.reshape([targets.size, -1]), targets);
      optimizer.zeroGrad();
      await loss.backward();
      losses.push(loss.item());
      if (step === 0) {
        for (const [key, want] of Object.entries(run.firstGradNorms)) {
          const parameter = Object.fromEntries(model.namedParameters())[nameOf(key)];
          const norm = Math.hypot(...Array.from(parameter?.grad?.data ?? [NaN], Number));
          expectClose([norm], [want], 1e-6, 2e-5);
        }
      }
      norms.push(await optimizer.clipGradNorm(Infinity));
      await optimizer.step();
    }
    expectClose(losses, run.lossesFloat64, 0, 1e-5);
    expectClose(norms, run.gradNormsFloat64, 0, 2e-5);
    const final = model.stateDict();
    for (const [key, want] of Object.entries(run.final)) {
      const values = Array.from(final[nameOf(key)]?.data ?? [], Number);
      const sumOf = (weigh: (value: number, i: number) => number) => values.reduce((sum, v, i) => sum + weigh(v, i), 0);
      expectClose(
        want.indices.map((i) => values[i] ?? NaN),
        want.values,
        5e-5,
        0,
      );
      const sums = [sumOf((v) => v), sumOf((v, i) => v * Math.cos(i)), Math.sqrt(sumOf((v) => v * v))];
      expectClose(sums, [want.sum, want.probe, want.norm2], 5e-5 * Math.sqrt(values.length), 0);
    }
  });
});
