/** `lockstep run`: all ranks of this machine, from the first start to the last restart. */
import { freePort } from './free-port';
import { Generation } from './generation';
import { tokenVariables } from './job-token';
import { nodeArguments } from './node-arguments';
import { rankVariables } from './rank-environment';
import { linePrefix, makeLogFolder, Outlet, RankLog, type Terminal } from './rank-output';
import type { RankSink } from './rank-process';
import { exitCodeOf, firstFailure, type RankExit } from './rank-report';
import type { RunOptions } from './run-options';
import { StopRequest } from './stop-request';
import { describeFailure } from './summary';

/**
 * Run the job on this machine; the exit code that the launcher should have.
 *
 * @throws InvalidArgumentError, BackendUnavailableError before anything is started
 */
export async function runJob(options: RunOptions, terminal: Terminal): Promise<number> {
  const plan: StartPlan = {
    options,
    args: [...nodeArguments(options.script), options.script, ...options.scriptArgs],
  };
  const stop = new StopRequest();
  const output = new JobOutput(options, terminal, () => stop.request('SIGPIPE'));
  try {
    for (let restart = 0; ; restart++) {
      const exits = await startOnce(plan, restart, output, stop);
      if (stop.signal !== undefined) return reportStop(stop.signal, output);
      const first = firstFailure(exits);
      if (first === undefined) return 0;
      describeFailure(first, exits).forEach((line) => output.say(line));
      if (restart === options.maxRestarts) return exitCodeOf(first);
      output.say(
        `starting again: generation ${options.firstGeneration + restart + 1}, restart ${restart + 1} of ${options.maxRestarts}`,
      );
    }
  } finally {
    stop.close();
    output.close();
  }
}

interface StartPlan {
  readonly options: RunOptions;
  readonly args: readonly string[];
}

async function startOnce(
  { options, args }: StartPlan,
  restart: number,
  output: JobOutput,
  stop: StopRequest,
): Promise<readonly RankExit[]> {
  if (options.logDir !== undefined) await makeLogFolder(options.logDir);
  const masterPort = options.masterPort ?? (await freePort());
  const generation = options.firstGeneration + restart;
  const token = tokenVariables(options.nnodes);
  const starts = Array.from({ length: options.nproc }, (_, localRank) => ({
    rank: options.nodeRank * options.nproc + localRank,
    args,
    variables: { ...rankVariables(options, localRank, masterPort, generation), ...token },
  }));
  if (stop.signal !== undefined) return [];
  const ranks = new Generation(starts, (rank) => output.sinkOf(rank, restart), options.graceMs);
  stop.listener = (signal) => ranks.stop(signal === 'SIGPIPE' ? 'SIGTERM' : signal);
  try {
    return await ranks.ended();
  } finally {
    stop.listener = undefined;
  }
}

function reportStop(signal: NodeJS.Signals, output: JobOutput): number {
  output.say(`stopped by ${signal}`);
  return exitCodeOf({ code: null, signal });
}

/** Where the ranks' lines and the launcher's own go. */
class JobOutput {
  readonly #options: RunOptions;
  readonly #terminal: Terminal;
  readonly #stdout: Outlet;
  readonly #stderr: Outlet;

  constructor(options: RunOptions, terminal: Terminal, onBroken: () => void) {
    this.#options = options;
    this.#terminal = terminal;
    this.#stdout = new Outlet(terminal.stdout, onBroken);
    this.#stderr = new Outlet(terminal.stderr, onBroken);
  }

  sinkOf(rank: number, restart: number): RankSink {
    const { hasPrefix, hasColor, logDir } = this.#options;
    const prefix = (stream: Terminal['stdout']): Buffer =>
      hasPrefix ? linePrefix(rank, hasColor && stream.isTTY === true) : Buffer.alloc(0);
    return {
      stdout: this.#stdout,
      stderr: this.#stderr,
      stdoutPrefix: prefix(this.#terminal.stdout),
      stderrPrefix: prefix(this.#terminal.stderr),
      log: logDir === undefined ? undefined : new RankLog(logDir, rank, restart, (problem) => this.say(problem)),
    };
  }

  say(line: string): void {
    this.#terminal.stderr.write(`lockstep: ${line}\n`);
  }

  close(): void {
    this.#stdout.close();
    this.#stderr.close();
  }
}
