/** Endpoints and meshes on the loopback of this machine, and what happens on them, for tests. */
import type { Logger } from '../../src/core/logger';
import { openEndpoint, type DataPlaneOptions } from '../../src/backend/grpc/data-plane';
import type { Endpoint, JobIdentity } from '../../src/backend/grpc/endpoint';
import { FrameKind, type FrameHeader } from '../../src/backend/grpc/frame';
import type { LinkListener, Mesh } from '../../src/backend/grpc/link';

export type Plane = 'socket' | 'grpc';
export const planes: readonly Plane[] = ['socket', 'grpc'];

/** Keeps warnings; the rest is thrown away. */
export class RecordingLogger implements Logger {
  readonly warnings: string[] = [];
  readonly infos: string[] = [];
  debug(): void {}
  info(message: string): void {
    this.infos.push(message);
  }
  warn(message: string): void {
    this.warnings.push(message);
  }
  error(message: string): void {
    this.warnings.push(message);
  }
}

const open = new Set<{ close(): Promise<void> }>();

/** Close whatever this test file has left open; for afterEach. */
export async function closeAll(): Promise<void> {
  await Promise.all([...open].map((each) => each.close()));
  open.clear();
}

export function identityOf(rank: number, worldSize: number, more: Partial<JobIdentity> = {}): JobIdentity {
  return { rank, worldSize, generation: 0, token: 'the token of this test', tls: undefined, ...more };
}

export async function endpointOf(
  identity: JobIdentity,
  dataPlane: Plane,
  more: Partial<DataPlaneOptions> = {},
): Promise<Endpoint> {
  const endpoint = await openEndpoint(identity, { dataPlane, logger: new RecordingLogger(), ...more });
  open.add(endpoint);
  return endpoint;
}

/** A connected world, all ranks in this process. */
export async function connectedMeshes(size: number, plane: Plane, more: Partial<JobIdentity> = {}): Promise<Mesh[]> {
  const endpoints = await Promise.all(
    Array.from({ length: size }, (_unused, rank) => endpointOf(identityOf(rank, size, more), plane)),
  );
  const peers = endpoints.map((endpoint) => endpoint.address);
  return Promise.all(endpoints.map((endpoint) => endpoint.connect(peers, 5000)));
}

export function dataHeader(message: number, payloadBytes: number): FrameHeader {
  return {
    kind: FrameKind.Data,
    isPointToPoint: false,
    groupHigh: 1,
    groupLow: 2,
    call: 3,
    message,
    fingerprintHigh: 4,
    fingerprintLow: 5,
    messageBytes: payloadBytes,
    payloadBytes,
  };
}

export interface Received {
  readonly from: number;
  readonly header: FrameHeader;
  readonly payload: Uint8Array;
}

/** Keeps all frames and endings, and lets tests wait for them. */
export class RecordingListener implements LinkListener {
  readonly frames: Received[] = [];
  readonly closed: { readonly from: number; readonly reason: Error | undefined }[] = [];
  readonly #targets = new Map<number, Uint8Array>();
  readonly #waiting: { readonly isMet: () => boolean; readonly resolve: () => void }[] = [];

  onHeader(from: number, header: FrameHeader): Uint8Array {
    const target = new Uint8Array(header.payloadBytes);
    this.#targets.set(from, target);
    return target;
  }

  onPayload(from: number, header: FrameHeader): void {
    this.frames.push({ from, header, payload: this.#targets.get(from) as Uint8Array });
    this.#check();
  }

  onClosed(from: number, reason: Error | undefined): void {
    this.closed.push({ from, reason });
    this.#check();
  }

  untilFrames(count: number): Promise<void> {
    return this.#until(() => this.frames.length >= count);
  }

  untilClosed(count = 1): Promise<void> {
    return this.#until(() => this.closed.length >= count);
  }

  #until(isMet: () => boolean): Promise<void> {
    return new Promise((resolve) => {
      this.#waiting.push({ isMet, resolve });
      this.#check();
    });
  }

  #check(): void {
    for (const { isMet, resolve } of this.#waiting) if (isMet()) resolve();
  }
}

/** A listener on every mesh. */
export function listenAll(meshes: readonly Mesh[]): RecordingListener[] {
  return meshes.map((mesh) => {
    const listener = new RecordingListener();
    mesh.listen(listener);
    return listener;
  });
}

export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
