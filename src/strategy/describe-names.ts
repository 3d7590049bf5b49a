/** For messages: at most three parameter names, and how many more there are. */
export function describeNames(names: readonly string[]): string {
  const shown = names.slice(0, 3).map((name) => `'${name}'`);
  const more = names.length > 3 ? ` and ${names.length - 3} more` : '';
  return `parameter${names.length === 1 ? '' : 's'} ${shown.join(', ')}${more}`;
}
