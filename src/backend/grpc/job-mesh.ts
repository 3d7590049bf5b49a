import type { Link, LinkListener, Mesh } from './link';

/** A mesh that, when it closes, also closes what the job opened besides it: the rank's session, rank 0's store. */
export class JobMesh implements Mesh {
  readonly #mesh: Mesh;
  readonly #closeRest: () => Promise<void>;
  #closing: Promise<void> | undefined;

  constructor(mesh: Mesh, closeRest: () => Promise<void>) {
    this.#mesh = mesh;
    this.#closeRest = closeRest;
  }

  get rank(): number {
    return this.#mesh.rank;
  }

  get worldSize(): number {
    return this.#mesh.worldSize;
  }

  get dataPlane(): string {
    return this.#mesh.dataPlane;
  }

  link(peerRank: number): Link {
    return this.#mesh.link(peerRank);
  }

  listen(listener: LinkListener): void {
    this.#mesh.listen(listener);
  }

  close(): Promise<void> {
    return (this.#closing ??= this.#close());
  }

  async #close(): Promise<void> {
    await Promise.all([this.#mesh.close(), this.#closeRest()]);
  }
}
