/** The sending half over a socket that a peer opened, or its TLS form. */
import type { Socket } from 'node:net';
import type { SendingHalf } from './half-link';

export class SocketSender implements SendingHalf {
  readonly #socket: Socket;
  #why = 'its connection closed without a goodbye (the process ended or was killed)';

  /** @param socket has finished its handshake; the peer sends nothing more on it */
  constructor(socket: Socket) {
    this.#socket = socket;
    socket.on('error', (error) => {
      this.#why = `the connection broke (${error.message})`;
    });
    socket.on('data', () => {
      this.#why = 'it sent data on a connection that carries none from it';
      socket.destroy();
    });
  }

  send(header: Uint8Array, payload: Uint8Array | undefined): Promise<void> {
    const socket = this.#socket;
    return new Promise((resolve, reject) => {
      const done = (error?: Error | null): void => (error ? reject(error) : resolve());
      if (payload === undefined || payload.byteLength === 0) {
        socket.write(header, done);
        return;
      }
      // Both in one system call; neither is copied in this process.
      socket.cork();
      socket.write(header);
      socket.write(payload, done);
      socket.uncork();
    });
  }

  /** The kernel delivers what it has taken, also when this process is gone. */
  end(): Promise<void> {
    return new Promise((resolve) => {
      this.#socket.once('close', resolve);
      this.#socket.end(() => resolve());
    });
  }

  destroy(): void {
    this.#socket.destroy();
  }

  onClosed(callback: (why: string) => void): void {
    if (this.#socket.destroyed) queueMicrotask(() => callback(this.#why));
    else this.#socket.once('close', () => callback(this.#why));
  }
}
