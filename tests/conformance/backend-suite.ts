/**
 * The rules of a backend, as tests. A new backend brings a factory and, where it cannot keep a rule, a gap:
 *
 *     describeBackend('grpc', grpcFactory, [{ test: 'title of the property', reason: 'why' }]);
 *
 * A property is a title and a check over worlds of ranks (property.ts); what the ranks do is in programs/, by name, so
 * that ranks may be processes.
 */
import { failureProperties } from './properties/failures';
import { groupProperties } from './properties/groups';
import { inFlightProperties } from './properties/in-flight';
import { knownReductionProperties } from './properties/known-reductions';
import { mistakeProperties } from './properties/mistakes';
import { movementProperties } from './properties/movement';
import { nanReductionProperties } from './properties/nan-reductions';
import { pointToPointProperties } from './properties/point-to-point';
import { reductionProperties } from './properties/reductions';
import { type BackendFactory, type Property, Worlds } from './property';

/** A property that a backend does not keep, and why. */
export interface Gap {
  readonly test: string;
  readonly reason: string;
  /** Deadline of its worlds, where it fails because ranks wait for each other; default: as without the gap. */
  readonly timeoutMs?: number;
}

export const suite: Readonly<Record<string, readonly Property[]>> = {
  reductions: [...reductionProperties, ...knownReductionProperties, ...nanReductionProperties],
  'data movement': movementProperties,
  'point to point': pointToPointProperties,
  groups: groupProperties,
  'calls in flight': inFlightProperties,
  mistakes: mistakeProperties,
  failures: failureProperties,
};

/** Check the property; one that is listed as a gap must fail. */
export async function checkWithGaps(property: Property, worlds: Worlds, gaps: readonly Gap[]): Promise<void> {
  const gap = gaps.find(({ test }) => test === property.title);
  if (gap === undefined) return property.check(worlds);
  const isKept = await property.check(worlds.withTimeout(gap.timeoutMs)).then(
    () => true,
    () => false,
  );
  if (isKept) throw new Error(`this gap is stale, the property holds now: ${gap.test} (${gap.reason})`);
}

/** Titles of gaps that no property has. */
export function unknownGaps(properties: readonly Property[], gaps: readonly Gap[]): string[] {
  const titles = new Set(properties.map(({ title }) => title));
  return gaps.map(({ test }) => test).filter((test) => !titles.has(test));
}

/** Hold a backend to all properties. */
export function describeBackend(name: string, factory: BackendFactory, gaps: readonly Gap[] = []): void {
  const worlds = new Worlds(factory);
  describe(`${name} backend`, () => {
    describe.each(Object.entries(suite))('%s', (_area, properties) => {
      for (const property of properties) {
        test(property.title, () => checkWithGaps(property, worlds, gaps), factory.limitMs);
      }
    });

    test('every gap names a property', () => {
      expect(unknownGaps(Object.values(suite).flat(), gaps)).toEqual([]);
    });
  });
}
