import { connect as connectTls } from 'node:tls';
import { connect as connectPlain, type Socket } from 'node:net';
import type { Endpoint, PeerAddress, TlsOptions } from '../../../src/backend/grpc/endpoint';
import { CHUNK_BYTES } from '../../../src/backend/grpc/frame';
import { parseHostPort } from '../../../src/backend/grpc/host-address';
import type { Link } from '../../../src/backend/grpc/link';
import { CertificateAuthority, validity } from '../../helpers/certificates';
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

const authority = new CertificateAuthority('the authority of this test');
const stranger = new CertificateAuthority('another authority');

afterEach(closeAll);

function portOf({ address }: Endpoint): { readonly host: string; readonly port: number } {
  return parseHostPort((address.grpc ?? address.tcpSocket) as string);
}

function closed(socket: Socket): Promise<void> {
  return new Promise((resolve) => socket.once('close', () => resolve()));
}

/** Two endpoints that try to connect, and what each says. */
async function attempt(
  plane: Plane,
  tls: readonly (TlsOptions | undefined)[],
  timeoutMs = 10_000,
): Promise<{ errors: Error[]; warnings: string[] }> {
  const loggers = tls.map(() => new RecordingLogger());
  const endpoints = await Promise.all(
    tls.map((options, rank) =>
      endpointOf(identityOf(rank, tls.length, { tls: options }), plane, {
        logger: loggers[rank],
        handshakeTimeoutMs: 500,
      }),
    ),
  );
  const peers: PeerAddress[] = endpoints.map((endpoint) => endpoint.address);
  const giveUp = new AbortController();
  const connects = endpoints.map((endpoint) => endpoint.connect(peers, timeoutMs, giveUp.signal));
  // One may have to wait for what the other does not even try; a connection would be there by then.
  await Promise.race(connects.map((connect) => connect.catch(() => pause(300))));
  giveUp.abort(new Error('the test has seen enough'));
  const outcomes = await Promise.allSettled(connects);
  return {
    errors: outcomes.flatMap((outcome) => (outcome.status === 'rejected' ? [outcome.reason as Error] : [])),
    warnings: loggers.flatMap((logger) => logger.warnings),
  };
}

describe.each(planes)("TLS on data plane '%s'", (plane) => {
  test('carries frames, and there is no way around it', async () => {
    const meshes = await connectedMeshes(2, plane, { tls: authority.issue('a rank') });
    const [listener, other] = listenAll(meshes);
    const payload = new Uint8Array(CHUNK_BYTES).map((_unused, index) => index);
    const link = meshes[0]?.link(1) as Link;
    await Promise.all([0, 1, 2, 3].map((index) => link.send(dataHeader(index, CHUNK_BYTES), payload)));
    await other?.untilFrames(4);
    for (const frame of other?.frames ?? []) expect(Buffer.compare(frame.payload, payload)).toBe(0);
    await Promise.all(meshes.map((mesh) => mesh.close()));
    expect(listener?.closed).toEqual([{ from: 1, reason: undefined }]);
    expect(other?.closed).toEqual([{ from: 0, reason: undefined }]);
  });

  test('needs no token', async () => {
    const [mesh] = await connectedMeshes(2, plane, { tls: authority.issue('a rank'), token: undefined });
    expect(mesh?.worldSize).toBe(2);
  });

  test('offers no Unix socket', async () => {
    const endpoint = await endpointOf(identityOf(0, 1, { tls: authority.issue('a rank') }), plane);
    expect(endpoint.address.unixSocket).toBeNull();
  });

  test.each<[string, () => TlsOptions]>([
    ['another authority', () => stranger.issue('a rank')],
    ['the right authority but an expired date', () => authority.issue('a rank', validity(-30))],
    [
      'the right authority for others, and a certificate of its own making',
      () => ({ ...stranger.issue('a rank'), ca: authority.certificate }),
    ],
  ])('refuses a rank with a certificate of %s', async (_what, issue) => {
    const { errors } = await attempt(plane, [authority.issue('rank 0'), issue()]);
    expect(errors).toHaveLength(2);
    const messages = errors.map((error) => error.message).join('\n');
    expect(messages).toMatch(/TLS failed: .*(certificate|alert|self)/i);
    expect(messages).toContain('Check tls.ca, tls.cert and tls.key');
  });

  test('does not talk to a rank without TLS', async () => {
    const { errors } = await attempt(plane, [authority.issue('rank 0'), undefined], 1000);
    expect(errors.length).toBeGreaterThan(0);
  });

  test('a stranger without a certificate, or without TLS, gets no byte of the protocol', async () => {
    const logger = new RecordingLogger();
    const endpoint = await endpointOf(identityOf(0, 2, { tls: authority.issue('rank 0') }), plane, { logger });
    const ends: Buffer[] = [];
    const withoutCertificate = connectTls({ ...portOf(endpoint), ca: authority.certificate });
    withoutCertificate.on('data', (bytes) => ends.push(bytes)).on('error', () => undefined);
    await closed(withoutCertificate);
    const plain = connectPlain(portOf(endpoint));
    plain.on('error', () => undefined).write('GET / HTTP/1.0\r\n\r\n');
    await closed(plain.resume());
    // HTTP/2 says its settings before the certificate is missed; they are no secret.
    expect(Buffer.concat(ends).toString('latin1')).not.toMatch(/lockstep|challenge/);
    expect(logger.warnings.length).toBeGreaterThan(0);
    expect(logger.warnings[0]).toContain('rank 0 refused a connection from 127.0.0.1');
  });
});
