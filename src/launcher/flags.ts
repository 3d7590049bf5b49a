/** A command's own flags and what follows them: a script with arguments that are none of our business. */
import { parseArgs } from 'node:util';
import { InvalidArgumentError } from '../core/errors';

export interface FlagDescription {
  /** Name of its value in the help, as `N`; none for a switch. */
  readonly value?: string;
  readonly help: string;
}

/** Flags by name, without the dashes. */
export type FlagTable = Readonly<Record<string, FlagDescription>>;

export interface ReadFlags {
  /** As typed; a switch that was given is true. */
  readonly values: Readonly<Record<string, string | true>>;
  /** The first word that is no flag, and everything after it. */
  readonly rest: readonly string[];
}

/**
 * Read flags up to the first word that is none.
 *
 * @param command names the command in messages, as `lockstep run`
 * @throws InvalidArgumentError naming the flag that is unknown or lacks its value
 */
export function readFlags(args: readonly string[], table: FlagTable, command: string): ReadFlags {
  const options = Object.fromEntries(
    Object.entries({ ...table, help: { help: '' } }).map(([name, { value }]: [string, FlagDescription]) => [
      name,
      { type: value === undefined ? ('boolean' as const) : ('string' as const) },
    ]),
  );
  const { tokens } = parseArgs({ args: [...args], options, strict: false, allowPositionals: true, tokens: true });
  const values: Record<string, string | true> = {};
  for (const token of tokens) {
    if (token.kind === 'positional') return { values, rest: args.slice(token.index) };
    if (token.kind === 'option-terminator') return { values, rest: args.slice(token.index + 1) };
    const option = options[token.name];
    if (option === undefined) throw unknownFlag(token.rawName, Object.keys(options), command);
    values[token.name] = valueOf(token.rawName, option.type, token.value, command);
  }
  return { values, rest: [] };
}

function valueOf(flag: string, type: 'string' | 'boolean', value: string | undefined, command: string): string | true {
  if (type === 'boolean') {
    if (value === undefined) return true;
    throw new InvalidArgumentError(`${command}: ${flag} is a switch and takes no value, got '${value}'.`);
  }
  if (value !== undefined && value !== '') return value;
  throw new InvalidArgumentError(`${command}: ${flag} needs a value. See ${command} --help.`);
}

function unknownFlag(flag: string, known: readonly string[], command: string): InvalidArgumentError {
  const name = flag.replace(/^-+/, '');
  const near = known.find((candidate) => candidate.startsWith(name) || name.startsWith(candidate));
  const hint =
    near === undefined ? `Known flags: ${known.map((each) => `--${each}`).join(', ')}` : `Is --${near} meant`;
  return new InvalidArgumentError(
    `${command}: unknown flag ${flag}. ${hint}${near === undefined ? '.' : '?'} Flags of the script come after its name.`,
  );
}

/** Lines of a help text, one a flag. */
export function describeFlags(table: FlagTable): string {
  const entries = Object.entries(table).map(([name, { value, help }]): [string, string] => [
    value === undefined ? `--${name}` : `--${name} ${value}`,
    help,
  ]);
  const width = Math.max(...entries.map(([head]) => head.length));
  return entries.map(([head, help]) => `  ${head.padEnd(width)}  ${help}`).join('\n');
}
