/** The command `lockstep`, built from src/, and scripts for it to run. */
import { spawn, type ChildProcess } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { testBuild } from '../../helpers/test-build';

export interface Ended {
  /** Exit code, or the signal that ended it. */
  readonly status: number | NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** A launcher that runs. */
export interface Running {
  readonly child: ChildProcess;
  readonly ended: Promise<Ended>;
  /** Settles once `text` is in what was printed on stdout or stderr. */
  printed(text: string | RegExp): Promise<void>;
  readonly output: () => string;
}

export interface StartOptions {
  readonly cwd?: string;
  readonly env?: Readonly<Record<string, string>>;
  /** A command that starts the launcher instead of us, as `ip netns exec NAME`. */
  readonly through?: readonly string[];
}

/** For a launcher that hangs: the tests fail long before. */
const LIMIT_MS = 60_000;

export class LauncherBench {
  /** Everything of this bench; removed by close(). */
  readonly folder: string = realpathSync(mkdtempSync(join(tmpdir(), 'lockstep-launcher-')));
  /** The built package. */
  readonly dist: string = join(testBuild(), 'src');
  /** Where scripts lie; no package can be resolved from here. */
  readonly scripts: string = join(this.folder, 'scripts');
  readonly #running = new Set<ChildProcess>();

  constructor() {
    mkdirSync(this.scripts);
  }

  get cli(): string {
    return join(this.dist, 'launcher', 'cli.js');
  }

  /** Write a script; its path. */
  script(name: string, text: string): string {
    const path = join(this.scripts, name);
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, text);
    return path;
  }

  /** Files in the folder `name` of the scripts. */
  list(name: string): string[] {
    return readdirSync(join(this.scripts, name)).sort();
  }

  /** Start `lockstep ...args`. */
  start(args: readonly string[], { cwd = this.scripts, env = {}, through = [] }: StartOptions = {}): Running {
    const [command = '', ...rest] = [...through, process.execPath, this.cli, ...args];
    const child = spawn(command, rest, {
      cwd,
      env: { ...withoutJob(process.env), ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
      timeout: LIMIT_MS,
      killSignal: 'SIGKILL',
    });
    this.#running.add(child);
    let stdout = '';
    let stderr = '';
    const listeners = new Set<() => void>();
    const tell = (): void => listeners.forEach((listener) => listener());
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      stdout += text;
      tell();
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      stderr += text;
      tell();
    });
    const ended = new Promise<Ended>((settle) => {
      child.once('close', (code, signal) => {
        this.#running.delete(child);
        settle({ status: code ?? signal, stdout, stderr });
      });
    });
    const printed = (text: string | RegExp): Promise<void> =>
      new Promise((settle, fail) => {
        const look = (): void => {
          if (!(typeof text === 'string' ? (stdout + stderr).includes(text) : text.test(stdout + stderr))) return;
          listeners.delete(look);
          settle();
        };
        listeners.add(look);
        look();
        void ended.then((end) => fail(new Error(`ended without printing ${String(text)}: ${JSON.stringify(end)}`)));
      });
    return { child, ended, printed, output: () => stdout + stderr };
  }

  /** Run `lockstep ...args` to its end. */
  run(args: readonly string[], options?: StartOptions): Promise<Ended> {
    return this.start(args, options).ended;
  }

  close(): void {
    for (const child of this.#running) child.kill('SIGTERM'); // a launcher takes its ranks with it
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** The test's own environment may be that of a rank. */
function withoutJob(env: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  const names = Object.keys(env).filter((name) =>
    /^(LOCKSTEP_|(LOCAL_|GROUP_)?RANK$|(LOCAL_)?WORLD_SIZE$|MASTER_)/.test(name),
  );
  return Object.fromEntries(Object.entries(env).filter(([name]) => !names.includes(name)));
}

/** Lines that match, sorted, so that the order among ranks does not matter. */
export function sortedLines(text: string, pattern = /./): string[] {
  return text
    .split('\n')
    .filter((line) => pattern.test(line))
    .sort();
}

export function isAlive(processId: number): boolean {
  try {
    process.kill(processId, 0);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return false;
    throw error;
  }
}

/** The processes that scripts announced as `pid N`. */
export function processIds(output: string): number[] {
  return Array.from(output.matchAll(/pid (\d+)/g), (match) => Number(match[1]));
}

/** Settles once none of the processes is there any more; fails after `limitMs`. */
export async function areGone(ids: readonly number[], limitMs = 10_000): Promise<void> {
  const deadline = performance.now() + limitMs;
  while (ids.some(isAlive)) {
    if (performance.now() > deadline) throw new Error(`still there: process ${ids.filter(isAlive).join(', ')}`);
    await new Promise((settle) => setTimeout(settle, 20));
  }
}
