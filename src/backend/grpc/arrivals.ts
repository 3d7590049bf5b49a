/** Peers that have connected to this rank, and who waits for them. */
import { HandshakeError, type Hello } from './handshake';
import type { SendingHalf } from './half-link';

export class Arrivals {
  readonly #halves = new Map<number, SendingHalf>();
  readonly #waiting = new Map<number, (half: SendingHalf) => void>();

  /** @throws HandshakeError if the rank has a connection already */
  admit(hello: Hello): void {
    if (!this.#halves.has(hello.rank)) return;
    throw new HandshakeError(
      'duplicate',
      `rank ${hello.rank} is connected already. Two processes were started with RANK=${hello.rank}; give each a rank of its own.`,
    );
  }

  /** @param half a connection of a rank that was admitted, in the same turn */
  add(rank: number, half: SendingHalf): void {
    this.#halves.set(rank, half);
    this.#waiting.get(rank)?.(half);
    this.#waiting.delete(rank);
  }

  has(rank: number): boolean {
    return this.#halves.has(rank);
  }

  of(rank: number): Promise<SendingHalf> {
    const half = this.#halves.get(rank);
    if (half !== undefined) return Promise.resolve(half);
    return new Promise((resolve) => this.#waiting.set(rank, resolve));
  }
}
