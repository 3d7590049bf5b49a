/** `lockstep env`: the world that a process started here would join, and who says so. */
import { readWorldSettings } from '../process-group/world-options';
import { badUsage } from './flag-values';
import type { ReadFlags } from './flags';
import type { Terminal } from './rank-output';

export const ENV = 'lockstep env';

/** Of the column of names. */
const WIDTH = 12;

/**
 * Print the settings, one a line; the exit code.
 *
 * @throws InvalidArgumentError naming the variable that is missing or wrong, as World.init would
 */
export function runEnv({ rest }: ReadFlags, { stdout }: Terminal): number {
  if (rest.length > 0) throw badUsage(ENV, `expected no arguments, got '${rest.join(' ')}'`);
  const { token, ...settings } = readWorldSettings(undefined);
  const lines: readonly (readonly [string, string | number | undefined])[] = [
    ['backend', settings.backend],
    ['rank', settings.rank],
    ['worldSize', settings.worldSize],
    ['localRank', settings.localRank],
    ['masterAddr', settings.masterAddr],
    ['masterPort', settings.masterPort],
    ['token', token === undefined ? undefined : 'set (not shown)'],
    ['generation', settings.generation],
    ['dataPlane', settings.dataPlane],
    ['store', settings.store],
    ['timeoutMs', settings.timeoutMs],
  ];
  for (const [name, value] of lines) stdout.write(`${name.padEnd(WIDTH)}${value ?? 'not set'}\n`);
  return 0;
}
