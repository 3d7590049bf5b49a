/** An error of a collective deep inside names the line of the program that it belongs to. */
import { DistributedDataParallel } from '../../../src/ddp/ddp';
import { Linear } from '../../../src/nn/linear';
import { Sequential } from '../../../src/nn/sequential';
import { SGD } from '../../../src/optim/sgd';
import { Tensor } from '../../../src/tensor/tensor';
import { runWorld } from '../../../src/testing/run-world';
import { withFullParameters } from '../../../src/zero/full-parameters';
import { zeroWrap } from '../../../src/zero/zero';

const CALLS = ['forward', 'backward', 'clipGradNorm', 'step', 'full'] as const;
type Call = (typeof CALLS)[number] | 'none';

/** What is said where rank 1 leaves before `left`. */
async function messageWhereLeft(way: 'ddp' | 0 | 1 | 2 | 3, left: Call): Promise<string> {
  const run = runWorld(2, async ({ group, rank }) => {
    const isHere = (call: Call): boolean => rank === 0 || call !== left;
    const model = new Sequential(new Linear(2, 2), new Linear(2, 2));
    const made = new SGD(model.parameters());
    const { module, optimizer } =
      way === 'ddp'
        ? { module: new DistributedDataParallel(model, group), optimizer: made }
        : await zeroWrap(model, made, group, { stage: way, mergeThreshold: 0 });
    if (way === 'ddp') await module.forward(Tensor.ones([1, 2]));
    if (!isHere('forward')) return;
    const loss = (await module.forward(Tensor.ones([1, 2]))).sum();
    if (isHere('backward')) await loss.backward();
    else return;
    if (isHere('clipGradNorm')) await optimizer.clipGradNorm(1);
    else return;
    if (isHere('step')) await optimizer.step();
    else return;
    if (isHere('full')) await withFullParameters(module, () => undefined);
  });
  return run.then(
    () => 'no error',
    (error: Error) => error.message,
  );
}

test.each(['ddp', 0, 1, 2, 3] as const)(
  '%s: wherever a rank leaves, the lines are those of the program',
  async (way) => {
    let errors = 0;
    for (const call of CALLS) {
      const message = await messageWhereLeft(way, call);
      if (message === 'no error') continue;
      errors++;
      const lines = message.split('\n').filter((line) => line.includes('rank 0 waits in') && line.includes(', at '));
      expect(lines.length).toBeGreaterThan(0);
      for (const line of lines) expect(line).toMatch(/, at tests.unit.zero.call-lines\.test\.ts:\d+:\d+/);
    }
    expect(errors).toBeGreaterThan(1);
    expect(await messageWhereLeft(way, 'none')).toBe('no error');
  },
);
