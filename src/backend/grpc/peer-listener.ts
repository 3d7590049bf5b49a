/** Listening TCP socket of a data plane. */
import { createServer, type Server, type Socket } from 'node:net';
import { BackendUnavailableError, asError } from '../../core/errors';

/** When the kernel asks whether a silent machine is still there; costs a live one nothing. */
export const KEEP_ALIVE_MS = 60_000;

export interface PeerListener {
  /** 'host' and port that were bound. */
  readonly host: string;
  readonly port: number;
  /** Idempotent; open connections are left alone. */
  stop(): Promise<void>;
}

/**
 * @param bindAddresses the first that can be bound is used
 * @throws BackendUnavailableError if none can
 */
export async function listenForPeers(
  bindAddresses: readonly string[],
  onSocket: (socket: Socket) => void,
): Promise<PeerListener> {
  let failure: Error | undefined;
  for (const host of bindAddresses) {
    const server = peerServer(onSocket);
    try {
      await listen(server, { host, port: 0 });
    } catch (error) {
      failure = asError(error);
      continue;
    }
    const { port } = server.address() as { readonly port: number };
    return { host, port, stop: stopOnce(server) };
  }
  throw new BackendUnavailableError(
    `data plane: cannot listen at ${bindAddresses.join(' or ')}: ${failure?.message ?? 'no address was given'}. It must be an address of this machine.`,
    { cause: failure },
  );
}

/** The same at a path of the file system, which goes away with the listener. */
export async function listenAtPath(path: string, onSocket: (socket: Socket) => void): Promise<() => Promise<void>> {
  const server = peerServer(onSocket);
  await listen(server, { path });
  return stopOnce(server);
}

function peerServer(onSocket: (socket: Socket) => void): Server {
  return createServer({ noDelay: true, keepAlive: true, keepAliveInitialDelay: KEEP_ALIVE_MS }, onSocket);
}

function listen(
  server: Server,
  options: { readonly host?: string; readonly port?: number; readonly path?: string },
): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(options, () => {
      server.removeListener('error', reject);
      server.on('error', () => undefined); // accept() failed, as for want of file descriptors: the client sees it
      resolve();
    });
  });
}

/** Settles at once: close()'s callback waits for the connections, and the port is free before. */
function stopOnce(server: Server): () => Promise<void> {
  return async () => {
    if (server.listening) server.close();
  };
}
