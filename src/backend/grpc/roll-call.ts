/** Asks ranks of a group what they called as a collective, and where they wait: for mismatches and timeouts. */
import { systemClock, type Timer } from '../../core/clock';
import { runDetached } from '../../core/context';
import type { CalledByRank } from '../mismatch';

/** What a rank says of itself. */
export interface Answer {
  /** What it called as the collective in question; null: nothing yet. */
  readonly called: CalledByRank | null;
  /** The call that it is in; null: none. */
  readonly waitsIn: string | null;
}

/** By rank; undefined: it was not asked, or has not answered. */
export type Answers = readonly (Answer | undefined)[];

export interface Question {
  /** Of the collective; null: only where the ranks wait. */
  readonly sequence: number | null;
  /** Who is asked. */
  readonly peers: readonly number[];
  readonly limitMs: number;
}

export interface RollCallHost {
  readonly rank: number;
  readonly size: number;
  ask(peer: number, id: number, sequence: number | null): void;
  /** What this rank itself has to say. */
  answer(sequence: number | null): Answer;
}

interface Pending {
  readonly answers: (Answer | undefined)[];
  readonly timer: Timer;
  readonly onEnd: (answers: Answers) => void;
  numLeft: number;
}

export class RollCalls {
  readonly #host: RollCallHost;
  readonly #pending = new Map<number, Pending>();
  #nextId = 0;

  constructor(host: RollCallHost) {
    this.#host = host;
  }

  /** Ask; `onEnd` gets the answers, this rank's own too, when all are here or after `limitMs`. */
  start({ sequence, peers, limitMs }: Question, onEnd: (answers: Answers) => void): void {
    const { rank, size } = this.#host;
    const id = this.#nextId++;
    const answers = new Array<Answer | undefined>(size).fill(undefined);
    answers[rank] = this.#host.answer(sequence);
    const asked = peers.filter((peer) => peer !== rank);
    const timer = runDetached(() => systemClock.schedule(() => this.#end(id), limitMs));
    this.#pending.set(id, { answers, timer, onEnd, numLeft: asked.length });
    for (const peer of asked) this.#host.ask(peer, id, sequence);
    if (asked.length === 0) this.#end(id);
  }

  answered(peer: number, id: number, answer: Answer): void {
    const pending = this.#pending.get(id);
    if (pending === undefined || pending.answers[peer] !== undefined) return;
    pending.answers[peer] = answer;
    pending.numLeft -= 1;
    if (pending.numLeft === 0) this.#end(id);
  }

  /** Nobody wants to know any more. */
  cancel(): void {
    for (const { timer } of this.#pending.values()) timer.cancel();
    this.#pending.clear();
  }

  #end(id: number): void {
    const pending = this.#pending.get(id);
    if (pending === undefined) return;
    pending.timer.cancel();
    this.#pending.delete(id);
    pending.onEnd(pending.answers);
  }
}
