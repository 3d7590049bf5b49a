/** `lockstep plan`: the bytes of model state that a rank holds at each ZeRO stage, and what fits. */
import { z } from 'zod';
import { largestModel, planMemory, type MemoryPlanOptions } from '../zero/memory-plan';
import { badUsage, checkFlags, MOST_RANKS, wholeNumber } from './flag-values';
import type { FlagTable, ReadFlags } from './flags';
import type { Terminal } from './rank-output';

export const PLAN = 'lockstep plan';

export const planFlags: FlagTable = {
  params: { value: 'P', help: 'parameters of the model: 7.5e9, 7.5B, 350M' },
  world: { value: 'N', help: 'ranks that share the states' },
  precision: { value: 'NAME', help: 'float32 (default), bfloat16 or float16; the last two with float32 masters' },
  optimizer: { value: 'NAME', help: 'adamw (default), adam, momentum or sgd' },
  memory: { value: 'BYTES', help: 'of one rank: 80GB, 24GiB, 8e9; says what fits' },
};

/** Float32 buffers that an optimizer keeps for each parameter. */
const STATE_BUFFERS = { adamw: 2, adam: 2, momentum: 1, sgd: 0 } as const;

const COUNT_UNITS: Readonly<Record<string, number>> = { '': 1, K: 1e3, M: 1e6, B: 1e9, T: 1e12 };
const BYTE_UNITS: Readonly<Record<string, number>> = {
  '': 1,
  B: 1,
  KB: 1e3,
  MB: 1e6,
  GB: 1e9,
  TB: 1e12,
  KIB: 2 ** 10,
  MIB: 2 ** 20,
  GIB: 2 ** 30,
  TIB: 2 ** 40,
};

/** A number above 0, with a unit or without. */
function quantity(units: Readonly<Record<string, number>>, example: string): z.ZodType<number> {
  const parse = (text: string): number => {
    const [, digits = '', unit = ''] = /^(\d+(?:\.\d+)?(?:e\d+)?)\s*([a-z]*)$/i.exec(text) ?? [];
    return Number(digits) * (units[unit.toUpperCase()] ?? NaN);
  };
  return z
    .string()
    .refine((text) => parse(text) > 0 && Number.isFinite(parse(text)), `expected a number such as ${example}`)
    .transform(parse);
}

const schema = z.object({
  params: quantity(COUNT_UNITS, '7.5e9 or 7.5B'),
  world: wholeNumber(1, MOST_RANKS),
  precision: z.enum(['float32', 'bfloat16', 'float16'], 'expected float32, bfloat16 or float16').optional(),
  optimizer: z.enum(['adamw', 'adam', 'momentum', 'sgd'], 'expected adamw, adam, momentum or sgd').optional(),
  memory: quantity(BYTE_UNITS, '80GB or 24GiB').optional(),
});

/**
 * Print the table; the exit code.
 *
 * @throws InvalidArgumentError naming the flag that is missing or wrong
 */
export function runPlan({ values, rest }: ReadFlags, { stdout }: Terminal): number {
  if (rest.length > 0) throw badUsage(PLAN, `expected no arguments, got '${rest.join(' ')}'`);
  const { params, world, memory, precision = 'float32', optimizer = 'adamw' } = checkFlags(schema, values, PLAN);
  if (world === undefined) throw badUsage(PLAN, '--world is missing');
  const model = { worldSize: world, precision, stateBuffers: STATE_BUFFERS[optimizer] };
  stdout.write(
    `${formatCount(params)} parameters, ${precision}${precision === 'float32' ? '' : ' with float32 masters'}, ${optimizer}, ${world} rank${world === 1 ? '' : 's'}\n\n`,
  );
  stdout.write(`${table({ params, ...model }, memory)}\n\n`);
  stdout.write(
    'GB are 10^9 bytes a rank, of model state alone. On top come activations, which activation checkpointing cuts, and\n' +
      'what is in flight: up to three buckets (bucketCapMb) at stage 2, and at stage 3 the units that are gathered, the one\n' +
      'in use and the next, and their gradients.\n',
  );
  return 0;
}

function table(options: MemoryPlanOptions, memory: number | undefined): string {
  const largest = memory === undefined ? [] : largestModel(memory, options);
  const head = ['stage', 'parameters', 'gradients', 'optimizer', 'GB a rank'];
  if (memory !== undefined) head.push(`fits ${formatGb(memory)} GB`, 'largest model');
  const rows = planMemory(options).map(({ stage, parameters, gradients, optimizer, total }) => {
    const row = [String(stage), ...[parameters, gradients, optimizer, total].map(formatGb)];
    if (memory !== undefined) row.push(total <= memory ? 'yes' : 'no', formatCount(largest[stage] as number));
    return row;
  });
  const widths = head.map((title, column) => Math.max(title.length, ...rows.map((row) => (row[column] ?? '').length)));
  return [head, ...rows]
    .map((row) => row.map((cell, column) => cell.padStart(widths[column] as number)).join('  '))
    .join('\n');
}

/** Bytes in 10^9, with four digits that count. */
function formatGb(bytes: number): string {
  const gb = bytes / 1e9;
  return gb >= 1000 ? gb.toFixed(0) : gb.toPrecision(4);
}

function formatCount(count: number): string {
  const [unit, size] = Object.entries(COUNT_UNITS)
    .reverse()
    .find(([, each]) => count >= each) ?? ['', 1];
  return `${Number((count / size).toPrecision(4))}${unit}`;
}
