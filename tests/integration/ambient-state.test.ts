/**
 * Ranks of a mock world interleave at every await; nothing that one of them has set may be seen by another.
 * See [Note: ambient state].
 */
import {
  DistributedDataParallel,
  Linear,
  Tensor,
  isGradEnabled,
  manualSeed,
  memory,
  noGrad,
  withMemoryCategory,
  type World,
} from '../../src/index';
import { runWorld } from '../../src/testing/index';

/** Give every other rank a turn, by a collective and by bare awaits. */
async function letOthersRun(world: World): Promise<void> {
  await world.barrier();
  for (let turn = 0; turn < 5; turn++) await Promise.resolve();
}

const schedules = [undefined, 1, 2, 3].map((seed) => (seed === undefined ? {} : { schedule: 'random' as const, seed }));

describe.each(schedules)('under %o', (options) => {
  test('gradient mode: ranks in opposite modes keep theirs over every await', async () => {
    const recorded = await runWorld(
      4,
      async (world) => {
        const isOn: boolean[] = [];
        const look = async (): Promise<void> => {
          for (let turn = 0; turn < 4; turn++) {
            isOn.push(isGradEnabled(), Tensor.ones([1], { requiresGrad: true }).mul(2).requiresGrad);
            await letOthersRun(world);
          }
        };
        await (world.rank % 2 === 0 ? noGrad(look) : look());
        isOn.push(isGradEnabled());
        return isOn;
      },
      options,
    );
    recorded.forEach((isOn, rank) => {
      expect(isOn).toEqual([...Array.from({ length: 8 }, () => rank % 2 === 1), true]);
    });
  });

  test('memory: each rank counts its own tensors, under its own category', async () => {
    const peaks = await runWorld(
      3,
      async (world) => {
        const category = world.rank === 0 ? 'communication' : 'optimizer';
        await withMemoryCategory(category, async () => {
          await letOthersRun(world);
          const tensor = Tensor.zeros([100 * (world.rank + 1)]);
          await letOthersRun(world);
          tensor.dispose();
        });
        const { peak, live } = memory.stats();
        return {
          communication: peak.communication,
          optimizer: peak.optimizer,
          live: live.communication + live.optimizer,
        };
      },
      options,
    );
    expect(peaks).toEqual([
      { communication: 400, optimizer: 0, live: 0 },
      { communication: 0, optimizer: 800, live: 0 },
      { communication: 0, optimizer: 1200, live: 0 },
    ]);
  });

  test('random numbers: what one rank draws does not depend on when the others draw', async () => {
    const draw = async (world: World): Promise<unknown> => {
      manualSeed(world.rank);
      const values = [];
      for (let turn = 0; turn < 3; turn++) {
        values.push(Tensor.randn([2]).toArray());
        await letOthersRun(world);
      }
      return values;
    };
    expect(await runWorld(3, draw, options)).toEqual(await runWorld(3, draw));
  });

  test('the default generators of ranks differ', async () => {
    const [a, b] = await runWorld(2, () => Tensor.randn([4]).toArray(), options);
    expect(a).not.toEqual(b);
  });

  test('noSync: a rank inside does not keep the others from averaging', async () => {
    const results = await runWorld(
      4,
      async (world) => {
        const lower = await world.newGroup([0, 1]);
        const upper = await world.newGroup([2, 3]);
        const group = world.rank < 2 ? lower : upper;
        const ddp = new DistributedDataParallel(new Linear(1, 1, { bias: false }), group);
        const backward = async (): Promise<void> => {
          const y = await ddp.forward(Tensor.from([[world.rank]]));
          await letOthersRun(world);
          await y.sum().backward();
        };
        if (world.rank < 2) await ddp.noSync(backward);
        else {
          await backward();
          await ddp.syncGradients();
        }
        await letOthersRun(world);
        const gradient = ddp.module.weight.grad?.item();
        await lower.close();
        await upper.close();
        return gradient;
      },
      options,
    );
    expect(results).toEqual([0, 1, 2.5, 2.5]);
  });
});
