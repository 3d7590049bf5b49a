import { Client, credentials, type ClientDuplexStream, type ServiceError } from '@grpc/grpc-js';
import { connect, type Socket } from 'node:net';
import type { JobIdentity, PeerAddress } from '../../../src/backend/grpc/endpoint';
import { CHUNK_BYTES, PROTOCOL_VERSION } from '../../../src/backend/grpc/frame';
import { asBuffer, dialGrpc } from '../../../src/backend/grpc/grpc-receiver';
import { createHello, decodeHello, encodeHandshake, type HandshakeClaims } from '../../../src/backend/grpc/handshake';
import { frameHandshake } from '../../../src/backend/grpc/handshake-inbox';
import type { ReceivingHalf } from '../../../src/backend/grpc/half-link';
import { parseHostPort } from '../../../src/backend/grpc/host-address';
import type { Mesh } from '../../../src/backend/grpc/link';
import { peerLinkPath } from '../../../src/backend/grpc/proto';
import { dialSocket } from '../../../src/backend/grpc/socket-receiver';
import {
  RecordingLogger,
  closeAll,
  connectedMeshes,
  dataHeader,
  endpointOf,
  identityOf,
  listenAll,
  pause,
  planes,
  type Plane,
} from '../../helpers/loopback-links';

afterEach(closeAll);

interface Scene {
  /** Of rank 0, where intruders come to. */
  readonly address: PeerAddress;
  readonly logger: RecordingLogger;
}

/**
 * Ranks 0 and 1 of a world of three are connected and wait for rank 2 when the intruder comes; afterwards rank 2 comes,
 * and frames flow between all: what the intruder did disturbed nobody.
 */
async function intrude(
  plane: Plane,
  act: (scene: Scene) => Promise<void>,
  handshakeTimeoutMs?: number,
): Promise<readonly string[]> {
  const logger = new RecordingLogger();
  const endpoints = await Promise.all(
    [0, 1, 2].map((rank) =>
      endpointOf(identityOf(rank, 3), plane, { handshakeTimeoutMs, ...(rank === 0 ? { logger } : {}) }),
    ),
  );
  const peers = endpoints.map((endpoint) => endpoint.address);
  const early = endpoints.slice(0, 2).map((endpoint) => endpoint.connect(peers, 10_000));
  await pause(30);
  await act({ address: peers[0] as PeerAddress, logger });
  await pause(20);
  const meshes = await Promise.all([...early, endpoints[2]?.connect(peers, 5000) as Promise<Mesh>]);
  const listeners = listenAll(meshes);
  for (const mesh of meshes) {
    for (const peer of [0, 1, 2]) {
      if (peer !== mesh.rank) void mesh.link(peer).send(dataHeader(0, 1000), new Uint8Array(1000));
    }
  }
  await Promise.all(listeners.map((listener) => listener.untilFrames(2)));
  expect(listeners.flatMap((listener) => listener.closed)).toEqual([]);
  await Promise.all(meshes.map((mesh) => mesh.close()));
  return logger.warnings;
}

function tcpOf(address: PeerAddress): { readonly host: string; readonly port: number } {
  return parseHostPort((address.grpc ?? address.tcpSocket) as string);
}

function closed(socket: Socket): Promise<void> {
  return new Promise((resolve) => {
    socket.resume().once('close', () => resolve());
  });
}

async function dialRaw(address: PeerAddress, bytes?: Uint8Array): Promise<Socket> {
  const socket = connect(tcpOf(address));
  socket.on('error', () => undefined);
  await new Promise<void>((resolve) => socket.once('connect', () => resolve()));
  if (bytes !== undefined) socket.write(bytes);
  return socket;
}

/** A process that speaks the protocol, with something wrong about it. */
function dialAs(
  plane: Plane,
  address: PeerAddress,
  identity: Partial<JobIdentity & HandshakeClaims>,
): Promise<ReceivingHalf> {
  const { token, ...claimed } = { ...identityOf(2, 3), ...identity };
  const claims = { purpose: 'link', peerRank: 0, ...claimed } as const;
  const options = { tls: undefined, claims, token, signal: new AbortController().signal };
  return plane === 'grpc'
    ? dialGrpc({ ...options, target: address.grpc as string })
    : dialSocket({ ...options, target: tcpOf(address) });
}

/** Says one message where a hello is expected; resolves when the other side has ended the conversation. */
async function sayFirst(plane: Plane, address: PeerAddress, ...messages: Uint8Array[]): Promise<void> {
  if (plane === 'socket') {
    const socket = await dialRaw(address, Buffer.concat(messages.map(frameHandshake)));
    await closed(socket);
    return;
  }
  const client = new Client(address.grpc as string, credentials.createInsecure(), {
    'grpc.use_local_subchannel_pool': 1,
  });
  const stream: ClientDuplexStream<Uint8Array, Uint8Array> = client.makeBidiStreamRequest(
    peerLinkPath(),
    asBuffer,
    (bytes) => bytes,
  );
  await new Promise<void>((resolve) => {
    stream
      .on('error', (_error: ServiceError) => resolve())
      .on('end', resolve)
      .resume();
    for (const message of messages) stream.write(message);
  });
  client.close();
}

describe.each(planes)("data plane '%s'", (plane) => {
  const refusal = /^rank 0 refused a connection from 127\.0\.0\.1: /;

  test('refuses a wrong token, tells both sides, and shows it to nobody', async () => {
    const warnings = await intrude(plane, async ({ address }) => {
      const attempt = dialAs(plane, address, { token: 'a wrong one' });
      await expect(attempt).rejects.toMatchObject({ refusal: 'token' });
      await expect(attempt).rejects.toThrow('do not hold the same job token');
    });
    expect(warnings).toHaveLength(1);
    expect(warnings[0]).toMatch(refusal);
    expect(warnings[0]).toContain('do not hold the same job token');
    expect(warnings[0]).not.toContain('wrong one');
  });

  test.each<[string, Partial<JobIdentity & HandshakeClaims>, string]>([
    [
      'of the previous generation',
      { generation: 9 },
      'rank 2 belongs to a later start of the job (generation 9, this is generation 0)',
    ],
    ['with another world size', { worldSize: 8 }, 'rank 2 was started for a world of 8 ranks, this job has 3'],
    ['with a rank outside the world', { rank: 3 }, 'rank 3 is outside a world of 3 ranks'],
    ['with the rank of another', { rank: 1 }, 'rank 1 is connected already. Two processes were started with RANK=1'],
    ['that looks for somebody else', { peerRank: 1 }, 'rank 2 wanted to reach rank 1 and came to rank 0'],
  ])('refuses a process %s and tells it why', async (_what, identity, message) => {
    const warnings = await intrude(plane, async ({ address }) => {
      if (identity.rank === 1) await pause(200); // the other one came first
      await expect(dialAs(plane, address, identity)).rejects.toThrow(message);
    });
    expect(warnings).toHaveLength(1);
    expect(warnings[0]).toContain(message);
  });

  test('refuses another version of the protocol', async () => {
    const hello = {
      ...createHello({ purpose: 'link', generation: 0, rank: 2, worldSize: 3, peerRank: 0 }),
      version: 99,
    };
    const warnings = await intrude(plane, ({ address }) =>
      sayFirst(plane, address, Buffer.from(JSON.stringify(hello))),
    );
    expect(warnings).toHaveLength(1);
    expect(warnings[0]).toContain(
      `it speaks version 99 of Lockstep's protocol, this process speaks version ${PROTOCOL_VERSION}`,
    );
  });

  test('refuses a hello that is none, and one line tells of many', async () => {
    const warnings = await intrude(plane, async ({ address }) => {
      for (let again = 0; again < 5; again++) await sayFirst(plane, address, Buffer.from('{"type":"hello"}'));
    });
    expect(warnings).toHaveLength(1);
    expect(warnings[0]).toMatch(refusal);
    expect(warnings[0]).toContain("it does not speak Lockstep's handshake");
  });

  test('refuses a replayed hello with a replayed proof', async () => {
    const hello = createHello({ purpose: 'link', generation: 0, rank: 2, worldSize: 3, peerRank: 0 });
    const proof = { type: 'proof', proof: 'A'.repeat(43) } as const; // of another conversation
    const warnings = await intrude(plane, ({ address }) =>
      sayFirst(plane, address, encodeHandshake(decodeHello(encodeHandshake(hello))), encodeHandshake(proof)),
    );
    expect(warnings).toHaveLength(1);
    expect(warnings[0]).toContain('do not hold the same job token');
  });

  test('refuses an oversized hello', async () => {
    const warnings = await intrude(plane, ({ address }) => sayFirst(plane, address, new Uint8Array(5000)), 300);
    expect(warnings).toHaveLength(1);
    if (plane === 'socket') expect(warnings[0]).toContain('a handshake message of 5000 bytes, at most 4096');
    else expect(warnings[0]).toMatch(refusal); // gRPC itself refuses it, unread
  });

  test.each<[string, Uint8Array]>([
    ['HTTP', Buffer.from('GET / HTTP/1.1\r\nHost: x\r\n\r\n')],
    ['zeros', new Uint8Array(100_000)],
    ['noise', Uint8Array.from({ length: 100_000 }, (_unused, index) => (index * 2654435761) >>> 13)],
  ])('refuses garbage (%s)', async (_what, bytes) => {
    const warnings = await intrude(plane, async ({ address }) => closed(await dialRaw(address, bytes)), 300);
    expect(warnings).toHaveLength(1);
    expect(warnings[0]).toMatch(refusal);
  });

  test('shrugs off a port scan', async () => {
    const warnings = await intrude(plane, async ({ address }) => {
      for (let again = 0; again < 5; again++) (await dialRaw(address)).destroy();
      await pause(30);
    });
    expect(warnings).toHaveLength(1);
    expect(warnings[0]).toContain('it ended before it proved the job token (a port scan');
  });

  test('ends a connection that dawdles', async () => {
    const warnings = await intrude(
      plane,
      async ({ address }) => {
        const socket = await dialRaw(address, plane === 'socket' ? new Uint8Array([9]) : Buffer.from('PRI * HT'));
        const from = performance.now();
        await closed(socket);
        expect(performance.now() - from).toBeGreaterThan(100);
      },
      150,
    );
    expect(warnings).toHaveLength(1);
    expect(warnings[0]).toContain('it did not prove the job token within 150 ms');
  });

  test('keeps few strangers at a time, and they keep nobody out', async () => {
    const strangers: Socket[] = [];
    let turnedAway = 0;
    const warnings = await intrude(plane, async ({ address }) => {
      for (let index = 0; index < 90; index++) {
        const stranger = await dialRaw(address);
        strangers.push(stranger.resume().once('close', () => (turnedAway += 1)));
      }
      await pause(50);
      expect(turnedAway).toBe(20);
    });
    expect(warnings).toHaveLength(1);
    expect(warnings[0]).toContain(
      'more than 70 connections at a time have not proved the job token; the oldest are closed',
    );
    for (const socket of strangers) socket.destroy();
  });

  test('has closed the door by the time that all ranks are connected', async () => {
    const endpoints = await Promise.all([0, 1].map((rank) => endpointOf(identityOf(rank, 2), plane)));
    const peers = endpoints.map((endpoint) => endpoint.address);
    await Promise.all(endpoints.map((endpoint) => endpoint.connect(peers, 5000)));
    const socket = connect(tcpOf(peers[0] as PeerAddress));
    const error = await new Promise<NodeJS.ErrnoException>((resolve) => socket.once('error', resolve));
    expect(error.code).toBe('ECONNREFUSED');
  });

  test('cuts a link on which a malformed frame arrives, and no other', async () => {
    const meshes = (await connectedMeshes(3, plane)) as [Mesh, Mesh, Mesh];
    const [listener, , last] = listenAll(meshes);
    const tooLong = { ...dataHeader(0, CHUNK_BYTES + 1), messageBytes: 2 * CHUNK_BYTES };
    await meshes[1].link(0).send(tooLong, undefined);
    await listener?.untilClosed();
    expect(listener?.closed).toHaveLength(1);
    expect(listener?.closed[0]?.reason).toMatchObject({ code: 'LOCKSTEP_PEER_LOST', context: { ranks: [1] } });
    expect(listener?.closed[0]?.reason?.message).toContain(
      `malformed frame: payload of ${CHUNK_BYTES + 1} bytes, at most ${CHUNK_BYTES} are allowed`,
    );
    await meshes[0].link(2).send(dataHeader(0, 0), undefined);
    await last?.untilFrames(1);
  });
});

describe('where a rank may listen', () => {
  test.each(['0.0.0.0', '::', '192.0.2.1'])('%s needs a token or TLS', async (bindAddress) => {
    const open = endpointOf(identityOf(0, 2, { token: undefined }), 'socket', { bindAddress });
    await expect(open).rejects.toMatchObject({ code: 'LOCKSTEP_INVALID_ARGUMENT' });
    await expect(open).rejects.toThrow(
      `data plane: '${bindAddress}' can be reached by other machines, and nothing proves that who connects belongs to the job. Set LOCKSTEP_JOB_TOKEN`,
    );
  });

  test('with a token every address may be bound, and peers are told one that they reach', async () => {
    const { address } = await endpointOf(identityOf(0, 2), 'socket', { bindAddress: '0.0.0.0' });
    expect(address.tcpSocket).not.toContain('0.0.0.0');
    expect(parseHostPort(address.tcpSocket as string).port).toBeGreaterThan(0);
  });

  test.each(['127.0.0.1', 'localhost', undefined])('%s needs neither', async (bindAddress) => {
    const { address } = await endpointOf(identityOf(0, 1, { token: undefined }), 'socket', { bindAddress });
    expect(address.tcpSocket).toMatch(/^(127\.0\.0\.1|\[::1\]):\d+$/);
  });

  test('an address of another machine is refused with what is wrong', async () => {
    const open = endpointOf(identityOf(0, 2), 'socket', { bindAddress: '192.0.2.1' });
    await expect(open).rejects.toMatchObject({ code: 'LOCKSTEP_UNAVAILABLE' });
    await expect(open).rejects.toThrow('cannot listen at 192.0.2.1');
  });

  test("the data plane 'native' is not there, and says so; 'auto' says what it chose and why", async () => {
    await expect(endpointOf(identityOf(0, 1), 'native' as Plane)).rejects.toMatchObject({
      code: 'LOCKSTEP_UNAVAILABLE',
    });
    const logger = new RecordingLogger();
    await endpointOf(identityOf(0, 1), 'auto' as Plane, { logger });
    expect(logger.infos[0]).toMatch(
      /^rank 0: data plane 'socket' at 127\.0\.0\.1:\d+: the fastest one here: Unix sockets/,
    );
  });
});
