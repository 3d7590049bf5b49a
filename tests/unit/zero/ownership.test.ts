/** What zeroWrap is given belongs to the wrapper, which says so, until detach() gives it back. */
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { saveCheckpoint } from '../../../src/checkpoint/checkpoint';
import { memory } from '../../../src/core/memory-account';
import { AdamW } from '../../../src/optim/adam';
import { runWorld } from '../../../src/testing/run-world';
import type { ZeroStage } from '../../../src/zero/zero-options';
import { zeroWrap } from '../../../src/zero/zero';
import { Mlp, batchOf, lossOf } from '../ddp/models';
import { bitsOf } from './training';

const STAGES: readonly ZeroStage[] = [0, 1, 2, 3];

describe.each(STAGES)('stage %i', (stage) => {
  test('the optimizer that was passed in refuses every call that would lose state', async () => {
    await runWorld(2, async ({ group, rank }) => {
      const model = new Mlp();
      const inner = new AdamW(model.parameters(), { lr: 0.1 });
      const saved = inner.stateDict();
      const { module, optimizer } = await zeroWrap(model, inner, group, { stage });
      await (await lossOf(module, batchOf(rank, 2))).backward();
      const message =
        /optimizer\.\w+\(\): zeroWrap has taken this optimizer over.*Use the optimizer that zeroWrap returned/;
      expect(() => inner.stateDict()).toThrow(message);
      expect(() => inner.loadStateDict(saved)).toThrow(message);
      expect(() => inner.stateOf(model.fc1.weight)).toThrow(message);
      await expect(inner.step()).rejects.toThrow(message);
      await expect(inner.clipGradNorm(1)).rejects.toThrow(message);
      await expect(inner.unscaleGradients(1)).rejects.toThrow(message);
      (inner.paramGroups[0] as { lr: number }).lr = 0; // settings are shared
      const before = await optimizer.stateDict();
      await optimizer.step();
      expect(before.paramGroups[0]).toMatchObject({ lr: 0 });
    });
  });

  test('after detach() nothing of the wrapper is left in memory but the optimizer state', async () => {
    await runWorld(2, async ({ group }) => {
      const before = memory.stats().live;
      const model = new Mlp();
      const alone = memory.stats().live.parameters;
      const { module } = await zeroWrap(model, new AdamW(model.parameters()), group, { stage });
      await (await lossOf(module, batchOf(0, 2))).backward();
      await module.detach();
      const { parameters, gradients, communication } = memory.stats().live;
      expect(parameters - alone).toBeLessThan(32); // padding
      expect([gradients, communication]).toEqual([before.gradients, before.communication]);
    });
  });

  test('after detach() it works again, and the one that zeroWrap returned says that it does not', async () => {
    await runWorld(2, async ({ group, rank }) => {
      const model = new Mlp();
      const inner = new AdamW(model.parameters(), { lr: 0.1 });
      const { module, optimizer } = await zeroWrap(model, inner, group, { stage });
      await (await lossOf(module, batchOf(rank, 2))).backward();
      await optimizer.step();
      await module.detach();
      const state = await optimizer.stateDict();
      const message = /module\.detach\(\) has let go of the parameters/;
      await (await lossOf(model, batchOf(1, 2))).backward();
      await expect(optimizer.step()).rejects.toThrow(message);
      await expect(optimizer.clipGradNorm(1)).rejects.toThrow(message);
      expect(() => optimizer.zeroGrad()).toThrow(message);
      expect(() => optimizer.loadStateDict(state)).toThrow(message);
      const before = bitsOf(model.parameters());
      inner.loadStateDict(state);
      await inner.step();
      expect(bitsOf(model.parameters())).not.toEqual(before);
      inner.zeroGrad();
      await zeroWrap(model, new AdamW(model.parameters()), group, { stage });
      await module.detach(); // once more, which is too late
      expect(model.fc1.weight.gradientGate).toBeDefined();
    });
  });
});

test('saveCheckpoint refuses the optimizer that was passed in, on every rank, and writes nothing', async () => {
  const directory = await mkdtemp(join(tmpdir(), 'lockstep-'));
  try {
    await runWorld(2, async ({ group }) => {
      const model = new Mlp();
      const inner = new AdamW(model.parameters());
      const { module, optimizer } = await zeroWrap(model, inner, group);
      await expect(saveCheckpoint(directory, { model: module, optimizer: inner }, group)).rejects.toThrow(
        /state\.optimizer: zeroWrap has taken this optimizer over/,
      );
      expect(await readdir(directory)).toEqual([]);
      await saveCheckpoint(directory, { model: module, optimizer }, group);
    });
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
});
