import { AdamW } from '../../../src/optim/adam';
import { runWorld } from '../../../src/testing/index';
import { Mlp, batchOf, lossOf } from '../ddp/models';
import { wrap, type Way } from './training';

test('an MLP on 3 ranks gets the bits of DDP at every stage', async () => {
  const train = (way: Way, seed = 0): Promise<unknown[]> =>
    runWorld(
      3,
      async (world) => {
        const { bits, forward, optimizer } = await wrap(
          way,
          new Mlp(world.rank),
          (mlp) =>
            new AdamW(
              [
                { params: [mlp.fc1.weight, mlp.fc2.weight], weightDecay: 0.1 },
                { params: mlp.parameters().filter(({ shape }) => shape.length === 1), weightDecay: 0, lr: 0.02 },
              ],
              { lr: 0.01 },
            ),
          world,
        );
        const seen: number[] = [];
        for (let step = 0; step < 4; step++) {
          const loss = await lossOf({ forward } as never, batchOf(10 * step + world.rank, 5));
          seen.push(loss.item());
          await loss.backward();
          seen.push(await optimizer.clipGradNorm(0.5));
          await optimizer.step();
          optimizer.zeroGrad();
        }
        return { seen, bits: await bits() };
      },
      { portable: true, schedule: 'random', seed },
    );
  const expected = await train('ddp');
  for (const stage of [0, 1, 2, 3] as const) expect(await train(stage, stage)).toEqual(expected);
});
