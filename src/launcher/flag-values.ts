/** The values of flags, checked by zod; a message names the flag, what was expected and what came. */
import { z } from 'zod';
import { InvalidArgumentError } from '../core/errors';
import type { ReadFlags } from './flags';

export const LARGEST_PORT = 65_535;
export const MOST_RANKS = 4096;

/** A flag that may be left out, whose value is a whole number. */
export function wholeNumber(least: number, most: number = Number.MAX_SAFE_INTEGER): z.ZodType<number | undefined> {
  const range = most === Number.MAX_SAFE_INTEGER ? `from ${least}` : `from ${least} to ${most}`;
  return z
    .string()
    .refine(
      (text) => /^\d+$/.test(text) && Number(text) >= least && Number(text) <= most,
      `expected a whole number ${range}`,
    )
    .transform(Number)
    .optional();
}

/** 'a, b or c'. */
export function anyOf(names: readonly string[]): string {
  return names.join(', ').replace(/, ([^,]*)$/, ' or $1');
}

/** @throws InvalidArgumentError naming each flag that is wrong */
export function checkFlags<S extends z.ZodType>(schema: S, values: ReadFlags['values'], command: string): z.output<S> {
  const result = schema.safeParse(values);
  if (result.success) return result.data;
  const problems = result.error.issues.map(({ path, message }) => {
    const name = String(path[0]);
    return name in values ? `--${name}: ${message}, got '${values[name]}'` : `--${name} is missing`;
  });
  throw badUsage(command, problems.join('; '));
}

export function badUsage(command: string, what: string): InvalidArgumentError {
  return new InvalidArgumentError(`${command}: ${what}. See ${command} --help.`);
}
