import { connect, createServer } from 'node:net';

/** Below the ports that the system hands out by itself, so that no listener of a running job can be given one. */
const FIRST = 15_000;
const LAST = 32_000;

/** Test files run in several processes at once; each begins elsewhere. */
let next = FIRST + ((process.pid * 97) % (LAST - FIRST));

/** True if nobody listens on the port of this machine's loopback. */
export function isFree(port: number, host = '127.0.0.1'): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(false));
    server.listen({ port, host, exclusive: true }, () => server.close(() => resolve(true)));
  });
}

/** True if somebody listens on the port; asks by connecting, which takes the port away from nobody, as isFree may. */
export function isListening(port: number, host = '127.0.0.1'): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ port, host }, () => resolve(true));
    socket.once('error', () => resolve(false)).once('close', () => resolve(false));
    socket.once('connect', () => socket.destroy());
  });
}

/** A port on which nobody listens, a new one at each call. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = next;
    next = next >= LAST ? FIRST : next + 1;
    if (await isFree(port)) return port;
  }
}
