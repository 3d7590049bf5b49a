/** True under `npm run test:long`: every property then runs with its full count. */
export const isLong: boolean = process.env['LOCKSTEP_TEST_LONG'] === '1';

const printed = new Set<string>();

/**
 * How often a property is tried: `short` in `npm test`, `long` in `npm run test:long`.
 * Prints the choice once per name, so that a reduced count is seen and not forgotten.
 */
export function count(name: string, short: number, long: number): number {
  const chosen = isLong ? long : short;
  if (!printed.has(name)) {
    printed.add(name);
    process.stdout.write(`[count] ${name}: ${chosen}${isLong ? '' : ` (long run: ${long})`}\n`);
  }
  return chosen;
}
