/** The one file that reads environment variables. Values are read when asked for, never at import. */

/** The variable's value, undefined where it is unset or empty. */
export function environmentVariable(name: string): string | undefined {
  const value = process.env[name];
  return value === undefined || value === '' ? undefined : value;
}

/** This process's environment for a child process, with `variables` set. */
export function environmentWith(variables: Readonly<Record<string, string>>): Record<string, string | undefined> {
  return { ...process.env, ...variables };
}
