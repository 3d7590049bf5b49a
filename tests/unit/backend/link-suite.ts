/** What every kind of link has to do; run on each data plane. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { PeerAddress } from '../../../src/backend/grpc/endpoint';
import { CHUNK_BYTES } from '../../../src/backend/grpc/frame';
import { parseHostPort } from '../../../src/backend/grpc/host-address';
import type { Mesh } from '../../../src/backend/grpc/link';
import {
  RecordingListener,
  closeAll,
  connectedMeshes,
  dataHeader,
  endpointOf,
  identityOf,
  listenAll,
  pause,
  type Plane,
} from '../../helpers/loopback-links';
import { runnable } from '../../helpers/test-build';

/** Bytes that no other frame has. */
function pattern(length: number, seed: number): Uint8Array {
  return Uint8Array.from({ length }, (_unused, index) => (index * 31 + seed * 17 + (index >> 8)) & 255);
}

const children: ChildProcess[] = [];

/** A mesh with rank 1 in another process. */
async function meshWithProcess(plane: Plane, how: string): Promise<{ mesh: Mesh; child: ChildProcess }> {
  const { options, files } = runnable(join(__dirname, '../../helpers/link-process.ts'));
  const child = spawn(process.execPath, [...options, ...files, plane, how], {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  });
  children.push(child);
  const endpoint = await endpointOf(identityOf(0, 2), plane);
  const [address] = (await once(child, 'message')) as [PeerAddress];
  child.send(endpoint.address);
  return { mesh: await endpoint.connect([endpoint.address, address], 10_000), child };
}

/** Of this process: other tests run beside this one. */
function socketFolders(): string[] {
  return readdirSync(tmpdir()).filter((name) => /^lockstep-\d+-(\d+)-.{6}$/.exec(name)?.[1] === String(process.pid));
}

export function describeLinks(plane: Plane): void {
  afterEach(async () => {
    await closeAll();
    for (const child of children.splice(0)) {
      if (child.exitCode === null && child.signalCode === null) {
        child.kill('SIGKILL');
        await once(child, 'exit');
      }
    }
  });

  describe(`links of data plane '${plane}'`, () => {
    test('carry frames of all sizes between all ranks, each pair in order', async () => {
      const meshes = await connectedMeshes(3, plane);
      const listeners = listenAll(meshes);
      const sizes = [0, 1, 47, 48, 16 * 1024, 16 * 1024 + 1, CHUNK_BYTES - 1, CHUNK_BYTES];
      await Promise.all(
        meshes.flatMap((mesh) =>
          [0, 1, 2]
            .filter((peer) => peer !== mesh.rank)
            .flatMap((peer) =>
              sizes.map((size, index) =>
                mesh.link(peer).send(dataHeader(index, size), pattern(size, mesh.rank * 3 + peer)),
              ),
            ),
        ),
      );
      await Promise.all(listeners.map((listener) => listener.untilFrames(2 * sizes.length)));
      listeners.forEach((listener, rank) => {
        for (const from of [0, 1, 2].filter((peer) => peer !== rank)) {
          const frames = listener.frames.filter((frame) => frame.from === from);
          expect(frames.map(({ header }) => header)).toEqual(sizes.map((size, index) => dataHeader(index, size)));
          for (const { payload } of frames) {
            expect(Buffer.compare(payload, pattern(payload.length, from * 3 + rank))).toBe(0);
          }
        }
      });
    });

    test('hand the payload back once send has settled: changing it then changes nothing', async () => {
      const meshes = await connectedMeshes(2, plane);
      const [, listener] = listenAll(meshes);
      const link = (meshes[0] as Mesh).link(1);
      const buffers = [0, 1, 2].map(() => new Uint8Array(CHUNK_BYTES));
      const FRAMES = 60;
      const sendEvery = async (lane: number): Promise<void> => {
        const buffer = buffers[lane] as Uint8Array;
        for (let message = lane; message < FRAMES; message += buffers.length) {
          buffer.fill(message);
          await link.send(dataHeader(message, CHUNK_BYTES), buffer);
          buffer.fill(255);
        }
      };
      await Promise.all([0, 1, 2].map(sendEvery));
      await listener?.untilFrames(FRAMES);
      for (const { header, payload } of listener?.frames ?? []) {
        expect(Buffer.from(payload).equals(Buffer.alloc(CHUNK_BYTES, header.message))).toBe(true);
      }
    });

    test('keep what arrives before anybody listens', async () => {
      const [first, second] = (await connectedMeshes(2, plane)) as [Mesh, Mesh];
      await first.link(1).send(dataHeader(0, 1000), pattern(1000, 1));
      const more = first.link(1).send(dataHeader(1, CHUNK_BYTES), pattern(CHUNK_BYTES, 2));
      await pause(50);
      const listener = new RecordingListener();
      second.listen(listener);
      await listener.untilFrames(2);
      await more;
      expect(listener.frames.map(({ payload }) => payload.length)).toEqual([1000, CHUNK_BYTES]);
    });

    test('close with a goodbye, behind the frames that were sent before', async () => {
      const meshes = (await connectedMeshes(2, plane)) as [Mesh, Mesh];
      const [listener, otherListener] = listenAll(meshes) as [RecordingListener, RecordingListener];
      const sent = [0, 1, 2, 3].map((index) =>
        meshes[0].link(1).send(dataHeader(index, CHUNK_BYTES), pattern(CHUNK_BYTES, index)),
      );
      await Promise.all([meshes[0].close(), ...sent]);
      await otherListener.untilClosed();
      expect(otherListener.frames).toHaveLength(4);
      expect(otherListener.closed).toEqual([{ from: 0, reason: undefined }]);
      expect(listener.closed).toEqual([{ from: 1, reason: undefined }]);
      await expect(meshes[0].link(1).send(dataHeader(9, 0), undefined)).rejects.toMatchObject({
        code: 'LOCKSTEP_CLOSED',
      });
      const late = meshes[1].link(0).send(dataHeader(9, 0), undefined);
      await expect(late).rejects.toMatchObject({ code: 'LOCKSTEP_PEER_LOST' });
      await expect(late).rejects.toThrow('rank 0 has left: it closed its world');
      await meshes[1].close();
      await pause(50);
      expect(otherListener.closed).toHaveLength(1);
    });

    test('all ranks may close at the same time', async () => {
      const meshes = await connectedMeshes(3, plane);
      const listeners = listenAll(meshes);
      await Promise.all(meshes.map((mesh) => mesh.close()));
      await Promise.all(listeners.map((listener) => listener.untilClosed(2)));
      for (const { closed } of listeners) {
        expect(closed.map(({ from }) => from).sort()).toHaveLength(2);
        expect(closed.every(({ reason }) => reason === undefined)).toBe(true);
      }
    });

    test('destroy tells this side the reason, and the other that it is lost', async () => {
      const meshes = (await connectedMeshes(2, plane)) as [Mesh, Mesh];
      const [listener, otherListener] = listenAll(meshes) as [RecordingListener, RecordingListener];
      const reason = new Error('enough');
      meshes[0].link(1).destroy(reason);
      await Promise.all([listener.untilClosed(), otherListener.untilClosed()]);
      expect(listener.closed).toEqual([{ from: 1, reason }]);
      expect(otherListener.closed[0]?.reason).toMatchObject({ code: 'LOCKSTEP_PEER_LOST', context: { ranks: [0] } });
      await expect(meshes[0].link(1).send(dataHeader(0, 0), undefined)).rejects.toBe(reason);
    });

    test('a listener that throws loses its link alone', async () => {
      const meshes = (await connectedMeshes(3, plane)) as [Mesh, Mesh, Mesh];
      const closed: unknown[] = [];
      const problem = new Error('no such group');
      meshes[1].listen({
        onHeader: (from) => {
          if (from === 0) throw problem;
          return new Uint8Array(0);
        },
        onPayload: () => undefined,
        onClosed: (from, reason) => closed.push([from, reason]),
      });
      const [listener, last] = listenAll([meshes[0], meshes[2]]) as [RecordingListener, RecordingListener];
      await meshes[0].link(1).send(dataHeader(0, 0), undefined);
      await listener.untilClosed();
      expect(closed).toEqual([[0, problem]]);
      await meshes[2].link(1).send(dataHeader(0, 0), undefined);
      await meshes[1].link(2).send(dataHeader(0, 3), pattern(3, 1));
      await last.untilFrames(1);
    });

    test('a process that computes for long, or is stopped, is not lost; one that is killed is, at once', async () => {
      const { mesh, child } = await meshWithProcess(plane, 'busy');
      const listener = new RecordingListener();
      mesh.listen(listener);
      const link = mesh.link(1);
      await Promise.all([0, 1, 2].map((index) => link.send(dataHeader(index, 100_000), pattern(100_000, index))));
      const end = performance.now() + 1200;
      while (performance.now() < end); // this side too
      await listener.untilFrames(3);
      listener.frames.forEach(({ payload }, index) => expect(Buffer.compare(payload, pattern(100_000, index))).toBe(0));

      child.kill('SIGSTOP');
      const outcomes = Promise.allSettled(
        Array.from({ length: 60 }, (_unused, index) =>
          link.send(dataHeader(index + 3, CHUNK_BYTES), pattern(CHUNK_BYTES, 1)),
        ),
      );
      await pause(300);
      expect(listener.closed).toEqual([]); // deadlines are for silence
      const killedAt = performance.now();
      child.kill('SIGKILL');
      await listener.untilClosed();
      expect(performance.now() - killedAt).toBeLessThan(5000);
      expect(listener.closed).toHaveLength(1);
      expect(listener.closed[0]?.reason).toMatchObject({ code: 'LOCKSTEP_PEER_LOST', context: { ranks: [1] } });
      expect(listener.closed[0]?.reason?.message).toMatch(/^rank 1 is lost: /);
      const last = (await outcomes).at(-1);
      expect(last).toMatchObject({ status: 'rejected', reason: { code: 'LOCKSTEP_PEER_LOST' } });
    });

    test('a process that exits without a goodbye is lost, one that closes has left', async () => {
      const meet = async (how: string): Promise<RecordingListener> => {
        const { mesh } = await meshWithProcess(plane, how);
        const listener = new RecordingListener();
        mesh.listen(listener);
        await mesh.link(1).send(dataHeader(0, 10), pattern(10, 1));
        await listener.untilClosed();
        return listener;
      };
      const [lost, left] = await Promise.all([meet('exit'), meet('close')]);
      expect(lost.closed[0]?.reason).toMatchObject({ code: 'LOCKSTEP_PEER_LOST' });
      expect(left.closed[0]?.reason).toBeUndefined();
      expect(left.frames).toHaveLength(1);
    });

    test('leave no socket, no file, and ports that are free at once', async () => {
      const before = socketFolders();
      const sockets = (): number =>
        process.getActiveResourcesInfo().filter((name) => /TCP|Pipe|Http2/i.test(name)).length;
      const socketsBefore = sockets();
      const endpoints = await Promise.all([0, 1].map((rank) => endpointOf(identityOf(rank, 2), plane)));
      const peers = endpoints.map((endpoint) => endpoint.address);
      const meshes = await Promise.all(endpoints.map((endpoint) => endpoint.connect(peers, 5000)));
      expect(socketFolders()).toEqual(before); // gone as soon as all are connected, so that a killed rank leaves none
      listenAll(meshes);
      await Promise.all(meshes.map((mesh) => mesh.close()));
      for (const { grpc, tcpSocket } of peers) {
        const server = createServer().listen(parseHostPort((grpc ?? tcpSocket) as string));
        await once(server, 'listening');
        server.close();
        await once(server, 'close');
      }
      for (let wait = 0; wait < 100 && sockets() > socketsBefore; wait++) await pause(20);
      expect(sockets()).toBeLessThanOrEqual(socketsBefore);
    });
  });
}
