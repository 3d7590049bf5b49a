/** The links of a rank to all others. */
import { InvalidArgumentError } from '../../core/errors';
import { invariant } from '../../core/invariant';
import type { Link, LinkListener, Mesh } from './link';
import type { PeerLink } from './peer-link';

export interface PeerMeshOptions {
  readonly rank: number;
  readonly worldSize: number;
  readonly dataPlane: string;
  /** By rank of the peer; none for `rank` itself. */
  readonly links: ReadonlyMap<number, PeerLink>;
  /** Frees what the links shared, once they are closed. */
  readonly release: () => Promise<void>;
}

export class PeerMesh implements Mesh {
  readonly rank: number;
  readonly worldSize: number;
  readonly dataPlane: string;
  readonly #links: ReadonlyMap<number, PeerLink>;
  readonly #release: () => Promise<void>;
  #isListening = false;
  #closing: Promise<void> | undefined;

  constructor(options: PeerMeshOptions) {
    this.rank = options.rank;
    this.worldSize = options.worldSize;
    this.dataPlane = options.dataPlane;
    this.#links = options.links;
    this.#release = options.release;
  }

  link(peerRank: number): Link {
    const link = this.#links.get(peerRank);
    if (link === undefined) {
      throw new InvalidArgumentError(
        `link: rank ${peerRank} is not another rank of this world of ${this.worldSize} (this is rank ${this.rank}).`,
      );
    }
    return link;
  }

  listen(listener: LinkListener): void {
    invariant(!this.#isListening, 'a mesh was given a second listener');
    this.#isListening = true;
    for (const link of this.#links.values()) link.listen(listener);
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    await Promise.all([...this.#links.values()].map((link) => link.close()));
    await this.#release();
  }
}
