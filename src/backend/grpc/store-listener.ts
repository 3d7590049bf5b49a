/** The listening sockets of the store: several addresses, one port. */
import { createServer, type Server, type Socket } from 'node:net';
import { BackendUnavailableError, asError } from '../../core/errors';
import { hostPort } from './host-address';

export interface StoreListener {
  readonly addresses: readonly string[];
  readonly port: number;
  /** Connections that are open now. */
  readonly sockets: ReadonlySet<Socket>;
  /** Take no more connections, and free the port; open connections are left alone. */
  stop(): void;
  /** Settles once every connection has ended; stops first. */
  close(): Promise<void>;
}

/**
 * @param port 0 for a free one
 * @throws BackendUnavailableError if the port is taken, or none of the addresses is this machine's
 */
export async function listenForStore(
  addresses: readonly string[],
  port: number,
  onConnection: (socket: Socket) => void,
): Promise<StoreListener> {
  const sockets = new Set<Socket>();
  const servers: Server[] = [];
  const bound: string[] = [];
  const absent: Error[] = [];
  let closing: Promise<unknown> | undefined;
  const close = async (): Promise<void> => {
    await (closing ??= Promise.all(servers.map(closeServer)));
  };
  let chosenPort = port;
  for (const address of addresses) {
    const server = createServer((socket) => {
      sockets.add(socket);
      socket.once('close', () => sockets.delete(socket));
      socket.on('error', () => undefined); // its close is what counts
      socket.setNoDelay(true);
      onConnection(socket);
    });
    try {
      chosenPort = await listen(server, address, chosenPort);
      servers.push(server);
      bound.push(address);
    } catch (thrown) {
      const error = asError(thrown) as NodeJS.ErrnoException;
      // As the IPv6 half of 'localhost' on a machine without it.
      if (error.code === 'EADDRNOTAVAIL' || error.code === 'EAFNOSUPPORT') {
        absent.push(error);
        continue;
      }
      await close();
      throw cannotListen(address, port, error);
    }
  }
  if (servers.length === 0) throw cannotListen(addresses[0] ?? '', port, absent[0] as NodeJS.ErrnoException);
  return { addresses: bound, port: chosenPort, sockets, stop: () => void close(), close };
}

function listen(server: Server, host: string, port: number): Promise<number> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen({ host, port, ipv6Only: true }, () => {
      server.removeListener('error', reject);
      server.on('error', () => undefined); // accept() failed, as for want of file descriptors: the client sees it
      resolve((server.address() as { readonly port: number }).port);
    });
  });
}

function closeServer(server: Server): Promise<void> {
  return new Promise((resolve) => {
    server.close(() => resolve());
  });
}

function cannotListen(address: string, port: number, error: NodeJS.ErrnoException): BackendUnavailableError {
  const place = hostPort(address, port);
  const advice =
    error.code === 'EADDRINUSE'
      ? `Another process uses the port: another rank 0 (a second process with RANK=0, or one of an earlier start that still runs), 'lockstep store' (then set LOCKSTEP_STORE=external), or another job (then choose another MASTER_PORT, the same on all ranks).`
      : error.code === 'EACCES'
        ? `Ports below 1024 need privileges. Choose a MASTER_PORT above.`
        : `MASTER_ADDR (of lockstep store: --host) must be an address of this machine.`;
  return new BackendUnavailableError(`store: cannot listen at ${place}: ${error.message}. ${advice}`, {
    cause: error,
  });
}
