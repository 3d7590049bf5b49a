/** How ranks find each other, and what they say when they do not; run on each data plane. */
import { networkInterfaces } from 'node:os';
import type { PeerAddress } from '../../../src/backend/grpc/endpoint';
import {
  closeAll,
  connectedMeshes,
  dataHeader,
  endpointOf,
  identityOf,
  listenAll,
  type Plane,
} from '../../helpers/loopback-links';
import { testWhere } from '../../helpers/test-where';

export function describeConnecting(plane: Plane): void {
  afterEach(closeAll);

  describe(`connecting the data plane '${plane}'`, () => {
    test('a rank that never connects is named when the time is over', async () => {
      const [first, second] = await Promise.all([0, 1].map((rank) => endpointOf(identityOf(rank, 3), plane)));
      const silent = await endpointOf(identityOf(2, 3), plane);
      const peers = [first, second, silent].map((endpoint) => endpoint?.address as PeerAddress);
      const firstConnect = first?.connect(peers, 400);
      const givenUp = firstConnect?.catch(() => first?.close());
      const outcomes = await Promise.allSettled([firstConnect, second?.connect(peers, 800)]);
      await givenUp;
      expect(outcomes[0]).toMatchObject({
        status: 'rejected',
        reason: { code: 'LOCKSTEP_TIMEOUT', context: { ranks: [2] } },
      });
      expect((outcomes[0] as PromiseRejectedResult).reason.message).toContain(
        'rank 0 of 3 had no connection to rank 2 after 400 ms',
      );
      // Rank 0 gave up first, and that is noticed before the own deadline.
      expect(outcomes[1]).toMatchObject({
        status: 'rejected',
        reason: { code: 'LOCKSTEP_PEER_LOST', context: { ranks: [0] } },
      });
    });

    test('a rank whose process is gone already is lost before the deadline', async () => {
      const [first, gone] = await Promise.all([0, 1].map((rank) => endpointOf(identityOf(rank, 2), plane)));
      const peers = [first, gone].map((endpoint) => endpoint?.address as PeerAddress);
      await gone?.close();
      await expect(first?.connect(peers, 30_000)).rejects.toMatchObject({
        code: 'LOCKSTEP_PEER_LOST',
        context: { ranks: [1] },
      });
    });

    test('ranks with different data planes are told so', async () => {
      const other: Plane = plane === 'grpc' ? 'socket' : 'grpc';
      const first = await endpointOf(identityOf(0, 2), plane);
      const second = await endpointOf(identityOf(1, 2), other);
      await expect(first.connect([first.address, second.address], 5000)).rejects.toThrow(
        `rank 1 does not offer the data plane '${plane}' that rank 0 uses. Give all ranks the same dataPlane.`,
      );
    });

    const hasIPv6 = Object.values(networkInterfaces()).some((list) => list?.some(({ address }) => address === '::1'));
    testWhere(
      hasIPv6,
      `${plane} links over IPv6`,
      'the address ::1',
    )('works over IPv6', async () => {
      const endpoints = await Promise.all(
        [0, 1].map((rank) => endpointOf(identityOf(rank, 2), plane, { bindAddress: '::1' })),
      );
      // Without Unix sockets, which would hide what TCP does.
      const peers = endpoints.map((endpoint) => ({ ...endpoint.address, unixSocket: null }));
      expect(peers[0]?.grpc ?? peers[0]?.tcpSocket).toMatch(/^\[::1\]:\d+$/);
      const meshes = await Promise.all(endpoints.map((endpoint) => endpoint.connect(peers, 5000)));
      const [, listener] = listenAll(meshes);
      await meshes[0]?.link(1).send(dataHeader(0, 5), new Uint8Array(5));
      await listener?.untilFrames(1);
      await Promise.all(meshes.map((mesh) => mesh.close()));
    });

    test('a world of one has nobody to connect to', async () => {
      const [mesh] = await connectedMeshes(1, plane);
      expect(mesh?.dataPlane).toBe(plane);
      expect(() => mesh?.link(0)).toThrow('rank 0 is not another rank of this world of 1');
    });

    test('addresses that are not those of all ranks are refused', async () => {
      const endpoint = await endpointOf(identityOf(0, 2), plane);
      await expect(endpoint.connect([endpoint.address], 1000)).rejects.toThrow(
        'expected the addresses of ranks 0 to 1 in order',
      );
    });

    test('close while connecting ends the attempt', async () => {
      const endpoint = await endpointOf(identityOf(0, 2), plane);
      const other = await endpointOf(identityOf(1, 2), plane);
      const attempt = endpoint.connect([endpoint.address, other.address], 30_000);
      await Promise.all([
        expect(attempt).rejects.toThrow('the endpoint was closed while it connected'),
        endpoint.close(),
      ]);
    });
  });
}
