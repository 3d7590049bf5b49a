import { Parameter } from '../../../src/nn/parameter';
import { CosineAnnealingLR } from '../../../src/optim/cosine-annealing-lr';
import { CosineWithWarmup } from '../../../src/optim/cosine-with-warmup';
import type { Scheduler } from '../../../src/optim/scheduler';
import { SGD } from '../../../src/optim/sgd';
import { StepLR } from '../../../src/optim/step-lr';
import { Tensor } from '../../../src/tensor/tensor';

const optimizerOf = (...lrs: number[]) =>
  new SGD(lrs.map((lr) => ({ params: [new Parameter(Tensor.zeros([1]))], lr })));

const makers: [string, (optimizer: SGD) => Scheduler][] = [
  ['StepLR', (optimizer) => new StepLR(optimizer, { stepSize: 2, gamma: 0.5 })],
  [
    'CosineWithWarmup',
    (optimizer) => new CosineWithWarmup(optimizer, { warmupSteps: 3, totalSteps: 9, minRatio: 0.1 }),
  ],
  ['CosineAnnealingLR', (optimizer) => new CosineAnnealingLR(optimizer, { tMax: 7 })],
];

describe('schedulers', () => {
  test.each(makers)('%s goes on from a saved step, in an optimizer made anew', (_name, make) => {
    const whole = make(optimizerOf(0.1, 1));
    for (let step = 0; step < 4; step++) whole.step();
    const resumed = make(optimizerOf(7, 7));
    resumed.loadStateDict(JSON.parse(JSON.stringify(whole.stateDict())));
    for (let step = 4; step < 12; step++) {
      expect(resumed.lrs).toEqual(whole.lrs);
      whole.step();
      resumed.step();
    }
  });

  test.each(makers)('%s saved beside its optimizer and made over it again keeps the base rates', (_name, make) => {
    const optimizer = optimizerOf(0.1);
    const scheduler = make(optimizer);
    scheduler.step();
    const [state, optimizerState] = [scheduler.stateDict(), optimizer.stateDict()];
    scheduler.step();
    const other = optimizerOf(0.1);
    other.loadStateDict(optimizerState); // its lr is now that of step 1, not the base rate
    const resumed = make(other);
    resumed.loadStateDict(state);
    resumed.step();
    expect(resumed.lrs).toEqual(scheduler.lrs);
  });

  test('the warm-up starts from 0 and the end is kept', () => {
    const scheduler = new CosineWithWarmup(optimizerOf(1), { warmupSteps: 2, totalSteps: 4, minRatio: 0.5 });
    const rates = Array.from({ length: 7 }, () => {
      const [lr] = scheduler.lrs;
      scheduler.step();
      return lr;
    });
    expect(rates).toEqual([0, 0.5, 1, 0.75, 0.5, 0.5, 0.5]);
  });

  test('a group added later keeps its rate', () => {
    const optimizer = optimizerOf(1);
    const scheduler = new StepLR(optimizer, { stepSize: 1 });
    optimizer.addParamGroup({ params: [new Parameter(Tensor.zeros([1]))], lr: 3 });
    scheduler.step();
    expect(scheduler.lrs).toEqual([0.1, 3]);
  });

  test.each([
    [() => new StepLR(optimizerOf(1), { stepSize: 0 }), 'new StepLR: options.stepSize'],
    [() => new StepLR(optimizerOf(1), { step: 1 } as never), "unknown key 'step'"],
    [() => new CosineWithWarmup(optimizerOf(1), {} as never), 'options.totalSteps'],
    [() => new CosineWithWarmup(optimizerOf(1), { totalSteps: 5, minRatio: 2 }), 'options.minRatio'],
    [
      () => new CosineWithWarmup(optimizerOf(1), { warmupSteps: 6, totalSteps: 5 }),
      'warmupSteps (6) is above totalSteps (5), which counts the warm-up too',
    ],
    [() => new CosineAnnealingLR(optimizerOf(1), { tMax: 1.5 }), 'options.tMax'],
    [
      () => new StepLR(optimizerOf(1), { stepSize: 1 }).loadStateDict({ step: 1, baseLrs: [1, 2] }),
      'StepLR.loadStateDict: the state has learning rates of 2 groups, but the optimizer has 1',
    ],
    [() => new StepLR(optimizerOf(1), { stepSize: 1 }).loadStateDict({ step: -1, baseLrs: [1] }), 'options.step'],
  ])('a wrong argument is named (%#)', (make, message) => {
    expect(make).toThrow(message);
  });
});
