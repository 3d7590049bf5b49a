/**
 * Connections that have not proved the job token yet: few at a time, and not for long.
 *
 * When there are too many, the oldest gives way: a rank proves itself within milliseconds, so it is a stranger's, and
 * strangers that sit and wait keep nobody out.
 */
import type { Socket } from 'node:net';
import { systemClock, type Timer } from '../../core/clock';
import type { RefusalLog } from './refusal-log';

/** How long a connection may take to prove the token. */
export const HANDSHAKE_TIMEOUT_MS = 5000;
/** A timer this late was held up by this process's own computing, and so was reading; then it does not count. */
const LATE_MS = 250;

export interface Visitor {
  /** It holds the token; from now on it may stay. */
  prove(): void;
  /** Log why it is turned away. It may still hear why; the deadline ends it if it does not go by itself. */
  refuse(kind: string, message: string): void;
}

export class Gate {
  readonly #log: RefusalLog;
  readonly #maxUnproven: number;
  readonly #timeoutMs: number;
  /** Oldest first. */
  readonly #unproven = new Map<Socket, Visitor>();

  constructor(log: RefusalLog, maxUnproven: number, timeoutMs: number = HANDSHAKE_TIMEOUT_MS) {
    this.#log = log;
    this.#maxUnproven = maxUnproven;
    this.#timeoutMs = timeoutMs;
  }

  /** @param socket just accepted; its errors are handled from here on */
  admit(socket: Socket): Visitor {
    const from = socket.remoteAddress ?? 'this machine';
    let isTold = false;
    let timer: Timer | undefined;
    const settle = (): void => {
      isTold = true;
      timer?.cancel();
      this.#unproven.delete(socket);
    };
    const visitor: Visitor = {
      prove: settle,
      refuse: (kind, message) => {
        if (!isTold) this.#log.note(kind, from, message);
        isTold = true;
      },
    };
    socket.on('error', () => undefined); // 'close' follows
    socket.once('close', () => {
      visitor.refuse(
        'closed',
        'it ended before it proved the job token (a port scan, something else than a rank, or a rank that failed).',
      );
      settle();
    });
    const arm = (): void => {
      const dueMs = systemClock.now() + this.#timeoutMs;
      timer = systemClock.schedule(() => {
        if (systemClock.now() - dueMs > LATE_MS) {
          arm();
          return;
        }
        visitor.refuse('timeout', `it did not prove the job token within ${this.#timeoutMs} ms.`);
        socket.destroy();
      }, this.#timeoutMs);
    };
    arm();
    this.#unproven.set(socket, visitor);
    if (this.#unproven.size > this.#maxUnproven) this.#evictOldest();
    return visitor;
  }

  /** Cut off all that have not proved the token; nothing is logged, the door simply closes. */
  close(): void {
    for (const socket of [...this.#unproven.keys()]) {
      this.#unproven.get(socket)?.prove();
      socket.destroy();
    }
  }

  #evictOldest(): void {
    const [oldest] = this.#unproven;
    if (oldest === undefined) return;
    const [socket, visitor] = oldest;
    visitor.refuse(
      'busy',
      `more than ${this.#maxUnproven} connections at a time have not proved the job token; the oldest are closed.`,
    );
    this.#unproven.delete(socket);
    socket.destroy();
  }
}
