import type { BackendCapabilities } from '../../src/backend/backend';
import { isFloatDType, type DType } from '../../src/core/dtype';
import { Generator } from '../../src/core/generator';
import { ReduceOp, isBitOp } from '../../src/core/reduce-op';
import { fromWire, type WireError } from '../../src/core/error-wire';
import type { ArgsOf, ProgramName, ResultOf } from './programs';

/** One rank's program has returned or thrown. */
export type RankOutcome<Result> =
  { readonly returned: true; readonly value: Result } | { readonly returned: false; readonly error: WireError };

/** A world of `size` ranks, each of which runs the program. */
export interface WorldRun<Name extends ProgramName> {
  readonly size: number;
  readonly program: Name;
  readonly args: ArgsOf<Name>;
  /** Deadline of the world where a call gives none; default: the backend's own. */
  readonly timeoutMs?: number | undefined;
}

/** All that a backend brings to the conformance suite. */
export interface BackendFactory {
  /** What its backends declare. */
  readonly capabilities: BackendCapabilities;
  /**
   * Make a world, run the program on each rank, close the world, and give what each rank's program did, by rank.
   *
   * A rank whose program throws is lost to the others. Otherwise no rank is closed before all have finished.
   */
  readonly run: <Name extends ProgramName>(run: WorldRun<Name>) => Promise<RankOutcome<ResultOf<Name>>[]>;
  /** Of properties with hundreds of cases, one in so many is tried, chosen by a seed; default 1, all. */
  readonly oneCaseIn?: number | undefined;
  /** World sizes at which properties are tried; default SIZES. */
  readonly sizes?: readonly number[] | undefined;
  /** Time limit of one property, against hangs; for backends whose worlds take long to start. */
  readonly limitMs?: number | undefined;
}

/** Something that holds for every backend. */
export interface Property {
  readonly title: string;
  /** Throws if it does not hold. */
  readonly check: (worlds: Worlds) => Promise<void>;
}

/** World sizes at which properties are tried. */
export const SIZES: readonly number[] = [1, 2, 3, 4, 7];

/** Element counts at which they are tried: around the size of the world, and a prime. */
export function countsFor(size: number): number[] {
  return [...new Set([0, 1, size - 1, size + 1, 31])];
}

/** More than any block or chunk, and a prime. */
export const LARGE_COUNT = 100_003;

/** Runs programs for properties. */
export class Worlds {
  readonly capabilities: BackendCapabilities;
  readonly sizes: readonly number[];
  readonly #factory: BackendFactory;
  readonly #timeoutMs: number | undefined;

  /** @param timeoutMs deadline of worlds where a property gives none */
  constructor(factory: BackendFactory, timeoutMs?: number) {
    this.#factory = factory;
    this.#timeoutMs = timeoutMs;
    this.capabilities = factory.capabilities;
    this.sizes = factory.sizes ?? SIZES;
  }

  withTimeout(timeoutMs: number | undefined): Worlds {
    return timeoutMs === undefined ? this : new Worlds(this.#factory, timeoutMs);
  }

  /** True if the backend reduces this dtype by this op. */
  reduces(dtype: DType, op: ReduceOp): boolean {
    const { dtypes, reduceOps, integerAverage } = this.capabilities;
    const isAveraged = op !== ReduceOp.Average || integerAverage !== false || isFloatDType(dtype);
    return dtypes.includes(dtype) && reduceOps.includes(op) && isAveraged && (!isBitOp(op) || !isFloatDType(dtype));
  }

  /** Those of the cases of one size of world that are tried here, at least one of them. */
  sampleOf<Case>(cases: readonly Case[], size: number): readonly Case[] {
    const { oneCaseIn = 1 } = this.#factory;
    const random = new Generator(size);
    const sample = cases.filter(() => random.nextBelow(oneCaseIn) === 0);
    return sample.length > 0 || cases.length === 0 ? sample : cases.slice(random.nextBelow(cases.length)).slice(0, 1);
  }

  /** What each rank's program did. */
  outcomes<Name extends ProgramName>(
    size: number,
    program: Name,
    args: ArgsOf<Name>,
    timeoutMs?: number,
  ): Promise<RankOutcome<ResultOf<Name>>[]> {
    return this.#factory.run({ size, program, args, timeoutMs: timeoutMs ?? this.#timeoutMs });
  }

  /** What each rank's program returned. @throws if one threw */
  async results<Name extends ProgramName>(
    size: number,
    program: Name,
    args: ArgsOf<Name>,
    timeoutMs?: number,
  ): Promise<ResultOf<Name>[]> {
    const outcomes = await this.outcomes(size, program, args, timeoutMs);
    return outcomes.map((outcome, rank) => {
      if (outcome.returned) return outcome.value;
      const cause = fromWire(outcome.error);
      throw new Error(`${program} on ${size} ranks: rank ${rank} threw ${cause.name}: ${cause.message}`, { cause });
    });
  }
}
