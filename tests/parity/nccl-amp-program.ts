/** Training in 16 bits with a scale that overflows at first, and once again on one rank alone. */
import { autocast } from '../../src/amp/autocast';
import { GradScaler } from '../../src/amp/grad-scaler';
import type { HalfDType } from '../../src/core/dtype';
import { DistributedDataParallel } from '../../src/ddp/ddp';
import { AdamW } from '../../src/optim/adam';
import type { World } from '../../src/process-group/world';
import type { Tensor } from '../../src/tensor/tensor';
import { withFullParameters } from '../../src/zero/full-parameters';
import { zeroWrap } from '../../src/zero/zero';
import type { ZeroOptions } from '../../src/zero/zero-options';
import { Mlp, batchOf, flat, lossOf } from '../unit/ddp/models';

export interface AmpArgs {
  /** With 'ddp' by hand: autocast and a GradScaler; else zeroWrap does both. */
  readonly way: 'ddp' | ZeroOptions;
  /** Of 'ddp': computed, and with `isStored` stored, in. */
  readonly dtype?: HalfDType;
  readonly isStored?: boolean;
  readonly steps: number;
}

export interface AmpRun {
  /** By step, whether it was made. */
  readonly made: readonly boolean[];
  readonly scales: readonly (number | undefined)[];
  readonly parameters: readonly number[];
}

/** Far too much for float16. */
export const INIT_SCALE = 2 ** 22;
/** The last rank's loss is infinite in this step. */
export const BROKEN_STEP = 12;
const LEARNING_RATE = 0.01;

interface Loop {
  readonly loss: (batch: ReturnType<typeof batchOf>) => Promise<Tensor>;
  /** From a loss to the end of the step. @returns whether it was made */
  readonly learn: (loss: Tensor) => Promise<boolean>;
  readonly scale: () => number | undefined;
  readonly parameters: () => Promise<number[]>;
}

export async function trainInHalf(world: World, args: AmpArgs): Promise<AmpRun> {
  const loop = args.way === 'ddp' ? withDdp(world, args) : await withZero(world, args.way);
  const made: boolean[] = [];
  const scales: (number | undefined)[] = [];
  for (let step = 0; step < args.steps; step++) {
    const loss = await loop.loss(batchOf(10 * step + world.rank, 4));
    const isBroken = step === BROKEN_STEP && world.rank === world.worldSize - 1;
    made.push(await loop.learn(isBroken ? loss.mul(Infinity) : loss));
    scales.push(loop.scale());
  }
  return { made, scales, parameters: await loop.parameters() };
}

function withDdp(world: World, { dtype = 'float16', isStored = false }: AmpArgs): Loop {
  const model = new Mlp(1 + world.rank);
  if (isStored) model.to(dtype);
  const ddp = new DistributedDataParallel(model, world.group);
  const optimizer = new AdamW(ddp.parameters(), { lr: LEARNING_RATE });
  const scaler = new GradScaler({ initScale: INIT_SCALE });
  return {
    loss: (batch) => autocast({ dtype }, () => lossOf(ddp, batch)),
    learn: async (loss) => {
      await scaler.scale(loss).backward();
      await ddp.syncGradients();
      const isMade = await scaler.step(optimizer);
      await scaler.update();
      optimizer.zeroGrad();
      return isMade;
    },
    scale: () => scaler.getScale(),
    parameters: async () => flat(model.parameters().map((parameter) => parameter.to('float32'))),
  };
}

async function withZero(world: World, options: ZeroOptions): Promise<Loop> {
  const model = new Mlp(1 + world.rank);
  const made = new AdamW(model.parameters(), { lr: LEARNING_RATE });
  const { module, optimizer } = await zeroWrap(model, made, world.group, options);
  return {
    loss: (batch) => lossOf(module, batch),
    learn: async (loss) => {
      await loss.backward();
      await optimizer.step();
      optimizer.zeroGrad();
      return !optimizer.isStepSkipped;
    },
    scale: () => optimizer.lossScale,
    parameters: () =>
      withFullParameters(module, () => flat(model.parameters().map((parameter) => parameter.to('float32')))),
  };
}
