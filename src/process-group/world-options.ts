import { z } from 'zod';
import { environmentVariable } from '../core/environment';
import { InvalidArgumentError } from '../core/errors';
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
  /** Milliseconds that a call may wait where it does not say otherwise; default 10 minutes. */
  readonly timeoutMs?: number | undefined;
  /** Gets what event listeners throw; default: stderr, from the level that LOCKSTEP_LOG names. */
  readonly logger?: Logger | undefined;
}

/** Everything that is needed to connect: options, environment and defaults together. */
export interface WorldSettings extends WorldPlace {
  readonly backend: string;
  readonly masterAddr: string | undefined;
  readonly masterPort: number | undefined;
  readonly timeoutMs: number | undefined;
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

const schema = z.strictObject({
  backend: z.string().min(1).optional(),
  rank: z.int().nonnegative().optional(),
  worldSize: z.int().positive().optional(),
  localRank: z.int().nonnegative().optional(),
  masterAddr: z.string().min(1).optional(),
  masterPort: z.int().positive().max(LARGEST_PORT).optional(),
  timeoutMs: z.number().positive().optional(),
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
    timeoutMs: given.timeoutMs,
    logger: given.logger,
  };
}

function portFromEnvironment(): number | undefined {
  const text = environmentVariable('MASTER_PORT');
  if (text === undefined) return undefined;
  const port = /^\d+$/.test(text) ? Number(text) : 0;
  if (port >= 1 && port <= LARGEST_PORT) return port;
  throw new InvalidArgumentError(
    `World.init: environment variable MASTER_PORT is '${text}', expected a port, 1 to ${LARGEST_PORT}.`,
  );
}
