/** What goes wrong says what it was, in time, and leaves the device usable. Only what is safe on a GPU that is lent. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { NativeError } from 'lockstep';
import type { Block } from '../../../src/backend/nccl/addon';
import { WAIT_MS, expect, failureOf, isStandIn, type Bench } from '../bench';
import type { Check } from '../check';

const execute = promisify(execFile);

/** The reason that Lockstep gives in a process with these variables; undefined: NCCL is available there. */
async function reasonWith(variables: Record<string, string>): Promise<string | undefined> {
  const { stdout } = await execute(process.execPath, [join(__dirname, '..', 'reason-process.js')], {
    env: { ...process.env, ...variables },
    timeout: WAIT_MS,
  });
  const { reason } = JSON.parse(stdout.trim().split('\n').at(-1) ?? '') as { readonly reason?: string };
  return reason;
}

function libraryCheck(name: string, variable: string, path: string): Check {
  return {
    name,
    async run(bench) {
      const reason = await reasonWith({ [variable]: path });
      bench.note('reason', reason);
      expect(reason !== undefined, 'NCCL is said to be available');
      expect(reason.includes(path) && reason.includes(variable), `the reason does not name both: ${reason}`);
    },
  };
}

async function roundTrip({ addon }: Bench, block: Block): Promise<void> {
  const bytes = Uint8Array.from({ length: 64 }, (_, i) => 3 * i);
  await addon.upload(block, 0, bytes, WAIT_MS);
  const found = new Uint8Array(64);
  await addon.download(block, 0, found, WAIT_MS);
  expect(Buffer.from(found).equals(bytes), 'other bytes came back');
}

const MISSING_RANK_MS = isStandIn ? 500 : 3000;

/** Rank 1 of 2 never comes. */
async function missingRank(bench: Bench): Promise<void> {
  const { addon } = bench;
  const device = bench.device();
  const startedMs = performance.now();
  const error = await failureOf(() =>
    addon.commInit(device, { size: 2, rank: 0, id: addon.uniqueId(), timeoutMs: MISSING_RANK_MS, name: 'half a pair' }),
  );
  const tookMs = performance.now() - startedMs;
  bench.note('message', error.message);
  bench.note('afterMs', tookMs);
  expect(error.code === 'TIMEOUT', `it failed with ${error.code}: ${error.message}`);
  expect(error.message.includes('half a pair'), `the communicator is not named: ${error.message}`);
  expect(tookMs < MISSING_RANK_MS + 5000, `it took ${tookMs} ms`);
}

export const errorChecks: readonly Check[] = [
  libraryCheck(
    'an NCCL that is not there is named, and nothing else is tried',
    'LOCKSTEP_NCCL_LIBRARY',
    '/nowhere/libnccl.so.2',
  ),
  libraryCheck('a driver that is not there is named', 'LOCKSTEP_CUDA_LIBRARY', '/nowhere/libcuda.so.1'),
  libraryCheck('a library that is no NCCL is named', 'LOCKSTEP_NCCL_LIBRARY', 'libm.so.6'),
  {
    name: 'wrong arguments are refused at once, and the device works on',
    async run(bench) {
      const { addon } = bench;
      const device = bench.device();
      const block = addon.allocate(device, 64);
      const isRefused = async (action: () => unknown): Promise<void> => {
        const error = await failureOf(action);
        expect(
          error instanceof RangeError || error instanceof TypeError,
          `expected a RangeError, got ${error.name}: ${error.message}`,
        );
      };
      await isRefused(() => addon.upload(block, 32, new Uint8Array(64), WAIT_MS));
      await isRefused(() => addon.download(block, 64, new Uint8Array(1), WAIT_MS));
      await isRefused(() => addon.copy(block, 0, block, 60, 8));
      await isRefused(() => addon.launch(device, 'no_such_kernel', 1, 32, []));
      await isRefused(() => addon.allocate(device, -1));
      await failureOf(() => addon.deviceInfo(1_000_000));
      await roundTrip(bench, block);
      addon.release(block);
    },
  },
  {
    name: 'released memory and a closed device cannot be used',
    async run(bench) {
      const { addon } = bench;
      const device = bench.openDevice();
      const [first, second] = [addon.allocate(device, 64), addon.allocate(device, 64)];
      await roundTrip(bench, first);
      addon.release(first);
      const released = await failureOf(() => addon.upload(first, 0, new Uint8Array(64), WAIT_MS));
      expect(released.code === 'CLOSED', `a released block gave ${released.code}: ${released.message}`);
      await addon.closeDevice(device);
      const closed = await failureOf(() => addon.upload(second, 0, new Uint8Array(64), WAIT_MS));
      expect(closed.code === 'CLOSED', `a closed device gave ${closed.code}: ${closed.message}`);
    },
  },
  {
    name: 'a communicator whose second rank never comes times out, with its name',
    limitMs: 30_000,
    run: missingRank,
  },
  {
    name: 'and the device works on after it: memory, and a communicator of one',
    limitMs: 30_000,
    async run(bench) {
      const { addon } = bench;
      const block = addon.allocate(bench.device(), 64);
      await roundTrip(bench, block);
      const communicator = await bench.communicator();
      const operand = { block, byteOffset: 0 };
      await addon.collective(
        communicator,
        [{ kind: 'allReduce', count: 16, dtype: 'float32', send: operand, recv: operand, op: 'sum' }],
        { label: 'after the timeout', timeoutMs: WAIT_MS },
      );
      addon.release(block);
      bench.note('leakedCommunicators', addon.stats(bench.device()).leakedCommunicators);
    },
  },
  {
    name: 'too much memory through the backend is a NativeError, and its collectives go on',
    async run(bench) {
      const device = await bench.backendDevice();
      const error = await failureOf(() => device.allocate('uint8', 2 ** 46));
      expect(error instanceof NativeError, `it failed with ${error.name}: ${error.message}`);
      bench.note('message', error.message);
      await (await bench.world()).barrier();
    },
  },
  {
    name: 'a process that exits while a device is open ends with its own exit code',
    async run(bench) {
      bench.probe();
      const program = join(__dirname, '..', 'leave-process.js');
      const error = await failureOf(() => execute(process.execPath, [program], { timeout: WAIT_MS }));
      const { code, signal } = error as { readonly code?: unknown; readonly signal?: unknown };
      expect(code === 7, `it ended with ${String(signal ?? code)}: ${error.message}`);
    },
  },
];
