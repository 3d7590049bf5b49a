/** What this rank called last in a group, for ranks that ask, and for frames that come late. */
import { describeCollective, type CollectiveCall } from '../call';
import type { CallSite } from '../../core/call-site';
import type { CalledByRank } from '../mismatch';
import type { Words } from './fingerprint';

interface Entry {
  readonly sequence: number;
  readonly call: CollectiveCall;
  readonly fingerprint: Words;
  readonly callSite: CallSite | undefined;
}

/** A rank that asks is in the same call, or a few behind. */
const NUM_KEPT = 256;

export class CallHistory {
  readonly #entries: Entry[] = [];
  #next = 0;

  /** The sequence number of the next collective. */
  get next(): number {
    return this.#next;
  }

  /** Returns the call's sequence number. */
  add(call: CollectiveCall, fingerprint: Words, callSite?: CallSite): number {
    const sequence = this.#next++;
    this.#entries[sequence % NUM_KEPT] = { sequence, call, fingerprint, callSite };
    return sequence;
  }

  /** True if the collective was called with another fingerprint, as far as is remembered. */
  isOther(sequence: number, { high, low }: Words): boolean {
    const entry = this.#entries[sequence % NUM_KEPT];
    if (entry?.sequence !== sequence) return false;
    return entry.fingerprint.high !== high || entry.fingerprint.low !== low;
  }

  /** What was called, in words; null if nothing yet. */
  describe(sequence: number): CalledByRank | null {
    if (sequence >= this.#next) return null;
    const entry = this.#entries[sequence % NUM_KEPT];
    if (entry?.sequence !== sequence) return { description: 'a call that it has finished long ago' };
    return { description: describeCollective(entry.call), sourceLine: entry.callSite?.sourceLine };
  }
}
