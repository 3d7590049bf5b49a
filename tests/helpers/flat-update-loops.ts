/** What a fused kernel computes, element by element. */
import { dtypeOf, isHalfDType, type HostBuffer } from '../../src/core/dtype';
import { InvalidArgumentError } from '../../src/core/errors';
import type { AdamUpdate, FlatUpdate, SGDUpdate } from '../../src/core/flat-update';
import { floatsOf } from '../../src/tensor/operators/floats';
import { storeFloats } from '../../src/optim/float-buffer';
import { Storage } from '../../src/tensor/storage';

/** 'float32' rounds after every operation; 'float64' only what is stored, in the order of the optimizers' own loops. */
export type Arithmetic = 'float32' | 'float64';

export interface HostUpdateTarget {
  readonly parameter: HostBuffer;
  readonly gradient: HostBuffer;
  readonly master?: HostBuffer | undefined;
  readonly state: Readonly<Record<string, HostBuffer>>;
}

interface Run {
  readonly values: Float32Array;
  readonly slopes: Float32Array;
  readonly state: Readonly<Record<string, Float32Array>>;
}

/** @throws InvalidArgumentError for dtypes, lengths or state that do not fit */
export function runFlatUpdate(update: FlatUpdate, target: HostUpdateTarget, arithmetic: Arithmetic): void {
  const { parameter, gradient, master, state } = target;
  const isHalf = isHalfDType(dtypeOf(parameter));
  if (isHalf !== (master !== undefined)) {
    throw new InvalidArgumentError('a 16-bit parameter comes with a master, and no other one does');
  }
  const float32: Readonly<Record<string, HostBuffer>> = {
    ...state,
    ...(master === undefined ? { parameter } : { master }),
  };
  for (const [name, buffer] of Object.entries({ ...float32, gradient })) {
    if (buffer.length !== parameter.length) throw new InvalidArgumentError(`${name} has ${buffer.length} elements`);
    if (name in float32 && dtypeOf(buffer) !== 'float32') throw new InvalidArgumentError(`${name}: ${dtypeOf(buffer)}`);
  }
  const names = Object.keys(state).sort().join();
  const wanted = update.kind === 'adam' ? 'expAvg,expAvgSq' : update.momentum === 0 ? '' : 'momentumBuffer';
  if (names !== wanted) throw new InvalidArgumentError(`state of ${update.kind}: ${names}`);
  const values = (master ?? parameter) as Float32Array;
  const slopes = (floatsOf(Storage.of(gradient)) as Float32Array).map((slope) => slope * update.gradientScale);
  const run = { values, slopes, state: state as Readonly<Record<string, Float32Array>> };
  if (update.kind === 'adam') adam(update, run, arithmetic);
  else sgd(update, run, arithmetic);
  if (isHalf) storeFloats(values, Storage.of(parameter));
}

const exact = (value: number): number => value;

function adam(update: AdamUpdate, { values, slopes, state }: Run, arithmetic: Arithmetic): void {
  const r = arithmetic === 'float32' ? Math.fround : exact;
  const [beta1, beta2, eps] = [r(update.beta1), r(update.beta2), r(update.eps)];
  const [taken1, taken2] = [r(1 - update.beta1), r(1 - update.beta2)]; // [Note: numbers near one]
  const [penalty, stepSize, rootScale] = [r(update.penalty), r(update.stepSize), r(update.rootScale)];
  const lost = r(1 - update.keep);
  const { expAvg, expAvgSq } = state as { readonly expAvg: Float32Array; readonly expAvgSq: Float32Array };
  for (let i = 0; i < values.length; i++) {
    const value = values[i] as number;
    const slope = r((slopes[i] as number) + r(penalty * value));
    const m = r(r(beta1 * (expAvg[i] as number)) + r(taken1 * slope));
    const v = r(r(beta2 * (expAvgSq[i] as number)) + r(r(taken2 * slope) * slope));
    expAvg[i] = m;
    expAvgSq[i] = v;
    const kept = arithmetic === 'float32' ? r(value - r(lost * value)) : update.keep * value;
    values[i] = kept - r(r(stepSize * m) / r(r(r(Math.sqrt(v)) * rootScale) + eps));
  }
}

function sgd(update: SGDUpdate, { values, slopes, state }: Run, arithmetic: Arithmetic): void {
  const r = arithmetic === 'float32' ? Math.fround : exact;
  const [lr, momentum, taken, weightDecay] = [r(update.lr), r(update.momentum), r(update.taken), r(update.weightDecay)];
  const buffer = state['momentumBuffer'];
  for (let i = 0; i < values.length; i++) {
    const value = values[i] as number;
    let direction = r((slopes[i] as number) + r(weightDecay * value));
    if (buffer !== undefined) {
      const velocity = r(r(momentum * (buffer[i] as number)) + r(taken * direction));
      buffer[i] = velocity;
      direction = update.nesterov ? r(direction + r(momentum * velocity)) : velocity;
    }
    values[i] = value - r(lr * direction);
  }
}
