/** Where Lockstep writes what it has to say. `LOCKSTEP_LOG=debug|info|warn|error|silent`, to stderr; warn by default. */
import { environmentVariable } from './environment';

export interface Logger {
  debug(message: string): void;
  info(message: string): void;
  warn(message: string): void;
  error(message: string): void;
}

const LEVELS = ['debug', 'info', 'warn', 'error', 'silent'] as const;
type Level = (typeof LEVELS)[number];

function thresholdFromEnvironment(): number {
  const wanted = environmentVariable('LOCKSTEP_LOG')?.toLowerCase();
  const index = LEVELS.indexOf(wanted as Level);
  return index >= 0 ? index : LEVELS.indexOf('warn');
}

function writeLine(level: Level, message: string): void {
  if (LEVELS.indexOf(level) < thresholdFromEnvironment()) return;
  process.stderr.write(`lockstep ${level}: ${message}\n`);
}

/** Writes a line per message to stderr, from the level that LOCKSTEP_LOG names. */
export const stderrLogger: Logger = {
  debug: (message) => writeLine('debug', message),
  info: (message) => writeLine('info', message),
  warn: (message) => writeLine('warn', message),
  error: (message) => writeLine('error', message),
};
