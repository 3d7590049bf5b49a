/** A control plane over real sockets: joined, with its store, as the gRPC backend's world is. */
import { connectControlPlane } from '../../../../src/backend/grpc/connect';
import type { GrpcControlPlane } from '../../../../src/backend/grpc/control-plane';
import type { BackendInit, DataPlane } from '../../../../src/backend/backend-init';
import { NativeError } from '../../../../src/core/errors';
import { freePort } from '../../../helpers/free-port';
import { failureOf } from '../mock-worlds';
import { allReduce, floats, recv, send } from './control-calls';

const logger = { debug: () => undefined, info: () => undefined, warn: () => undefined, error: () => undefined };

async function withPlanes(
  dataPlane: DataPlane,
  test: (planes: readonly [GrpcControlPlane, GrpcControlPlane]) => Promise<void>,
): Promise<void> {
  const shared = { worldSize: 2, masterAddr: '127.0.0.1', masterPort: await freePort(), token: 'a secret of the job' };
  const planes = await Promise.all(
    [0, 1].map((rank) => connectControlPlane({ ...shared, rank, dataPlane, logger, timeoutMs: 10_000 }, 'nccl')),
  );
  try {
    await test(planes as [GrpcControlPlane, GrpcControlPlane]);
  } finally {
    await Promise.all(planes.map((plane) => plane.close()));
  }
}

describe.each(['grpc', 'socket'] as const)('over the data plane %s', (dataPlane) => {
  test('ranks agree, exchange bytes, and share a store', async () => {
    await withPlanes(dataPlane, async (planes) => {
      const bytes = await Promise.all(planes.map((plane, rank) => plane.exchange(Uint8Array.of(rank, 7), 5000)));
      for (const each of bytes) expect(each).toEqual([Uint8Array.of(0, 7), Uint8Array.of(1, 7)]);
      const [a, b] = planes;
      await Promise.all([allReduce(a.root, 2 ** 20), allReduce(b.root, 2 ** 20)]);
      await Promise.all([send(a.root, floats(9), 1, 2), recv(b.root, floats(9), 0, 2)]);
      await a.store?.set('key', Uint8Array.of(3));
      expect(await b.store?.get('key')).toEqual(Uint8Array.of(3));
    });
  });
});

test('a wait in the store ends with the group of all ranks', async () => {
  await withPlanes('socket', async ([a, b]) => {
    const waiting = failureOf(a.store?.get('never set') as Promise<unknown>);
    await Promise.all([a.exchange(new Uint8Array(1), 5000), b.exchange(new Uint8Array(1), 5000)]);
    b.root.fail(new NativeError('rank 1: the device fell off the bus'));
    expect(await waiting).toMatchObject({ code: 'LOCKSTEP_NATIVE', context: { op: 'store.get' } });
  });
});

test('a rank that is told no address names the backend that needs it', async () => {
  const init: BackendInit = { rank: 0, worldSize: 2, logger };
  expect((await failureOf(connectControlPlane(init, 'nccl'))).message).toMatch(
    /^World\.init: the backend 'nccl' needs/,
  );
});
