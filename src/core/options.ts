import { z } from 'zod';
import { InvalidArgumentError } from './errors';

/**
 * Options as a caller gave them, checked and with defaults filled in.
 *
 * @param what names the call in the message, as `MockBackend.createWorld`
 * @throws InvalidArgumentError that lists every wrong path, what was expected there, and unknown keys
 */
export function parseOptions<S extends z.ZodType>(schema: S, value: unknown, what: string): z.output<S> {
  const result = schema.safeParse(value ?? {});
  if (result.success) return result.data;
  const problems = result.error.issues.map((issue) => {
    const path = issue.path.length === 0 ? 'options' : `options.${issue.path.map(String).join('.')}`;
    return issue.code === 'unrecognized_keys'
      ? `${path}: unknown key${issue.keys.length > 1 ? 's' : ''} ${issue.keys.map((key) => `'${key}'`).join(', ')}`
      : `${path}: ${issue.message}${gotAt(value, issue.path)}`;
  });
  throw new InvalidArgumentError(`${what}: ${problems.join('; ')}.${knownKeys(schema)}`);
}

/** What came at `path`, unless the message says it already or it is no plain value. */
function gotAt(options: unknown, path: readonly PropertyKey[]): string {
  const value = path.reduce<unknown>((at, key) => (at as Record<PropertyKey, unknown> | undefined)?.[key], options);
  if (typeof value === 'string') return `, got '${value}'`;
  return typeof value === 'number' || typeof value === 'boolean' ? `, got ${String(value)}` : '';
}

function knownKeys(schema: z.ZodType): string {
  if (!(schema instanceof z.ZodObject)) return '';
  const keys = Object.keys(schema.shape);
  return keys.length === 0 ? ' It takes no options.' : ` Known options: ${keys.join(', ')}.`;
}
