import { readFileSync } from 'node:fs';
import { z } from 'zod';
import { DATA_PLANES, type DataPlane, type TlsOptions } from '../backend/backend-init';
import { environmentVariable } from '../core/environment';
import { InvalidArgumentError, asError } from '../core/errors';
import { withoutFullStop } from '../core/full-stop';
import type { Logger } from '../core/logger';
import { parseOptions } from '../core/options';
import { readWorldPlace, type WorldPlace } from './world-place';

/** Options of World.init. What is not given is read from the environment. */
export interface WorldOptions {
  /** 'mock', 'grpc', 'nccl', or a backend of your own; else LOCKSTEP_BACKEND, else grpc (the mock for a world of one). */
  readonly backend?: string | undefined;
  /** This process's rank in the world; else RANK. */
  readonly rank?: number | undefined;
  /** Number of processes of the world; else WORLD_SIZE. */
  readonly worldSize?: number | undefined;
  /** This process's position among the ranks of its machine; else LOCAL_RANK, else the rank. */
  readonly localRank?: number | undefined;
  /** Where rank 0 listens; else MASTER_ADDR. */
  readonly masterAddr?: string | undefined;
  readonly masterPort?: number | undefined;
  /** Secret that all ranks of the job share; else LOCKSTEP_JOB_TOKEN, else the text of the file LOCKSTEP_JOB_TOKEN_FILE. */
  readonly token?: string | undefined;
  /** PEM texts: with them every connection between ranks is TLS, and each proves its certificate. */
  readonly tls?: TlsOptions | undefined;
  /** How tensors travel between processes: 'auto', 'grpc', 'socket' or 'native'; else LOCKSTEP_DATA_PLANE, else 'auto'. */
  readonly dataPlane?: DataPlane | undefined;
  /** Who serves the job's store: 'rank0' (the default), or 'external', a `lockstep store`; else LOCKSTEP_STORE. */
  readonly store?: 'rank0' | 'external' | undefined;
  /** Number of this start of the job, which keeps a restarted one apart; else LOCKSTEP_GENERATION, else 0. */
  readonly generation?: number | undefined;
  /** Milliseconds that a call may wait where it does not say otherwise; else LOCKSTEP_TIMEOUT_MS, else 10 minutes. */
  readonly timeoutMs?: number | undefined;
  /** Milliseconds that all ranks have to join, as processes may start long after each other; default: `timeoutMs`. */
  readonly joinTimeoutMs?: number | undefined;
  /**
   * True (the default): reductions go in rank order, so results have the same bits in every run and on the mock. False: an
   * all-reduce of float32 or float64 may take another order where that is faster (up to 128 KiB, on 4 ranks and more); all
   * ranks still get the same bits as each other. Holds for all groups of the world. Ranks that differ in it get
   * CollectiveMismatchError from their first all-reduce.
   */
  readonly deterministic?: boolean | undefined;
  /**
   * Name the line of the program that made a call in the errors of mismatches and timeouts, for all ranks; else
   * LOCKSTEP_CALL_SITES=1, else false on processes (it costs several microseconds a call) and true on the mock.
   */
  readonly callSites?: boolean | undefined;
  /** Gets what event listeners throw; default: stderr, from the level that LOCKSTEP_LOG names. */
  readonly logger?: Logger | undefined;
}

/** Everything that is needed to connect: options, environment and defaults together. */
export interface WorldSettings extends WorldPlace {
  readonly backend: string;
  readonly masterAddr: string | undefined;
  readonly masterPort: number | undefined;
  readonly token: string | undefined;
  readonly tls: TlsOptions | undefined;
  readonly dataPlane: DataPlane | undefined;
  readonly store: 'rank0' | 'external' | undefined;
  readonly generation: number;
  readonly timeoutMs: number | undefined;
  readonly joinTimeoutMs: number | undefined;
  readonly callSites: boolean | undefined;
  readonly deterministic: boolean | undefined;
  readonly logger: Logger | undefined;
}

const logFunction = z.custom<Logger['debug']>((value) => typeof value === 'function', 'expected a function');

/** A user's logger may have more methods than ours needs, and keep them on its prototype. */
const loggerSchema = z.custom<Logger>(
  (value) =>
    typeof value === 'object' &&
    value !== null &&
    (['debug', 'info', 'warn', 'error'] as const).every(
      (level) => logFunction.safeParse((value as Partial<Logger>)[level]).success,
    ),
  'expected an object with the methods debug, info, warn and error',
);

const LARGEST_PORT = 65_535;
const LARGEST_GENERATION = 2 ** 32 - 1;
const STORES = ['rank0', 'external'] as const;

/** A path would connect nothing and fail far from here. */
const pem = z.string().regex(/-----BEGIN /, 'expected the text of a PEM file, not its path');

const schema = z.strictObject({
  backend: z.string().min(1).optional(),
  rank: z.int().nonnegative().optional(),
  worldSize: z.int().positive().optional(),
  localRank: z.int().nonnegative().optional(),
  masterAddr: z.string().min(1).optional(),
  masterPort: z.int().positive().max(LARGEST_PORT).optional(),
  token: z.string().min(1).optional(),
  tls: z.strictObject({ ca: pem, cert: pem, key: pem }).optional(),
  dataPlane: z.enum(DATA_PLANES).optional(),
  store: z.enum(STORES).optional(),
  generation: z.int().nonnegative().max(LARGEST_GENERATION).optional(),
  timeoutMs: z.number().positive().optional(),
  joinTimeoutMs: z.number().positive().optional(),
  callSites: z.boolean().optional(),
  deterministic: z.boolean().optional(),
  logger: loggerSchema.optional(),
});

/** @throws InvalidArgumentError that names each wrong option, or the environment variable that is missing or wrong */
export function readWorldSettings(options: WorldOptions | undefined): WorldSettings {
  const given = parseOptions(schema, options, 'World.init');
  const place = readWorldPlace(given);
  return {
    ...place,
    backend: given.backend ?? environmentVariable('LOCKSTEP_BACKEND') ?? (place.worldSize === 1 ? 'mock' : 'grpc'),
    masterAddr: given.masterAddr ?? environmentVariable('MASTER_ADDR'),
    masterPort: given.masterPort ?? portFromEnvironment(),
    token: given.token ?? tokenFromEnvironment(),
    tls: given.tls,
    dataPlane: given.dataPlane ?? choice('LOCKSTEP_DATA_PLANE', DATA_PLANES),
    store: given.store ?? choice('LOCKSTEP_STORE', STORES),
    generation: given.generation ?? generationFromEnvironment(),
    timeoutMs: given.timeoutMs ?? timeoutFromEnvironment(),
    joinTimeoutMs: given.joinTimeoutMs,
    callSites: given.callSites ?? callSitesFromEnvironment(),
    deterministic: given.deterministic,
    logger: given.logger,
  };
}

function portFromEnvironment(): number | undefined {
  return wholeNumber('MASTER_PORT', 'a port', 1, LARGEST_PORT);
}

function generationFromEnvironment(): number {
  return wholeNumber('LOCKSTEP_GENERATION', 'the number of this start of the job', 0, LARGEST_GENERATION) ?? 0;
}

function wholeNumber(variable: string, what: string, least: number, most: number): number | undefined {
  const text = environmentVariable(variable);
  if (text === undefined) return undefined;
  const value = /^\d{1,15}$/.test(text) ? Number(text) : NaN;
  if (value >= least && value <= most) return value;
  throw new InvalidArgumentError(
    `World.init: environment variable ${variable} is '${text}', expected ${what}, ${least} to ${most}.`,
  );
}

function timeoutFromEnvironment(): number | undefined {
  return wholeNumber('LOCKSTEP_TIMEOUT_MS', 'milliseconds', 1, Number.MAX_SAFE_INTEGER);
}

function callSitesFromEnvironment(): boolean | undefined {
  const value = choice('LOCKSTEP_CALL_SITES', ['0', '1']);
  return value === undefined ? undefined : value === '1';
}

function choice<T extends string>(variable: string, values: readonly T[]): T | undefined {
  const text = environmentVariable(variable);
  if (text === undefined) return undefined;
  const value = values.find((name) => name === text);
  if (value !== undefined) return value;
  throw new InvalidArgumentError(
    `World.init: environment variable ${variable} is '${text}', expected ${values.join(' or ')}.`,
  );
}

/** The job's token, if the environment has one; the token itself never stands in a message. */
export function tokenFromEnvironment(): string | undefined {
  const token = environmentVariable('LOCKSTEP_JOB_TOKEN');
  if (token !== undefined) return token;
  const path = environmentVariable('LOCKSTEP_JOB_TOKEN_FILE');
  if (path === undefined) return undefined;
  let text: string;
  try {
    text = readFileSync(path, 'utf8').trim();
  } catch (error) {
    throw new InvalidArgumentError(
      `World.init: the file that environment variable LOCKSTEP_JOB_TOKEN_FILE names cannot be read: ${withoutFullStop(asError(error).message)}.`,
      { cause: error },
    );
  }
  if (text !== '') return text;
  throw new InvalidArgumentError(
    `World.init: the file that environment variable LOCKSTEP_JOB_TOKEN_FILE names ('${path}') is empty; expected the job's token.`,
  );
}
