/** Things that a test orders to go wrong; what they are is said at `Fault`. */
import { allocateBuffer, bytesOf, copyBuffer, dtypeOf, type HostBuffer } from '../../core/dtype';
import { Generator } from '../../core/generator';
import type { MockCall } from './mock-call';
import type { Fault } from './mock-options';

/** What a rank that was told to crash fails with. Not an error of Lockstep: it stands for the user's own. */
export class InjectedFaultError extends Error {
  override readonly name = 'InjectedFaultError';
}

export class FaultPlan {
  readonly #faults: readonly Fault[];
  readonly #seed: number;
  /** Calls that each fault has seen of its rank and op. */
  readonly #counts: number[];

  constructor(faults: readonly Fault[], seed: number) {
    this.#faults = faults;
    this.#seed = seed;
    this.#counts = faults.map(() => 0);
  }

  /** The fault that strikes this call, if any. Called once for each call, in order. */
  take(call: MockCall): Fault | undefined {
    let struck: Fault | undefined;
    for (const [index, fault] of this.#faults.entries()) {
      if (fault.rank !== call.owner.globalRank || (fault.op !== undefined && fault.op !== call.op)) continue;
      const count = this.#counts[index] as number;
      this.#counts[index] = count + 1;
      if (count === fault.call) struck ??= fault;
    }
    return struck;
  }

  /** Faults that no call has come to: the test that ordered them has tested something else. */
  get unstruck(): string[] {
    return this.#faults.flatMap((fault, index) => {
      const count = this.#counts[index] as number;
      if (count > fault.call) return [];
      const what = fault.op === undefined ? 'call' : fault.op;
      return [
        `faults[${index}] (${fault.kind} on rank ${fault.rank} at ${what} ${fault.call}): the rank made ${count}`,
      ];
    });
  }

  /** A copy of `buffer` with one bit of one element flipped; which one depends on the seed, the rank and the call. */
  corrupt(buffer: HostBuffer, call: MockCall): HostBuffer {
    const copy = allocateBuffer(dtypeOf(buffer), buffer.length);
    copyBuffer(copy, buffer);
    const bytes = bytesOf(copy);
    if (bytes.length === 0) return copy;
    const generator = new Generator((this.#seed % 2 ** 32) * 2 ** 16 + call.owner.globalRank);
    generator.setState({ ...generator.getState(), position: 2 * call.owner.numCalls });
    const index = generator.nextBelow(bytes.length);
    bytes[index] = (bytes[index] as number) ^ (1 << generator.nextBelow(8));
    return copy;
  }
}
