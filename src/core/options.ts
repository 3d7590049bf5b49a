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
      : `${path}: ${wordingOf(issue)}${gotAt(value, issue.path)}`;
  });
  throw new InvalidArgumentError(`${what}: ${problems.join('; ')}.${knownKeys(schema)}`);
}

/** In our words what zod says in its own: a schema's own message stays as it is. */
function wordingOf({ message, ...issue }: z.core.$ZodIssue): string {
  if (!/^Invalid (input|option): /.test(message)) return message;
  if (issue.code === 'invalid_value') return `expected ${listed(issue.values.map((value) => describe(value)))}`;
  return message.replace(/^Invalid \w+: /, '').replace(/, received (string|number|boolean)$/, '');
}

function listed(values: readonly string[]): string {
  const last = values.at(-1) ?? 'nothing';
  return values.length < 2 ? last : `${values.slice(0, -1).join(', ')} or ${last}`;
}

function describe(value: unknown): string {
  return typeof value === 'string' ? `'${value}'` : String(value);
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
