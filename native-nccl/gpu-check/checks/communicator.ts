/** NCCL itself, below the backend: every operation at world size 1, which moves the bytes through the device. */
import { byteSize, bytesOf, DTYPES, isFloatDType, isSameBits, type DType } from '../../../src/core/dtype';
import type { Block, NcclOperation, NcclReduceOp } from '../../../src/backend/nccl/addon';
import { filled } from '../../../tests/helpers/fill';
import { WAIT_MS, expect, failureOf, type Bench } from '../bench';
import type { Check } from '../check';

const COUNT = 4099;
/** Elements in front of the data, so that its address is aligned to one element only. */
const LEAD = 1;

const REDUCE_OPS: readonly NcclReduceOp[] = ['sum', 'product', 'min', 'max', 'average'];

/** `Operation` without what all have, by place of the data. */
type MakeOperation = (send: Operand, recv: Operand, op: NcclReduceOp) => Partial<NcclOperation>;
interface Operand {
  readonly block: Block;
  readonly byteOffset: number;
}

const reductions: Readonly<Record<string, MakeOperation>> = {
  allReduce: (send, recv, op) => ({ kind: 'allReduce', send, recv, op }),
  reduce: (send, recv, op) => ({ kind: 'reduce', send, recv, op, root: 0 }),
  reduceScatter: (send, recv, op) => ({ kind: 'reduceScatter', send, recv, op }),
};
const movements: Readonly<Record<string, MakeOperation>> = {
  broadcast: (send, recv) => ({ kind: 'broadcast', send, recv, root: 0 }),
  allGather: (send, recv) => ({ kind: 'allGather', send, recv }),
};

function operationCheck(name: string, make: MakeOperation, ops: readonly NcclReduceOp[]): Check {
  return {
    name: `${name} copies, every dtype${ops.length > 1 ? ' and op' : ''}`,
    async run(bench) {
      for (const dtype of DTYPES) {
        for (const op of ops) {
          if (op === 'average' && !isFloatDType(dtype)) continue; // NCCL's own is not ours
          await copyThrough(bench, dtype, `${name} ${dtype} ${op}`, (send, recv) => [
            { count: COUNT, dtype, ...make(send, recv, op) } as NcclOperation,
          ]);
        }
      }
    },
  };
}

/** Upload, run the operations, download: the same bits, and nothing beside them is written. */
async function copyThrough(
  bench: Bench,
  dtype: DType,
  label: string,
  operations: (send: Operand, recv: Operand) => readonly NcclOperation[],
): Promise<void> {
  const { addon } = bench;
  const communicator = await bench.communicator();
  const width = byteSize(dtype);
  const data = filled(dtype, COUNT, 1, 0, isFloatDType(dtype) ? 'rounding' : 'counted');
  const [offset, byteLength] = [LEAD * width, COUNT * width];
  const send = addon.allocate(bench.device(), offset + byteLength);
  const recv = addon.allocate(bench.device(), offset + byteLength + width);
  try {
    const margin = new Uint8Array(offset + byteLength + width).fill(0x5a);
    const uploads = [addon.upload(recv, 0, margin, WAIT_MS), addon.upload(send, offset, bytesOf(data), WAIT_MS)];
    const list = operations({ block: send, byteOffset: offset }, { block: recv, byteOffset: offset });
    // given before the uploads have settled: the engine keeps the order
    const done = addon.collective(communicator, list, { label, timeoutMs: WAIT_MS });
    const result = new Uint8Array(margin.length);
    await Promise.all([...uploads, done, addon.download(recv, 0, result, WAIT_MS)]);
    expect(isSameBits(result.subarray(offset, offset + byteLength), bytesOf(data)), `${label}: other bits came back`);
    const around = [...result.subarray(0, offset), ...result.subarray(offset + byteLength)];
    expect(
      around.every((byte) => byte === 0x5a),
      `${label}: it wrote beside its buffer`,
    );
  } finally {
    addon.release(send);
    addon.release(recv);
  }
}

export const communicatorChecks: readonly Check[] = [
  {
    name: 'a communicator of one is made',
    async run(bench) {
      bench.device();
      const startedMs = performance.now();
      await bench.communicator();
      bench.note('commInitMs', performance.now() - startedMs);
    },
  },
  ...Object.entries(reductions).map(([name, make]) => operationCheck(name, make, REDUCE_OPS)),
  ...Object.entries(movements).map(([name, make]) => operationCheck(name, make, ['sum'])),
  {
    name: 'send and recv to itself in one group, every dtype',
    async run(bench) {
      for (const dtype of DTYPES) {
        await copyThrough(bench, dtype, `send and recv ${dtype}`, (send, recv) => [
          { kind: 'send', count: COUNT, dtype, send, peer: 0 },
          { kind: 'recv', count: COUNT, dtype, recv, peer: 0 },
        ]);
      }
    },
  },
  {
    name: 'no elements at all',
    async run(bench) {
      const communicator = await bench.communicator();
      const block = bench.addon.allocate(bench.device(), 0);
      const operand = { block, byteOffset: 0 };
      const operation: NcclOperation = {
        kind: 'allReduce',
        count: 0,
        dtype: 'float32',
        send: operand,
        recv: operand,
        op: 'sum',
      };
      await bench.addon.collective(communicator, [operation], { label: 'nothing', timeoutMs: WAIT_MS });
      bench.addon.release(block);
    },
  },
  {
    name: 'split gives a communicator that works, and none for color -1',
    async run(bench) {
      const { addon } = bench;
      const parent = await bench.communicator();
      const options = { key: 0, timeoutMs: WAIT_MS, name: 'child' };
      expect((await addon.commSplit(parent, { ...options, color: -1 })) === undefined, 'color -1 got a communicator');
      const child = await addon.commSplit(parent, { ...options, color: 0 });
      expect(child !== undefined, 'color 0 got no communicator');
      const block = addon.allocate(bench.device(), 4 * COUNT);
      const operand = { block, byteOffset: 0 };
      const operation: NcclOperation = {
        kind: 'allReduce',
        count: COUNT,
        dtype: 'float32',
        send: operand,
        recv: operand,
        op: 'sum',
      };
      const run = (on: typeof child): Promise<void> =>
        addon.collective(on, [operation], { label: 'after the split', timeoutMs: WAIT_MS });
      await Promise.all([run(child), run(parent), run(child)]);
      await addon.commDestroy(child, WAIT_MS);
      expect((await failureOf(() => run(child))).code === 'CLOSED', 'a destroyed communicator was used');
      await run(parent);
      addon.release(block);
    },
  },
  {
    name: 'an aborted communicator is over, and the next one works',
    async run(bench) {
      const { addon } = bench;
      const init = async (): ReturnType<typeof addon.commInit> =>
        addon.commInit(bench.device(), { size: 1, rank: 0, id: addon.uniqueId(), timeoutMs: WAIT_MS, name: 'aborted' });
      const first = await init();
      const block = addon.allocate(bench.device(), 4 * COUNT);
      const operand = { block, byteOffset: 0 };
      const operation: NcclOperation = {
        kind: 'broadcast',
        count: COUNT,
        dtype: 'float32',
        send: operand,
        recv: operand,
        root: 0,
      };
      const run = (on: typeof first): Promise<void> =>
        addon.collective(on, [operation], { label: 'to abort', timeoutMs: WAIT_MS });
      await run(first);
      addon.commAbort([first], 'the check says so');
      const error = await failureOf(() => run(first));
      expect(error.code === 'ABORTED' || error.code === 'CLOSED', `it failed with ${error.code}: ${error.message}`);
      expect(error.message.includes('the check says so'), `the reason is not in '${error.message}'`);
      const second = await init();
      await run(second);
      await addon.commDestroy(second, WAIT_MS);
      addon.release(block);
    },
  },
  {
    name: 'the flight recorder knows what was done',
    async run(bench) {
      await bench.communicator();
      const records = bench.addon.flightRecorder(bench.device());
      bench.note('records', records.length);
      bench.note('last', records.at(-1));
      expect(
        records.some(({ state }) => state === 'done'),
        'nothing is recorded as done',
      );
      const inFlight = records.filter(({ state }) => state !== 'done' && state !== 'failed');
      expect(inFlight.length === 0, `in flight: ${JSON.stringify(inFlight)}`);
    },
  },
];
