/** The links of a job's processes for a backend whose data travels elsewhere. */
import type { ControlPlane } from '../control-plane';
import { exchangeBytes } from './byte-exchange';
import { GrpcControlGroup } from './control-group';
import type { Mesh } from './link';
import { RootGroup, type RootGroupOptions } from './root-group';
import type { StoreClient } from './store-client';

export class GrpcControlPlane implements ControlPlane {
  readonly root: GrpcControlGroup;
  readonly #root: RootGroup;

  private constructor(root: RootGroup) {
    this.#root = root;
    this.root = new GrpcControlGroup(root.world, root.group);
  }

  /** The world that the mesh connects. Closing the plane closes the mesh. */
  static over(mesh: Mesh, options?: RootGroupOptions): GrpcControlPlane {
    return new GrpcControlPlane(new RootGroup(mesh, options));
  }

  get rank(): number {
    return this.#root.world.rank;
  }

  get worldSize(): number {
    return this.#root.world.worldSize;
  }

  get store(): StoreClient | undefined {
    return this.#root.store;
  }

  get hasCallSites(): boolean {
    return this.#root.world.hasCallSites;
  }

  exchange(bytes: Uint8Array, timeoutMs: number): Promise<Uint8Array[]> {
    return exchangeBytes(this.#root.group, bytes, timeoutMs);
  }

  /** As of `RootGroup`: tell all peers that this process is about to end because of `error`. */
  announceLoss(error: Error): void {
    this.#root.announceLoss(error);
  }

  close(): Promise<void> {
    return this.#root.close(() => this.root.close());
  }
}
