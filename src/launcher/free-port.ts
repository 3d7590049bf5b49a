import { randomInt } from 'node:crypto';
import { createServer } from 'node:net';
import { BackendUnavailableError } from '../core/errors';

/**
 * Below every system's range of ephemeral ports (Linux starts at 32768), so that no outgoing connection takes the port
 * between our look at it and rank 0's bind.
 */
const FIRST_PORT = 20_000;
const LAST_PORT = 32_767;
const TRIES = 50;

/** A TCP port on which nobody listens, on any local address. @throws BackendUnavailableError if none is found */
export async function freePort(): Promise<number> {
  for (let attempt = 0; attempt < TRIES; attempt++) {
    const port = randomInt(FIRST_PORT, LAST_PORT + 1);
    if (await isFree(port)) return port;
  }
  throw new BackendUnavailableError(
    `found no free port from ${FIRST_PORT} to ${LAST_PORT} in ${TRIES} tries. Name one with --master-port.`,
  );
}

function isFree(port: number): Promise<boolean> {
  return new Promise((settle) => {
    const server = createServer();
    server.once('error', () => settle(false));
    server.listen({ port, exclusive: true }, () => server.close(() => settle(true)));
  });
}
