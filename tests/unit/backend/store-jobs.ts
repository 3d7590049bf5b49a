/** A store on loopback and sessions with it, closed after each test. */
import type { JobIdentity, PeerAddress } from '../../../src/backend/grpc/endpoint';
import { connectStore } from '../../../src/backend/grpc/rendezvous';
import { StoreClient } from '../../../src/backend/grpc/store-client';
import type { StoreConnection } from '../../../src/backend/grpc/store-connection';
import { startStore, type StoreOptions, type StoreServer } from '../../../src/backend/grpc/store-server';
import { Deadline } from '../../../src/core/deadline';
import type { Logger } from '../../../src/core/logger';
import type { Store } from '../../../src/process-group/store';
import { WorldStore } from '../../../src/process-group/world-store';

export const TOKEN = 'the token of this job';

export class StoreJob {
  /** What the store and its clients logged, a line each. */
  readonly lines: string[] = [];
  readonly #closers: (() => Promise<void>)[] = [];

  get logger(): Logger {
    const log = (message: string): void => void this.lines.push(message);
    return { debug: log, info: log, warn: log, error: log };
  }

  async store(worldSize: number, more: Partial<StoreOptions> = {}): Promise<StoreServer> {
    const server = await startStore({
      host: '127.0.0.1',
      port: 0,
      worldSize,
      token: TOKEN,
      logger: this.logger,
      ...more,
    });
    this.#closers.push(() => server.close());
    return server;
  }

  async connect(
    { port }: { readonly port: number },
    identity: Pick<JobIdentity, 'rank' | 'worldSize'> & Partial<JobIdentity>,
    { host = '127.0.0.1', timeoutMs = 5000 } = {},
  ): Promise<StoreConnection> {
    const whole = { generation: 0, token: TOKEN, tls: undefined, ...identity };
    const connection = await connectStore(whole, { host, port }, new Deadline(timeoutMs), this.logger);
    this.#closers.push(() => connection.close());
    return connection;
  }

  /** A store for one rank, and that rank's client. */
  async client(more: Partial<StoreOptions> = {}, timeoutMs = 5000): Promise<Store> {
    const server = await this.store(1, more);
    return storeOver(await this.connect(server, { rank: 0, worldSize: 1 }), 0, timeoutMs);
  }

  async close(): Promise<void> {
    for (const close of this.#closers.splice(0).reverse()) await close();
  }
}

/** The store as the program of a rank sees it. */
export function storeOver(connection: StoreConnection, rank = 0, timeoutMs = 5000): Store {
  return new WorldStore(new StoreClient(connection, { rank, generation: 0, timeoutMs }), rank);
}

export function addressOf(rank: number): PeerAddress {
  return { rank, hostId: 'here', grpc: null, unixSocket: null, tcpSocket: `127.0.0.1:${4000 + rank}` };
}
