/** An Endpoint over any transport: dial everybody, wait for everybody, then stop listening. */
import { setMaxListeners } from 'node:events';
import { systemClock } from '../../core/clock';
import {
  CollectiveTimeoutError,
  InvalidArgumentError,
  PeerLostError,
  asError,
  isLockstepError,
} from '../../core/errors';
import { withoutFullStop } from '../../core/full-stop';
import type { Logger } from '../../core/logger';
import type { Arrivals } from './arrivals';
import type { Endpoint, JobIdentity, PeerAddress } from './endpoint';
import type { ReceivingHalf, SendingHalf } from './half-link';
import type { Mesh } from './link';
import { PeerLink } from './peer-link';
import { PeerMesh } from './peer-mesh';
import { rankList } from './rank-list';
import type { Transport } from './transport';

/** Between attempts to reach a peer. */
const RETRY_MS = 50;
/** A peer listens before it tells its address; if nobody answers there for this long, its process is gone. */
const GONE_AFTER_MS = 1000;
/** If it answers but every connection ends before it is of use, as between TLS and none, waiting longer is of no use. */
const HOPELESS_AFTER_MS = 5000;

export class PeerEndpoint implements Endpoint {
  readonly #identity: JobIdentity;
  readonly #transport: Transport;
  readonly #arrivals: Arrivals;
  readonly #logger: Logger;
  /** Ends the waiting in connect(), not what is connected. */
  readonly #failed = new AbortController();
  /** Ends attempts to reach peers. */
  readonly #closed = new AbortController();
  /** Why the last attempt to reach a rank failed. */
  readonly #troubles = new Map<number, string>();
  #mesh: PeerMesh | undefined;
  #isConnecting = false;

  constructor(identity: JobIdentity, transport: Transport, arrivals: Arrivals, logger: Logger) {
    this.#identity = identity;
    this.#transport = transport;
    this.#arrivals = arrivals;
    this.#logger = logger;
    setMaxListeners(0, this.#closed.signal); // one per peer that is being dialed
  }

  get address(): PeerAddress {
    return this.#transport.address;
  }

  async connect(peers: readonly PeerAddress[], timeoutMs: number, signal?: AbortSignal): Promise<Mesh> {
    const others = this.#checkPeers(peers);
    const { signal: failed } = this.#failed;
    const dialed = new Set<number>();
    const timer = systemClock.schedule(
      () => this.#failed.abort(this.#timeoutError(others, dialed, timeoutMs)),
      timeoutMs,
      true,
    );
    const onAbort = (): void => this.#failed.abort(signal?.reason);
    if (signal?.aborted === true) onAbort();
    signal?.addEventListener('abort', onAbort, { once: true });
    try {
      const halves = await orAborted(
        failed,
        Promise.all(
          others.map(async (peer) => {
            const [sending, receiving] = await Promise.all([
              this.#awaitArrival(peer.rank),
              this.#dial(peer).then((half) => (dialed.add(peer.rank), half)),
            ]);
            return [peer.rank, sending, receiving] as const;
          }),
        ),
      );
      await this.#transport.stopListening();
      return this.#assemble(halves);
    } finally {
      timer.cancel();
      signal?.removeEventListener('abort', onAbort);
    }
  }

  async close(): Promise<void> {
    const reason = new InvalidArgumentError('the endpoint was closed while it connected.');
    this.#failed.abort(reason);
    this.#closed.abort(reason);
    if (this.#mesh !== undefined) await this.#mesh.close();
    else await this.#transport.close();
  }

  #assemble(halves: readonly (readonly [number, SendingHalf, ReceivingHalf])[]): Mesh {
    const { rank, worldSize } = this.#identity;
    const links = new Map(
      halves.map(([peerRank, sending, receiving]) => [peerRank, new PeerLink(peerRank, sending, receiving)] as const),
    );
    const { dataPlane } = this.#transport;
    this.#mesh = new PeerMesh({ rank, worldSize, dataPlane, links, release: () => this.#transport.close() });
    this.#logger.debug(`rank ${rank} is connected to ${halves.length} peers (data plane ${dataPlane})`);
    return this.#mesh;
  }

  #checkPeers(peers: readonly PeerAddress[]): readonly PeerAddress[] {
    const { rank, worldSize } = this.#identity;
    if (this.#isConnecting) throw new InvalidArgumentError('connect: this endpoint was used already; open another.');
    if (peers.length !== worldSize || peers.some((peer, index) => peer.rank !== index)) {
      throw new InvalidArgumentError(
        `connect: expected the addresses of ranks 0 to ${worldSize - 1} in order, got ${rankList(peers.map((peer) => peer.rank))}.`,
      );
    }
    this.#isConnecting = true;
    return peers.filter((peer) => peer.rank !== rank);
  }

  /** A peer that goes again before everybody has come makes the start fail at once. */
  async #awaitArrival(peerRank: number): Promise<SendingHalf> {
    const half = await this.#arrivals.of(peerRank);
    half.onClosed((why) => {
      if (this.#mesh === undefined) this.#failed.abort(lostPeer(peerRank, `${why} before all ranks were connected`));
    });
    return half;
  }

  async #dial(peer: PeerAddress): Promise<ReceivingHalf> {
    const { signal } = this.#closed;
    const firstMs = systemClock.now();
    for (;;) {
      signal.throwIfAborted();
      try {
        return await this.#transport.dial(peer, signal);
      } catch (error) {
        if (isLockstepError(error)) throw error;
        const { message, code } = asError(error) as NodeJS.ErrnoException;
        this.#troubles.set(peer.rank, withoutFullStop(message));
        const waitedMs = systemClock.now() - firstMs;
        const isNobodyThere = code === 'ECONNREFUSED' || code === 'ENOENT';
        if (isNobodyThere && waitedMs > GONE_AFTER_MS) {
          throw lostPeer(peer.rank, `nobody listens at its address any more (${message})`, error);
        }
        if (waitedMs > HOPELESS_AFTER_MS) {
          throw lostPeer(
            peer.rank,
            `no connection to it lasts (${message}). Give all ranks the same tls, or none`,
            error,
          );
        }
      }
      await new Promise<void>((resolve) => systemClock.schedule(resolve, RETRY_MS, true));
    }
  }

  #timeoutError(
    others: readonly PeerAddress[],
    dialed: ReadonlySet<number>,
    timeoutMs: number,
  ): CollectiveTimeoutError {
    const { rank, worldSize } = this.#identity;
    const missing = others.map((peer) => peer.rank).filter((peer) => !dialed.has(peer) || !this.#arrivals.has(peer));
    const [troubled] = missing.filter((peer) => this.#troubles.has(peer));
    const trouble =
      troubled === undefined ? '' : ` Last attempt to reach rank ${troubled}: ${this.#troubles.get(troubled)}.`;
    return new CollectiveTimeoutError(
      `connect: rank ${rank} of ${worldSize} had no connection to ${rankList(missing)} after ${timeoutMs} ms.${trouble} Their processes are stopped or stuck, or a firewall stands between.`,
      { op: 'connect', rank, ranks: missing },
    );
  }
}

function lostPeer(rank: number, why: string, cause?: unknown): PeerLostError {
  return new PeerLostError(`connect: rank ${rank} is lost: ${withoutFullStop(why)}. See what it says.`, {
    op: 'connect',
    ranks: [rank],
    cause,
  });
}

function orAborted<T>(signal: AbortSignal, work: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const onAbort = (): void => reject(asError(signal.reason));
    if (signal.aborted) onAbort();
    signal.addEventListener('abort', onAbort, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', onAbort));
  });
}
