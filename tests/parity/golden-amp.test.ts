/** Loss scales against the trajectories of PyTorch's and DeepSpeed's rules. */
import { type DeepSpeedScaleOptions, LossScale, type TorchScaleOptions } from '../../src/optim/loss-scale';
import { readGolden } from '../helpers/golden';

interface AmpFile {
  readonly cases: readonly {
    readonly name: string;
    readonly kind: 'torch' | 'deepspeed';
    readonly options: Omit<TorchScaleOptions, 'rule'> & Omit<DeepSpeedScaleOptions, 'rule'>;
    /** One character a step, 1 for an overflow. */
    readonly overflow: string;
    /** The scale after each step, run-length encoded. */
    readonly scaleAfter: readonly (readonly [number, number])[];
  }[];
}

const { cases } = readGolden<AmpFile>('amp.json');

describe('the loss scale follows', () => {
  test.each(cases.map((run) => [run.name, run] as const))('%s', (_name, { kind, options, overflow, scaleAfter }) => {
    const scale = new LossScale({ rule: kind, ...options }, 'test');
    const scales = [...overflow].map((flag) => {
      scale.update(flag === '1');
      return scale.scale;
    });
    expect(scales).toEqual(scaleAfter.flatMap(([value, steps]) => new Array<number>(steps).fill(value)));
  });

  test.each(cases.map((run) => [run.name, run] as const))('%s, saved and loaded at every step', (_name, run) => {
    const make = () => new LossScale({ rule: run.kind, ...run.options }, 'test');
    const steps = [...run.overflow].slice(0, 200).map((flag) => flag === '1');
    const whole = make();
    let resumed = make();
    for (const hasOverflowed of steps) {
      whole.update(hasOverflowed);
      const state: unknown = JSON.parse(JSON.stringify(resumed.stateDict()));
      resumed = make();
      resumed.loadStateDict(state, 'test');
      resumed.update(hasOverflowed);
      expect(resumed.stateDict()).toEqual(whole.stateDict());
    }
  });
});
