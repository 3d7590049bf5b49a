/** The secret that all ranks of a job share. It travels by environment only: never on a command line or in a log. */
import { randomBytes } from 'node:crypto';
import { environmentVariable } from '../core/environment';
import { InvalidArgumentError } from '../core/errors';
import { RUN } from './run-options';

const TOKEN_BYTES = 32;

/** Variables by which a user gives a token; the ranks read them as the launcher got them. */
const GIVEN = ['LOCKSTEP_JOB_TOKEN', 'LOCKSTEP_JOB_TOKEN_FILE'] as const;

/**
 * Variables to add to the ranks' environment: none if it holds a token already, else a new token.
 *
 * @throws InvalidArgumentError on several machines without a token, since each launcher would make its own
 */
export function tokenVariables(nnodes: number): Readonly<Record<string, string>> {
  if (GIVEN.some((name) => environmentVariable(name) !== undefined)) return {};
  if (nnodes === 1) return { LOCKSTEP_JOB_TOKEN: randomBytes(TOKEN_BYTES).toString('hex') };
  throw new InvalidArgumentError(
    `${RUN}: with --nnodes ${nnodes} all machines must share one token: set ${GIVEN[0]}, or ${GIVEN[1]} to a file that holds it, to the same secret on each (for example from openssl rand -hex ${TOKEN_BYTES}).`,
  );
}
