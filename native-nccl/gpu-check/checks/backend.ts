/** World.init with the NCCL backend, and each of its collectives at world size 1, on host and on device buffers. */
import type { Backend } from '../../../src/backend/backend';
import { DTYPES, allocateBuffer, isFloatDType, isSameBits, type DataBuffer, type DType } from '../../../src/core/dtype';
import { ReduceOp, isBitOp } from '../../../src/core/reduce-op';
import type { Work } from '../../../src/core/work';
import { filled } from '../../../tests/helpers/fill';
import { expect, failureOf, isStandIn, type Bench } from '../bench';
import type { Check } from '../check';
import { onDevice, onHost, type Place } from '../place';

/** None, one, a prime, and more than a megabyte. */
const COUNTS = [0, 1, 1009, isStandIn ? 10_007 : 262_147];

/** One call of the backend; the call is in place where it does not use `recv`. */
type Call = (backend: Backend, send: DataBuffer, recv: DataBuffer, op: ReduceOp) => Work;

const calls: readonly { readonly name: string; readonly isReduction?: true; readonly isInPlace?: true; call: Call }[] =
  [
    {
      name: 'allReduce',
      isReduction: true,
      isInPlace: true,
      call: (backend, data, _, op) => backend.allReduce(data, op),
    },
    { name: 'broadcast', isInPlace: true, call: (backend, data) => backend.broadcast(data, 0) },
    { name: 'reduce', isReduction: true, call: (backend, send, recv, op) => backend.reduce(send, recv, 0, op) },
    { name: 'allGather', call: (backend, send, recv) => backend.allGather(send, recv) },
    {
      name: 'reduceScatter',
      isReduction: true,
      call: (backend, send, recv, op) => backend.reduceScatter(send, recv, op),
    },
    { name: 'gather', call: (backend, send, recv) => backend.gather(send, recv, 0) },
    { name: 'scatter', call: (backend, send, recv) => backend.scatter(send, recv, 0) },
    { name: 'allToAll', call: (backend, send, recv) => backend.allToAll(send, recv) },
  ];

/** The ops that the backend has for a dtype. */
function opsFor({ capabilities }: Backend, dtype: DType): ReduceOp[] {
  const isInteger = !isFloatDType(dtype);
  return capabilities.reduceOps.filter((op) => {
    if (op === ReduceOp.Average) return !isInteger || capabilities.integerAverage !== false;
    return isInteger || !isBitOp(op);
  });
}

function collectiveCheck({ name, call, isReduction, isInPlace }: (typeof calls)[number]): Check {
  return {
    name: `${name} of every dtype, on the host and on the device`,
    async run(bench) {
      const { backend } = (await bench.world()).group;
      let numCalls = 0;
      for (const place of [onHost, onDevice(await bench.backendDevice())]) {
        for (const dtype of DTYPES) {
          for (const op of isReduction ? opsFor(backend, dtype) : [ReduceOp.Sum]) {
            for (const count of COUNTS) {
              const what = `${name} ${op} of ${count} ${dtype} on ${place.name}`;
              await giveBack(backend, place, dtype, count, what, isInPlace === true, (send, recv) =>
                call(backend, send, recv, op),
              );
              numCalls++;
            }
          }
        }
      }
      bench.note('calls', numCalls);
    },
  };
}

/** A group of one gets its own elements back, for every op. */
async function giveBack(
  { capabilities }: Backend,
  place: Place,
  dtype: DType,
  count: number,
  what: string,
  isInPlace: boolean,
  call: (send: DataBuffer, recv: DataBuffer) => Work,
): Promise<void> {
  expect(capabilities.dtypes.includes(dtype), `the backend does not move ${dtype}`);
  const data = filled(dtype, count, 1, 0, isFloatDType(dtype) ? 'rounding' : 'counted');
  const send = await place.put(data);
  const recv = isInPlace ? send : await place.put(allocateBuffer(dtype, count));
  await call(send, recv);
  expect(isSameBits(await place.take(recv), data), `${what}: other elements came back`);
  if (!isInPlace) expect(isSameBits(await place.take(send), data), `${what}: the input was changed`);
}

async function subgroup(bench: Bench): Promise<void> {
  const world = await bench.world();
  const group = await world.newGroup([0]);
  const data = Float32Array.of(1, 2, 3);
  await Promise.all([group.backend.allReduce(data, ReduceOp.Sum), group.barrier(), world.barrier()]);
  expect(isSameBits(data, Float32Array.of(1, 2, 3)), `the subgroup gave ${data.join(', ')}`);
  const nested = await group.split(3);
  await nested.barrier();
  await group.close();
  const error = await failureOf(() => group.barrier());
  expect(error.name === 'ClosedError', `a closed group gave ${error.name}: ${error.message}`);
  await world.barrier();
}

export const backendChecks: readonly Check[] = [
  {
    name: 'a world of one starts, and the event loop goes on meanwhile',
    async run(bench) {
      let worstMs = 0;
      let lastMs = performance.now();
      const timer = setInterval(() => {
        worstMs = Math.max(worstMs, performance.now() - lastMs);
        lastMs = performance.now();
      }, 1);
      const startedMs = performance.now();
      const world = await bench.world();
      clearInterval(timer);
      bench.note('initMs', performance.now() - startedMs);
      bench.note('longestPauseOfEventLoopMs', worstMs);
      bench.note('device', (await bench.backendDevice()).name);
      expect(world.group.backend.name === 'nccl', `the backend is ${world.group.backend.name}`);
      expect(world.worldSize === 1 && world.rank === 0, 'it is not a world of one');
    },
  },
  ...calls.map(collectiveCheck),
  {
    name: 'a hundred calls at once come back in order',
    async run(bench) {
      const { backend } = (await bench.world()).group;
      const buffers = Array.from({ length: 100 }, (_, index) =>
        Int32Array.from({ length: index }, (_each, i) => i * index),
      );
      const expected = buffers.map((buffer) => buffer.slice());
      const order: number[] = [];
      await Promise.all(
        buffers.map(async (buffer, index) => {
          await backend.allReduce(buffer, ReduceOp.Max);
          order.push(index);
        }),
      );
      for (const [index, buffer] of buffers.entries()) {
        expect(isSameBits(buffer, expected[index] as Int32Array), `call ${index} gave other elements`);
      }
      expect(
        order.every((index, place) => index === place),
        `they settled as ${order.join(' ')}`,
      );
    },
  },
  { name: 'barriers, subgroups and subgroups of subgroups', run: subgroup },
];
