/** The one file that reads environment variables. Values are read when asked for, never at import. */

/** The variable's value, undefined where it is unset or empty. */
export function environmentVariable(name: string): string | undefined {
  const value = process.env[name];
  return value === undefined || value === '' ? undefined : value;
}
