import type { BackendInit } from '../../../../src/backend/backend-init';
import { MockBackend, registerBackend } from '../../../../src/backend/registry';
import { World } from '../../../../src/process-group/world';
import type { Logger } from '../../../../src/core/logger';
import { nativeFailure } from '../../../helpers/fake-gpu';
import { FakeNccl } from '../../../helpers/fake-nccl';
import { failureOf, joinWorld, SILENT, turns, type JoinOptions } from '../../../helpers/nccl-worlds';

const outcomesOf = async (network: FakeNccl, options?: JoinOptions): Promise<(Error | undefined)[]> => {
  const settled = await Promise.allSettled(joinWorld(network, options).map(({ joined }) => joined));
  for (const each of settled) if (each.status === 'fulfilled') await each.value.close();
  return settled.map((each) => (each.status === 'rejected' ? (each.reason as Error) : undefined));
};

/** Nothing stays open when a world could not be made. */
const expectClosed = (network: FakeNccl): void => {
  expect(network.ranks.map(({ numOpen, numBlocks }) => numOpen + numBlocks)).toEqual(network.ranks.map(() => 0));
};

/** With variables of the environment for the time of the test. */
async function withVariables(variables: Readonly<Record<string, string>>, test: () => Promise<void>): Promise<void> {
  const before = { ...process.env };
  Object.assign(process.env, variables);
  try {
    await test();
  } finally {
    process.env = before;
  }
}

function recordingLogger(): { readonly logger: Logger; readonly lines: string[] } {
  const lines: string[] = [];
  const note = (level: string) => (message: string) => void lines.push(`${level}: ${message}`);
  return { logger: { ...SILENT, info: note('info'), warn: note('warn') }, lines };
}

test('a rank without a GPU is named to all ranks, which all get the same error', async () => {
  const network = new FakeNccl(3);
  const errors = await outcomesOf(network, { reasons: { 1: 'libcuda.so.1 is not there.' } });
  expect(new Set(errors.map((error) => error?.message)).size).toBe(1);
  expect(errors[0]).toMatchObject({ name: 'BackendUnavailableError', context: { ranks: [1] } });
  expect(errors[0]?.message).toMatch(/a rank of 3 cannot use a GPU:\n {2}rank 1 \(.*\): libcuda\.so\.1 is not there\./);
  expectClosed(network);
});

test('a device that cannot be opened, and a local rank without a device, are such reasons', async () => {
  const network = new FakeNccl(3);
  network.rank(0).failNext('openDevice', nativeFailure('CUDA', 'out of memory', { call: 'cuCtxCreate' }));
  network.rank(2).deviceCount = 2;
  const [error] = await outcomesOf(network);
  expect(error?.message).toMatch(/rank 0 .*device 0 of 8 cannot be opened: cuCtxCreate: out of memory/);
  expect(error?.message).toMatch(/rank 2 .*no device for local rank 2: 2 devices are visible/);
  expectClosed(network);
});

test('two ranks on one device are refused on all ranks', async () => {
  const network = new FakeNccl(3);
  network.rank(2).uuid = network.rank(0).uuid;
  const errors = await outcomesOf(network);
  for (const error of errors) expect(error).toMatchObject({ name: 'InvalidArgumentError', context: { ranks: [0, 2] } });
  expectClosed(network);
});

test('where all ranks say that they may share a device, NCCL is left to judge', async () => {
  await withVariables({ NCCL_MULTI_RANK_GPU_ENABLE: '1' }, async () => {
    const network = new FakeNccl(2);
    network.rank(1).uuid = network.rank(0).uuid;
    expect(await outcomesOf(network)).toEqual([undefined, undefined]);
  });
});

test('that rank 0 cannot open NCCL’s meeting place reaches all ranks at once', async () => {
  const network = new FakeNccl(3);
  network
    .rank(0)
    .failNext('uniqueId', nativeFailure('NCCL', 'unhandled system error', { call: 'ncclGetUniqueId', result: 2 }));
  const start = performance.now();
  const errors = await outcomesOf(network);
  for (const error of errors) {
    expect(error?.name).toBe('NativeError');
    expect(error?.message).toMatch(/on rank 0.*ncclGetUniqueId: unhandled system error.*NCCL_SOCKET_IFNAME/);
  }
  expect(performance.now() - start).toBeLessThan(5000); // the deadline is 10 s
  expectClosed(network);
});

test('that NCCL cannot connect one rank reaches all ranks at once', async () => {
  const network = new FakeNccl(3);
  const failure = nativeFailure('NCCL', 'remote error', {
    call: 'ncclCommInitRankConfig',
    result: 6,
    detail: 'socket closed',
  });
  network.rank(2).failNext('commInit', failure);
  const start = performance.now();
  const errors = await outcomesOf(network);
  for (const error of errors) {
    expect(error?.message).toMatch(/could not connect rank 2 of 3.*ncclCommInitRankConfig.*NCCL says: socket closed\./);
  }
  expect(performance.now() - start).toBeLessThan(5000); // the deadline is 10 s
  expectClosed(network);
});

test('where NCCL has lost a rank that could not connect, all ranks get the reason of that rank', async () => {
  const network = new FakeNccl(3);
  for (const rank of [0, 1]) {
    network.rank(rank).failNext('commInit', nativeFailure('NCCL', 'remote error', { call: 'ncclCommInit', result: 6 }));
  }
  const { addon } = network.rank(2);
  (addon as { commInit: typeof addon.commInit }).commInit = async () => {
    await new Promise((resolve) => setTimeout(resolve, 30));
    throw nativeFailure('NCCL', 'unhandled system error', { call: 'ncclCommInit', result: 2 });
  };
  for (const error of await outcomesOf(network)) expect(error?.message).toMatch(/could not connect rank 2 of 3/);
  expectClosed(network);
});

test('a world of one works', async () => {
  const [{ joined }] = joinWorld(new FakeNccl(1)) as [ReturnType<typeof joinWorld>[number]];
  const backend = await joined;
  const data = Float32Array.of(1, 2);
  await backend.allReduce(data, 'Average');
  expect([...data]).toEqual([1, 2]);
  await backend.close();
});

test('each rank says in the log which device it uses, and which NCCL', async () => {
  const { logger, lines } = recordingLogger();
  const network = new FakeNccl(2);
  await outcomesOf(network, { logger });
  expect(lines).toContain(
    'info: rank 1: device 1 of 8, Fake GPU (uuid uuid-of-1), NCCL 2.28.9 from /fake/libnccl.so.2',
  );
});

test('variables that break what the backend relies on are warned of', async () => {
  await withVariables({ NCCL_COMM_BLOCKING: '1', CUDA_LAUNCH_BLOCKING: '1' }, async () => {
    const { logger, lines } = recordingLogger();
    await outcomesOf(new FakeNccl(1), { logger });
    expect(lines.filter((line) => line.startsWith('warn'))).toEqual([
      expect.stringMatching(/rank 0: NCCL_COMM_BLOCKING=1.*Unset it/),
      expect.stringMatching(/rank 0: CUDA_LAUNCH_BLOCKING=1.*Unset it/),
    ]);
  });
});

test('a wrong LOCKSTEP_NCCL_CHECKS is refused', async () => {
  await withVariables({ LOCKSTEP_NCCL_CHECKS: 'after' }, async () => {
    const [error] = await outcomesOf(new FakeNccl(1));
    expect(error).toMatchObject({ name: 'InvalidArgumentError' });
    expect(error?.message).toMatch(/LOCKSTEP_NCCL_CHECKS is 'after', expected beside or before/);
  });
});

test('worlds of one process on one device share it; the last closes it', async () => {
  const network = new FakeNccl(1);
  const [first] = joinWorld(network);
  const [second] = joinWorld(network);
  const [a, b] = [await first?.joined, await second?.joined];
  const gpu = network.rank(0);
  expect([gpu.numOpen, gpu.kernels]).toEqual([1, 'kernels']);
  const buffer = a?.device.allocate('float32', 2);
  await a?.close();
  expect([gpu.numOpen, buffer?.isDisposed]).toEqual([1, false]);
  await b?.allReduce(buffer as NonNullable<typeof buffer>, 'Sum'); // of another world, on the same device
  await b?.close();
  expect([gpu.numOpen, buffer?.isDisposed]).toEqual([0, true]);
  buffer?.dispose();
});

test('a world tells its backend the local rank, which is not the rank on the second machine', async () => {
  let init: BackendInit | undefined;
  const remove = registerBackend('of this test', (given) => {
    init = given;
    return MockBackend.single();
  });
  try {
    const world = await World.init({ backend: 'of this test', rank: 9, worldSize: 16, localRank: 1 });
    await world.close();
    expect(init).toMatchObject({ rank: 9, localRank: 1 });
  } finally {
    remove();
  }
});

test('the device is that of the local rank', async () => {
  const { logger, lines } = recordingLogger();
  await outcomesOf(new FakeNccl(1), { logger, localRank: 5 });
  expect(lines.find((line) => line.includes('device'))).toMatch(/rank 0: device 5 of 8/);
});

test('a device that could not be closed can be opened again', async () => {
  const network = new FakeNccl(1);
  const [first] = joinWorld(network);
  const a = await first?.joined;
  const gpu = network.rank(0);
  const close = gpu.addon.closeDevice;
  (gpu.addon as { closeDevice: unknown }).closeDevice = async (device: never) => {
    await turns(5);
    await close(device);
    throw nativeFailure('CUDA', 'no');
  };
  const closing = a?.close().catch((error: Error) => error);
  await turns(1);
  const [second] = joinWorld(network);
  const b = await second?.joined;
  (gpu.addon as { closeDevice: unknown }).closeDevice = close;
  await closing;
  await b?.close();
});

test('that the addon refuses the connection of one rank reaches all ranks at once', async () => {
  const network = new FakeNccl(3);
  network.rank(2).failNext('commInit', new TypeError('size: expected a number'));
  const start = performance.now();
  const settled = await Promise.allSettled(joinWorld(network).map(({ joined }) => joined));
  expect(performance.now() - start).toBeLessThan(3000);
  for (const each of settled) expect(each).toMatchObject({ status: 'rejected', reason: { name: 'InternalError' } });
});

test('whenever a rank is lost while the world is made, the others hear of it at once, and nothing stays open', async () => {
  for (let seed = 1; seed <= 40; seed++) {
    const network = new FakeNccl(3);
    const joining = joinWorld(network, { seed, timeoutMs: 5000 });
    await turns(seed % 20);
    joining[seed % 3]?.mesh.destroy(new Error('killed'));
    const others = joining.filter((_unused, rank) => rank !== seed % 3);
    const start = performance.now();
    const errors = await Promise.all(
      others.map(async ({ joined }) => {
        const backend = await joined.catch((error: Error) => error);
        if (backend instanceof Error) return backend;
        const error = await failureOf(backend.barrier());
        await backend.close();
        return error;
      }),
    );
    expect(performance.now() - start).toBeLessThan(3000);
    expect({ seed, names: errors.map(({ name }) => name) }).toEqual({
      seed,
      names: ['PeerLostError', 'PeerLostError'],
    });
    expect(others.map(({ gpu }) => gpu.numOpen)).toEqual([0, 0]);
  }
});

test('whichever step fails on whichever rank, all ranks get one reason, and nothing stays open', async () => {
  const steps = ['openDevice', 'uniqueId', 'commInit'] as const;
  for (let seed = 1; seed <= 45; seed++) {
    const step = steps[seed % 3] as (typeof steps)[number];
    const network = new FakeNccl(3);
    const rank = step === 'uniqueId' ? 0 : Math.floor(seed / 3) % 3;
    network
      .rank(rank)
      .failNext(
        step,
        nativeFailure('NCCL', `${step} is broken`, { call: 'nccl', result: [1, 2, 3][seed % 3] as number }),
      );
    const start = performance.now();
    const settled = await Promise.allSettled(joinWorld(network, { seed }).map(({ joined }) => joined));
    expect(performance.now() - start).toBeLessThan(3000);
    const messages = settled.map((each) => (each.status === 'rejected' ? (each.reason as Error).message : 'made'));
    expect(messages[0]).toContain(`${step} is broken`);
    expect({ seed, step, messages }).toEqual({ seed, step, messages: messages.map(() => messages[0]) });
    expect(network.ranks.map(({ numOpen }) => numOpen)).toEqual([0, 0, 0]);
  }
});
