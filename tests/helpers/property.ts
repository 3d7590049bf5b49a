import fc from 'fast-check';
import { count } from './counts';

/** Fixed, so that a failure is the same for everybody; fast-check prints it with the smallest failing example. */
const SEED = 20240607;

/** Try `property` on generated values: `runs.short` times in `npm test`, `runs.long` in `npm run test:long`. */
export function holds<Values>(
  name: string,
  property: fc.IProperty<Values>,
  runs: { readonly short: number; readonly long: number } = { short: 200, long: 5000 },
): void {
  fc.assert(property, { seed: SEED, numRuns: count(name, runs.short, runs.long) });
}

/** As `holds`, for a property that awaits. */
export async function holdsAsync<Values>(
  name: string,
  property: fc.IAsyncProperty<Values>,
  runs: { readonly short: number; readonly long: number } = { short: 100, long: 2000 },
): Promise<void> {
  await fc.assert(property, { seed: SEED, numRuns: count(name, runs.short, runs.long) });
}
