/** Worlds of GrpcBackends over links in memory, with a count of what each link carries. */
import { GrpcBackend, type GrpcBackendOptions } from '../../src/backend/grpc/grpc-backend';
import { FrameKind, type FrameHeader } from '../../src/backend/grpc/frame';
import type { Link, LinkListener, Mesh } from '../../src/backend/grpc/link';
import type { Logger } from '../../src/core/logger';
import { createMemoryMeshes, type MemoryMesh } from './memory-mesh';

const SILENT: Logger = { debug: () => undefined, info: () => undefined, warn: () => undefined, error: () => undefined };

/** What one rank has sent. */
export interface Traffic {
  dataBytes: number;
  /** The most frames that one link had taken and not yet handed on. */
  maxInFlight: number;
}

class CountingLink implements Link {
  readonly peerRank: number;
  readonly #link: Link;
  readonly #traffic: Traffic;
  #inFlight = 0;

  constructor(link: Link, traffic: Traffic) {
    this.#link = link;
    this.#traffic = traffic;
    this.peerRank = link.peerRank;
  }

  async send(header: FrameHeader, payload: Uint8Array | undefined): Promise<void> {
    if (header.kind === FrameKind.Data) this.#traffic.dataBytes += header.payloadBytes;
    this.#inFlight += 1;
    this.#traffic.maxInFlight = Math.max(this.#traffic.maxInFlight, this.#inFlight);
    try {
      await this.#link.send(header, payload);
    } finally {
      this.#inFlight -= 1;
    }
  }

  close(): Promise<void> {
    return this.#link.close();
  }

  destroy(reason: Error): void {
    this.#link.destroy(reason);
  }
}

class CountingMesh implements Mesh {
  readonly rank: number;
  readonly worldSize: number;
  readonly dataPlane: string;
  readonly traffic: Traffic = { dataBytes: 0, maxInFlight: 0 };
  readonly #mesh: MemoryMesh;

  constructor(mesh: MemoryMesh) {
    this.#mesh = mesh;
    this.rank = mesh.rank;
    this.worldSize = mesh.worldSize;
    this.dataPlane = mesh.dataPlane;
  }

  link(peerRank: number): Link {
    return new CountingLink(this.#mesh.link(peerRank), this.traffic);
  }

  listen(listener: LinkListener): void {
    this.#mesh.listen(listener);
  }

  close(): Promise<void> {
    return this.#mesh.close();
  }
}

export interface GrpcRank {
  readonly backend: GrpcBackend;
  readonly mesh: MemoryMesh;
  readonly traffic: Traffic;
}

/** Make a world, give it to `test`, and close it. */
export async function withGrpcWorld(
  size: number,
  test: (ranks: readonly GrpcRank[]) => Promise<void>,
  options: GrpcBackendOptions & { readonly seed?: number } = {},
): Promise<void> {
  const { seed, ...backendOptions } = options;
  const ranks = createMemoryMeshes(size, seed).map((mesh): GrpcRank => {
    const counting = new CountingMesh(mesh);
    const backend = GrpcBackend.over(counting, { timeoutMs: 10_000, logger: SILENT, ...backendOptions });
    return { backend, mesh, traffic: counting.traffic };
  });
  try {
    await test(ranks);
  } finally {
    await Promise.all(ranks.map(({ backend }) => backend.close()));
  }
}
