import { existsSync, statSync } from 'node:fs';
import { resolve } from 'node:path';
import { z } from 'zod';
import { DATA_PLANES } from '../backend/backend-init';
import { environmentVariable } from '../core/environment';
import type { InvalidArgumentError } from '../core/errors';
import { anyOf, badUsage, checkFlags, LARGEST_PORT, MOST_RANKS, wholeNumber } from './flag-values';
import type { FlagTable, ReadFlags } from './flags';

export const RUN = 'lockstep run';

export const runFlags: FlagTable = {
  nproc: { value: 'N', help: 'processes to start on this machine (default 1)' },
  nnodes: { value: 'N', help: 'machines of the job, each with its own launcher (default 1)' },
  'node-rank': { value: 'R', help: 'number of this machine, from 0 (needed with --nnodes)' },
  'master-addr': { value: 'HOST', help: 'where rank 0 can be reached (default 127.0.0.1; needed with --nnodes)' },
  'master-port': { value: 'PORT', help: 'port of rank 0 (default: a free one; 29500 with --nnodes)' },
  'max-restarts': { value: 'K', help: 'start all ranks again after a failure, at most K times (default 0)' },
  backend: { value: 'NAME', help: 'backend of World.init (default: LOCKSTEP_BACKEND, else grpc)' },
  'data-plane': { value: 'KIND', help: `${anyOf(DATA_PLANES)} (default auto)` },
  'timeout-ms': { value: 'MS', help: 'how long a collective may wait (default 10 minutes)' },
  'log-dir': { value: 'DIR', help: 'also write the output of each rank to DIR/rank-R.log' },
  'grace-ms': { value: 'MS', help: 'from SIGTERM to SIGKILL, when ranks are stopped (default 5000)' },
  'no-prefix': { help: 'do not put [rank] before each line' },
  'no-color': { help: 'no colours, also on a terminal' },
};

/** A checked command line of `lockstep run`. */
export interface RunOptions {
  readonly nproc: number;
  readonly nnodes: number;
  readonly nodeRank: number;
  readonly masterAddr: string;
  /** Undefined: a free one is chosen at each start. */
  readonly masterPort: number | undefined;
  readonly maxRestarts: number;
  readonly backend: string;
  readonly dataPlane: string | undefined;
  readonly timeoutMs: number | undefined;
  /** Generation of the first start. */
  readonly firstGeneration: number;
  readonly logDir: string | undefined;
  readonly graceMs: number;
  readonly hasPrefix: boolean;
  readonly hasColor: boolean;
  /** Absolute path. */
  readonly script: string;
  readonly scriptArgs: readonly string[];
}

/** torchrun's. */
const DEFAULT_PORT = 29_500;

const schema = z.strictObject({
  nproc: wholeNumber(1, MOST_RANKS),
  nnodes: wholeNumber(1, MOST_RANKS),
  'node-rank': wholeNumber(0),
  'master-addr': z.string().optional(),
  'master-port': wholeNumber(1, LARGEST_PORT),
  'max-restarts': wholeNumber(0),
  backend: z.string().optional(),
  'data-plane': z.enum(DATA_PLANES, `expected ${anyOf(DATA_PLANES)}`).optional(),
  'timeout-ms': wholeNumber(1),
  'log-dir': z.string().optional(),
  'grace-ms': wholeNumber(0),
  'no-prefix': z.literal(true).optional(),
  'no-color': z.literal(true).optional(),
});

/** @throws InvalidArgumentError naming each flag that is wrong or missing */
export function readRunOptions({ values, rest }: ReadFlags): RunOptions {
  const flags = checkFlags(schema, values, RUN);
  const nnodes = flags.nnodes ?? 1;
  const [script, ...scriptArgs] = rest;
  return {
    nproc: flags.nproc ?? 1,
    nnodes,
    nodeRank: nodeRankOf(flags['node-rank'], nnodes),
    masterAddr: masterAddrOf(flags['master-addr'], nnodes),
    masterPort: flags['master-port'] ?? defaultPort(nnodes),
    maxRestarts: flags['max-restarts'] ?? 0,
    backend: flags.backend ?? environmentVariable('LOCKSTEP_BACKEND') ?? 'grpc',
    dataPlane: flags['data-plane'],
    timeoutMs: flags['timeout-ms'],
    firstGeneration: generationFromEnvironment(),
    logDir: flags['log-dir'] === undefined ? undefined : resolve(flags['log-dir']),
    graceMs: flags['grace-ms'] ?? 5000,
    hasPrefix: flags['no-prefix'] === undefined,
    hasColor: flags['no-color'] === undefined && environmentVariable('NO_COLOR') === undefined,
    script: scriptPath(script),
    scriptArgs,
  };
}

function nodeRankOf(nodeRank: number | undefined, nnodes: number): number {
  if (nodeRank === undefined) {
    if (nnodes === 1) return 0;
    throw wrong(`--node-rank is missing: with --nnodes ${nnodes} each machine has its own number, 0 to ${nnodes - 1}`);
  }
  if (nodeRank < nnodes) return nodeRank;
  throw wrong(`--node-rank: expected 0 to ${nnodes - 1}, since --nnodes is ${nnodes}, got '${nodeRank}'`);
}

function masterAddrOf(masterAddr: string | undefined, nnodes: number): string {
  if (masterAddr !== undefined) return masterAddr;
  if (nnodes === 1) return '127.0.0.1';
  throw wrong(
    `--master-addr is missing: with --nnodes ${nnodes} all machines need the address of the one with node rank 0`,
  );
}

function defaultPort(nnodes: number): number | undefined {
  if (nnodes > 1) return DEFAULT_PORT;
  if (environmentVariable('LOCKSTEP_STORE') !== 'external') return undefined;
  throw wrong('--master-port is missing: with LOCKSTEP_STORE=external it is the port of lockstep store');
}

/** A scheduler that starts the launchers again after a failure counts its tries here. */
function generationFromEnvironment(): number {
  const text = environmentVariable('LOCKSTEP_GENERATION') ?? '0';
  if (/^\d{1,9}$/.test(text)) return Number(text);
  throw wrong(`environment variable LOCKSTEP_GENERATION: expected a whole number from 0, got '${text}'`);
}

function scriptPath(script: string | undefined): string {
  if (script === undefined) throw wrong('expected a script to run, as lockstep run --nproc 4 train.js');
  const path = resolve(script);
  if (existsSync(path) && statSync(path).isFile()) return path;
  throw wrong(`there is no file '${script}' to run (looked for ${path})`);
}

function wrong(what: string): InvalidArgumentError {
  return badUsage(RUN, what);
}
