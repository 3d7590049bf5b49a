import { z } from 'zod';
import { InvalidArgumentError } from '../../core/errors';
import { parseOptions } from '../../core/options';
import { COLLECTIVE_OPS, POINT_TO_POINT_OPS, type CallOp } from '../call';

/** Something that goes wrong on one rank, at one of its calls. */
export interface Fault {
  /**
   * - crash: the call rejects with InjectedFaultError and the rank is gone: the others get PeerLostError
   * - hang: the rank never arrives: everyone gets CollectiveTimeoutError at the deadline
   * - delay: the rank arrives `delayMs` late, and so do its calls after this one
   * - corrupt: bits of what the rank contributes are flipped on the way; its own buffer stays as it is
   */
  readonly kind: 'crash' | 'hang' | 'delay' | 'corrupt';
  /** Rank in the world. */
  readonly rank: number;
  /** Which of the rank's calls, in all groups together: 0 is the first. */
  readonly call: number;
  /** Count only calls of this op. */
  readonly op?: CallOp | undefined;
  /** Of a delay, which needs it. */
  readonly delayMs?: number | undefined;
}

/** How a mock world behaves. */
export interface MockOptions {
  /**
   * Milliseconds that a call may wait where it does not say otherwise; default 10 minutes, and 4 seconds on a bare rank:
   * [Note: bare ranks].
   */
  readonly timeoutMs?: number | undefined;
  /**
   * 'all' (the default): also find buffers that change while in flight, results read too early (buffers hold poison
   * until the call is done: NaN, or bytes 0xDB in integers), Works that nobody awaits and groups left open.
   * 'order': only mismatches, deadlocks, lost peers and timeouts; nothing is copied.
   */
  readonly checks?: 'all' | 'order' | undefined;
  /** 'fifo' (the default): ranks go on in rank order, at once. 'random': in a random order, late by random turns. */
  readonly schedule?: 'fifo' | 'random' | undefined;
  /** Of the random schedule, of corrupting faults and of the ranks' default generators; default 0. */
  readonly seed?: number | undefined;
  /** 'virtual': sleeps on `backend.clock`, delays and timeouts take no time, and happen in order. */
  readonly clock?: 'real' | 'virtual' | undefined;
  /** Also find programs that would hang or mix data on NCCL: [Note: portable mode]. */
  readonly portable?: boolean | undefined;
  readonly faults?: readonly Fault[] | undefined;
  /** Accepted as World.init accepts it. The mock keeps rank order either way, so its bits do not change. */
  readonly deterministic?: boolean | undefined;
  /** Name the caller's source line in errors; default true. Costs a few microseconds a call. */
  readonly sourceLines?: boolean | undefined;
}

const faultSchema = z
  .strictObject({
    kind: z.enum(['crash', 'hang', 'delay', 'corrupt']),
    rank: z.int().nonnegative(),
    call: z.int().nonnegative(),
    op: z.enum([...COLLECTIVE_OPS, ...POINT_TO_POINT_OPS]).optional(),
    delayMs: z.number().nonnegative().optional(),
  })
  .refine(({ kind, delayMs }) => (kind === 'delay') === (delayMs !== undefined), {
    message: 'a delay, and only a delay, has delayMs',
    path: ['delayMs'],
  });

/** Private to the mock and to what wraps it; users see MockOptions. */
export const mockOptionsSchema = z.strictObject({
  timeoutMs: z.number().positive().optional(),
  checks: z.enum(['all', 'order']).default('all'),
  schedule: z.enum(['fifo', 'random']).default('fifo'),
  seed: z.int().nonnegative().default(0),
  clock: z.enum(['real', 'virtual']).default('real'),
  portable: z.boolean().default(false),
  deterministic: z.boolean().optional(),
  faults: z.array(faultSchema).default([]),
  sourceLines: z.boolean().default(true),
});

/** The options with defaults filled in. */
export type ParsedMockOptions = z.output<typeof mockOptionsSchema>;

/** @throws InvalidArgumentError that names wrong paths and unknown keys, or a fault of a rank that is not there */
export function parseMockOptions(size: number, options: MockOptions | undefined, what: string): ParsedMockOptions {
  const parsed = parseOptions(mockOptionsSchema, options, what);
  const stray = parsed.faults.findIndex((fault) => fault.rank >= size);
  if (stray < 0) return parsed;
  throw new InvalidArgumentError(
    `${what}: options.faults.${stray}.rank: expected a rank of the world, 0 to ${size - 1}, got ${parsed.faults[stray]?.rank}.`,
  );
}
