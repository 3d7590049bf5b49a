/** State that is on a device is saved and loaded as any other. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadCheckpoint, saveCheckpoint } from '../../../src/checkpoint/checkpoint';
import type { World } from '../../../src/process-group/world';
import { Tensor } from '../../../src/tensor/tensor';
import { withFullParameters } from '../../../src/zero/full-parameters';
import type { ZeroOptions, ZeroPrecision, ZeroStage } from '../../../src/zero/zero-options';
import { runOnDevices } from '../../helpers/host-device';
import { train, wrap } from './device-training';

describe('state that is saved', () => {
  let folder: string;
  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'lockstep-zero-device-'));
  });
  afterEach(() => rm(folder, { recursive: true }));

  type Place = readonly [device: 'cpu' | 'cuda', stage: ZeroStage, ranks: number];
  // numbers of ranks whose averages of the same gradient are that gradient, bit for bit
  const places: readonly (readonly [from: Place, to: Place])[] = [
    [
      ['cuda', 3, 2],
      ['cpu', 1, 4],
    ],
    [
      ['cpu', 2, 4],
      ['cuda', 3, 2],
    ],
    [
      ['cuda', 1, 4],
      ['cuda', 2, 2],
    ],
    [
      ['cuda', 0, 2],
      ['cpu', 3, 1],
    ],
    [
      ['cpu', 1, 1],
      ['cuda', 0, 2],
    ],
  ];

  function run<R>([shardDevice, stage, ranks]: Place, program: (world: World, options: ZeroOptions) => Promise<R>) {
    return runOnDevices(ranks, (world) => program(world, { stage, shardDevice }), { arithmetic: 'float64' });
  }

  describe.each<ZeroPrecision>(['float32', 'bfloat16'])('in %s', (precision) => {
    test.each(places)('checkpoint of %j loads into %j, and training goes on with the same bits', async (from, to) => {
      const [saved] = await run(from, async (world, options) => {
        const wrapped = await wrap(world, { ...options, precision });
        await train(wrapped, [1, 2]);
        await withFullParameters(wrapped.module, () => {
          const { data, dtype } = wrapped.module.module.fc2.weight;
          (data as Uint8Array).set(Tensor.full([4], 0.5).to(dtype).data as Uint8Array, 3);
        });
        await saveCheckpoint(folder, { model: wrapped.module, optimizer: wrapped.optimizer, step: 2 }, world.group);
        const atSave = await wrapped.snapshot();
        await train(wrapped, [3]);
        return { atSave, later: await wrapped.snapshot() };
      });
      const loaded = await run(to, async (world, options) => {
        const wrapped = await wrap(world, { ...options, precision }, 2);
        await train(wrapped, [7]); // what it had before is gone
        await loadCheckpoint(folder, { model: wrapped.module, optimizer: wrapped.optimizer }, world.group);
        const atLoad = await wrapped.snapshot();
        await train(wrapped, [3]);
        return { atSave: atLoad, later: await wrapped.snapshot() };
      });
      for (const rank of loaded) expect(rank).toEqual(saved);
    });

    test('stateDict and loadStateDict go between host and device', async () => {
      await run(['cpu', 2, 2], async (world) => {
        const wraps = [];
        for (const [shardDevice, seed] of [
          ['cuda', 1],
          ['cpu', 2],
          ['cuda', 3],
        ] as const) {
          wraps.push(await wrap(world, { shardDevice, precision }, seed));
        }
        const [first, second, third] = wraps as [(typeof wraps)[0], (typeof wraps)[0], (typeof wraps)[0]];
        await train(first, [1, 2]);
        await train(third, [5]);
        for (const [source, target] of [
          [first, second],
          [second, third],
        ] as const) {
          target.module.loadStateDict(source.module.stateDict());
          target.optimizer.loadStateDict(await source.optimizer.stateDict());
          expect(await target.snapshot()).toEqual(await source.snapshot());
          await train(source, [3]);
          await train(target, [3]);
          expect(await target.snapshot()).toEqual(await source.snapshot());
        }
      });
    });

    test('a state from before the first step leaves only masters, which go on from there', async () => {
      const program = async (world: World, options: ZeroOptions) => {
        const wrapped = await wrap(world, { ...options, precision });
        const fresh = await wrapped.optimizer.stateDict();
        await train(wrapped, [1, 2]);
        wrapped.optimizer.loadStateDict(fresh);
        expect(await wrapped.optimizer.stateDict()).toEqual(fresh);
        await train(wrapped, [3, 4]);
        return wrapped.snapshot();
      };
      expect(await run(['cuda', 2, 2], program)).toEqual(await run(['cpu', 2, 2], program));
    });
  });
});
