/**
 * Ranks as processes of their own, for tests. A process is told by message which task to run (tasks are named, since
 * functions do not cross processes), serves many worlds one after the other, and is replaced when it has died.
 *
 * Start-up is about 0.2 s of one core for a process, so a suite keeps its processes. A process ends with its parent:
 * its channel closes, and nothing else of a rank without a world keeps it alive.
 */
import { fork, type ChildProcess } from 'node:child_process';
import { join } from 'node:path';
import { fromWire, type WireError } from '../../src/core/error-wire';
import { runnable } from './test-build';

export interface TaskRequest {
  readonly id: number;
  readonly task: string;
  readonly args: unknown;
}

export type TaskAnswer =
  { readonly id: number; readonly value: unknown } | { readonly id: number; readonly error: WireError };

/** What a tasks file exports as `tasks`. Arguments and results are JSON. */
export type TaskTable = Readonly<Record<string, (args: never) => Promise<unknown>>>;

export interface RankProcessOptions {
  /** Absolute path of the file that exports `tasks`. */
  readonly tasksFile: string;
  /** Added to the environment. */
  readonly env?: Readonly<Record<string, string>> | undefined;
  /** Loaded before anything else. */
  readonly preload?: readonly string[] | undefined;
  /** Further options of node, as --cpu-prof. */
  readonly nodeOptions?: readonly string[] | undefined;
}

/** A task without an answer after this long has hung; a test that expects a longer one says so. */
const TASK_LIMIT_MS = 30_000;
const ROOT = join(__dirname, '..', '..');
const KEPT_OUTPUT = 4000;

export interface Ended {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

interface Pending {
  readonly task: string;
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: Error) => void;
}

/** One process. */
export class RankProcess<Tasks extends TaskTable> {
  readonly pid: number;
  /** Settles when the process is gone. */
  readonly ended: Promise<Ended>;
  readonly #child: ChildProcess;
  readonly #pending = new Map<number, Pending>();
  #output = '';
  #nextId = 0;
  #end: Ended | undefined;
  #isGivenUp = false;

  constructor({ tasksFile, env, preload = [], nodeOptions = [] }: RankProcessOptions) {
    const { options, files } = runnable(join(__dirname, 'rank-process-main.ts'), tasksFile, ...preload);
    const [main = '', tasks = '', ...preloads] = files;
    this.#child = fork(main, [tasks], {
      cwd: ROOT,
      env: { ...process.env, LOCKSTEP_LOG: 'warn', ...env },
      execArgv: [...nodeOptions, ...options, ...preloads.flatMap((file) => ['--require', file])],
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    });
    this.pid = this.#child.pid ?? -1;
    for (const stream of [this.#child.stdout, this.#child.stderr]) {
      stream?.setEncoding('utf8').on('data', (text: string) => {
        this.#output = (this.#output + text).slice(-KEPT_OUTPUT);
      });
    }
    this.#child.on('message', (answer: TaskAnswer) => this.#settle(answer));
    this.ended = new Promise((resolve) => {
      this.#child.on('error', () => undefined); // a message to a process that has died; 'exit' tells
      this.#child.on('close', (code, signal) => {
        this.#end = { code, signal };
        for (const { task, reject } of this.#pending.values()) reject(this.#lost(task));
        this.#pending.clear();
        resolve(this.#end);
      });
    });
  }

  /** True as long as further tasks make sense. */
  get isUsable(): boolean {
    return this.#end === undefined && !this.#isGivenUp && this.#child.connected;
  }

  /** The last that the process wrote to stdout and stderr. */
  get output(): string {
    return this.#output;
  }

  /** What the task gave. Rejects with its error, or when the process dies or does not answer within `limitMs`. */
  call<Name extends keyof Tasks & string>(
    task: Name,
    args: Parameters<Tasks[Name]>[0],
    limitMs = TASK_LIMIT_MS,
  ): Promise<Awaited<ReturnType<Tasks[Name]>>> {
    return new Promise<unknown>((resolve, reject) => {
      if (this.#end !== undefined) return reject(this.#lost(task));
      const id = this.#nextId++;
      const timer = setTimeout(() => {
        this.#pending.delete(id);
        this.#isGivenUp = true;
        this.kill('SIGKILL');
        reject(new Error(`process ${this.pid}: no answer to '${task}' within ${limitMs} ms.\n${this.#output}`));
      }, limitMs);
      const settled =
        <Value>(settle: (value: Value) => void) =>
        (value: Value) => {
          clearTimeout(timer);
          settle(value);
        };
      this.#pending.set(id, { task, resolve: settled(resolve), reject: settled(reject) });
      this.#child.send({ id, task, args } satisfies TaskRequest);
    }) as Promise<Awaited<ReturnType<Tasks[Name]>>>;
  }

  /** Send a signal to this process alone. */
  kill(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }

  /** Let go of the process, which must then end by itself. */
  async leave(): Promise<Ended> {
    this.#child.send({ id: -1, task: 'leave', args: null } satisfies TaskRequest);
    return this.ended;
  }

  /** Gone for good. */
  async end(): Promise<void> {
    if (this.#end !== undefined) return;
    this.kill('SIGKILL'); // also ends a stopped process
    await this.ended;
  }

  #settle(answer: TaskAnswer): void {
    const pending = this.#pending.get(answer.id);
    this.#pending.delete(answer.id);
    if ('error' in answer) pending?.reject(fromWire(answer.error));
    else pending?.resolve(answer.value);
  }

  #lost(task: string): Error {
    const { code, signal } = this.#end ?? {};
    return new Error(`process ${this.pid} ended (${signal ?? code}) during '${task}'.\n${this.#output}`);
  }
}

/** As many processes as the largest world so far. */
export class RankProcesses<Tasks extends TaskTable> {
  readonly #options: RankProcessOptions;
  #processes: RankProcess<Tasks>[] = [];

  constructor(options: RankProcessOptions) {
    this.#options = options;
  }

  /** `size` usable processes; those of earlier worlds where they live. */
  take(size: number): RankProcess<Tasks>[] {
    this.#processes = this.#processes.filter((each) => each.isUsable);
    while (this.#processes.length < size) this.#processes.push(new RankProcess<Tasks>(this.#options));
    return this.#processes.slice(0, size);
  }

  /** End all of them, by their process ids. */
  async close(): Promise<void> {
    const processes = this.#processes;
    this.#processes = [];
    await Promise.all(processes.map((each) => each.end()));
  }
}
