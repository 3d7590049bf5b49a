#!/usr/bin/env node
/** The command `lockstep`. */
import { asError, isLockstepError } from '../core/errors';
import { describeFlags, readFlags } from './flags';
import { runJob } from './run-job';
import { ENV, runEnv } from './env-command';
import { RUN, readRunOptions, runFlags } from './run-options';
import { PLAN, planFlags, runPlan } from './plan-command';
import { runStore, STORE, storeFlags } from './store-command';

/** A command line that cannot be run, as getopt's users have it. */
const USAGE_EXIT = 2;

interface Command {
  readonly help: () => string;
  /** Gives the exit code. */
  readonly run: (args: readonly string[]) => Promise<number>;
}

const commands: Readonly<Record<string, Command>> = {
  run: {
    help: () => `${RUN} [flags] script [arguments of the script]

Start one process a rank on this machine, and end all of them when one fails.

${describeFlags(runFlags)}

The job's token is made by the launcher. Across machines, give all of them the same one in the environment variable
LOCKSTEP_JOB_TOKEN, or in a file named by LOCKSTEP_JOB_TOKEN_FILE.
The exit code is that of the rank that failed first, 128 + the signal's number if a signal ended it.`,
    run: async (args) => {
      const options = readRunOptions(readFlags(args, runFlags, RUN));
      return runJob(options, process);
    },
  },
  env: {
    help: () => `${ENV}

Print what World.init would take from the environment here. The job's token is not shown.`,
    run: async (args) => runEnv(readFlags(args, {}, ENV), process),
  },
  plan: {
    help: () => `${PLAN} --params P --world N [flags]

Print how many bytes of model state a rank holds at each ZeRO stage, and what fits a given memory.

${describeFlags(planFlags)}`,
    run: async (args) => runPlan(readFlags(args, planFlags, PLAN), process),
  },
  store: {
    help: () => `${STORE} --port PORT --world-size N [flags]

Run the rendezvous store of one start of a job. Its ranks need LOCKSTEP_STORE=external, and both the same token.

${describeFlags(storeFlags)}`,
    run: async (args) => runStore(readFlags(args, storeFlags, STORE), process),
  },
};

const overview = `lockstep: distributed training for TypeScript

  lockstep run --nproc 4 train.js    start a job's ranks on this machine
  lockstep env                       what World.init would take from the environment
  lockstep plan --params P --world N what each ZeRO stage holds in memory
  lockstep store --port P            run a job's rendezvous store as a process of its own

lockstep COMMAND --help says more.`;

async function main(args: readonly string[]): Promise<number> {
  const [name, ...rest] = args;
  if (name === undefined || name === '--help' || name === 'help') return say(overview);
  const command = commands[name];
  if (command === undefined) {
    process.stderr.write(`lockstep: there is no command '${name}'. Commands: ${Object.keys(commands).join(', ')}.\n`);
    return USAGE_EXIT;
  }
  if (rest[0] === '--help') return say(command.help());
  return command.run(rest);
}

function say(text: string): number {
  process.stdout.write(`${text}\n`);
  return 0;
}

main(process.argv.slice(2)).then(
  (code) => {
    process.exitCode = code;
  },
  (thrown: unknown) => {
    const error = asError(thrown);
    const isUsage = isLockstepError(error, 'LOCKSTEP_INVALID_ARGUMENT');
    process.stderr.write(`${isLockstepError(error) ? error.message : String(error.stack)}\n`);
    process.exitCode = isUsage ? USAGE_EXIT : 1;
  },
);
