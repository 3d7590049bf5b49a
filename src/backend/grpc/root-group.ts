/** The group of all ranks, with what lives and ends with it: the links, the store, the process's last words. */
import { stderrLogger, type Logger } from '../../core/logger';
import { GrpcGroup } from './grpc-group';
import { GrpcWorld } from './grpc-world';
import { beforeFatalError } from './last-words';
import type { Mesh } from './link';
import type { StoreClient } from './store-client';

export interface RootGroupOptions {
  /** Told why a group failed, at level 'info'. */
  readonly logger?: Logger | undefined;
  /** Name the caller's source line in errors; default false, as it costs several microseconds a call. */
  readonly callSites?: boolean | undefined;
  /** The world's store; the session behind it is the mesh's to close. */
  readonly store?: StoreClient | undefined;
}

export class RootGroup {
  readonly world: GrpcWorld;
  readonly group: GrpcGroup;
  readonly store: StoreClient | undefined;
  readonly #forgetLastWords: () => void;

  /** @param mesh closed with the group */
  constructor(mesh: Mesh, { logger = stderrLogger, callSites, store }: RootGroupOptions = {}) {
    const world = new GrpcWorld(mesh, logger, callSites);
    const everybody = Array.from({ length: mesh.worldSize }, (_unused, rank) => rank);
    this.world = world;
    this.group = new GrpcGroup(world, 'world', everybody);
    this.store = store;
    this.group.onFailed(({ cause, errorFor }) => {
      store?.endWaits(cause, (op) => errorFor({ op, sequence: undefined, dueMs: Infinity }));
    });
    world.register(this.group);
    world.listen();
    this.#forgetLastWords = beforeFatalError((error) => this.announceLoss(error));
  }

  /**
   * This process is about to end because of `error`: tell all peers, whose groups with this rank end with PeerLostError
   * that carries its message. Waits for nothing; what a link cannot take at once is not said. See last-words.ts.
   */
  announceLoss(error: Error): void {
    this.world.announceLoss(this.group, error);
  }

  /** Answers of the store that are under way may still come; then the links close. Idempotent. @param closeGroups ends all groups */
  async close(closeGroups: () => void): Promise<void> {
    const answered = this.store?.close();
    closeGroups();
    this.#forgetLastWords();
    await answered;
    await this.world.close();
  }
}
