/** Each line marked below is a mistake that TypeScript finds before the program runs. */
import {
  AdamW,
  DistributedDataParallel,
  GradSyncStrategy,
  Linear,
  MockBackend,
  Module,
  ProcessGroup,
  ReduceOp,
  Tensor,
  allReduceSum,
  type DType,
} from '../../src/index';
import { runWorld } from '../../src/testing/index';

const group = ProcessGroup.mock();
const tensor = Tensor.zeros([2]);
const backend = MockBackend.single();

// @ts-expect-error there is no such reduce op
void group.allReduce(tensor, 'Mean');
// @ts-expect-error a plain Uint16Array does not say which 16-bit format it holds... and number[] is no buffer at all
void backend.allReduce([1, 2], ReduceOp.Sum);
// @ts-expect-error the group comes last
void allReduceSum(group, tensor);
// @ts-expect-error there is no such dtype
const wrong: DType = 'float8';
// @ts-expect-error an option that does not exist
void new DistributedDataParallel(new Linear(1, 1), group, { bucketCapMB: 25 });
// @ts-expect-error a strategy that does not exist
void new DistributedDataParallel(new Linear(1, 1), group, { gradSync: 'Sometimes' });
// @ts-expect-error an optimizer takes parameters, not a module
void new AdamW(new Linear(1, 1), { lr: 1e-3 });
// @ts-expect-error ReduceOp is a constant
ReduceOp.Sum = 'Product';
// @ts-expect-error a shape is numbers
void Tensor.zeros(['2']);
// @ts-expect-error a rank's function gets a world, not a backend
void runWorld(2, (world: MockBackend) => world.rank);
void wrong;

/** A module of two inputs: DDP keeps the types of forward and of the module. */
class Pair extends Module<[Tensor, number], readonly [Tensor, number]> {
  readonly weight = new Linear(2, 2);
  override async forward(x: Tensor, factor: number): Promise<readonly [Tensor, number]> {
    return [(await this.weight.forward(x)).mul(factor), factor];
  }
}

export async function typesAreKept(): Promise<void> {
  const ddp = new DistributedDataParallel(new Pair(), group, { gradSync: GradSyncStrategy.Overlapped });
  const [y, factor]: readonly [Tensor, number] = await ddp.forward(tensor, 2);
  const inner: Linear = ddp.module.weight;
  // @ts-expect-error forward takes two inputs
  await ddp.forward(tensor);
  // @ts-expect-error the second is a number
  await ddp.forward(tensor, 'twice');
  const counted: number = await ddp.noSync(() => 7);
  void [y, factor, inner, counted];
}
