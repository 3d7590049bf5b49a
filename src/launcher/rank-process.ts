import { spawn, type ChildProcess } from 'node:child_process';
import type { Readable } from 'node:stream';
import { systemClock } from '../core/clock';
import { environmentWith } from '../core/environment';
import { toWire, type WireError } from '../core/error-wire';
import { LineSplitter, Tail, type Outlet, type RankLog } from './rank-output';
import type { RankExit, RankReport } from './rank-report';

export interface RankStart {
  readonly rank: number;
  /** Arguments of Node.js: its options, the script, the script's arguments. */
  readonly args: readonly string[];
  /** Added to the launcher's own environment. */
  readonly variables: Readonly<Record<string, string>>;
}

/** Where a rank's output goes. */
export interface RankSink {
  readonly stdout: Outlet;
  readonly stderr: Outlet;
  /** Before each line, by stream; empty for none. */
  readonly stdoutPrefix: Buffer;
  readonly stderrPrefix: Buffer;
  readonly log: RankLog | undefined;
}

/** What a rank leaves running may hold its output open; after its end we do not wait for that longer than this. */
const OUTPUT_GRACE_MS = 1000;

const hasProcessGroups = process.platform !== 'win32';

/** One rank: a process, leader of a group of its own, so that what it starts can be ended with it. */
export class RankProcess {
  readonly rank: number;
  /** Settles once the process has ended and its output is through; never rejects. */
  readonly ended: Promise<RankExit>;
  readonly #child: ChildProcess;
  readonly #startedMs = systemClock.now();
  readonly #tail = new Tail();
  #error: WireError | undefined;
  #hasExited = false;
  #wasStopped = false;

  constructor(start: RankStart, sink: RankSink) {
    this.rank = start.rank;
    // A terminal's Ctrl-C reaches the launcher alone, which passes it on; stdin belongs to no rank.
    this.#child = spawn(process.execPath, start.args, {
      env: environmentWith(start.variables),
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
      detached: hasProcessGroups,
    });
    this.#child.on('message', (message: Partial<RankReport> | null) => {
      this.#error ??= message?.lockstepRankFailed;
    });
    this.#forward(this.#child.stdout, sink.stdout, sink.stdoutPrefix, sink.log);
    this.#forward(this.#child.stderr, sink.stderr, sink.stderrPrefix, sink.log, this.#tail);
    this.ended = this.#watch().finally(() => sink.log?.close());
  }

  /** Ask the rank to end. It counts as stopped by us from now on. */
  stop(signal: NodeJS.Signals): void {
    if (this.#hasExited) return;
    this.#wasStopped = true;
    this.#signal(signal);
  }

  #forward(source: Readable | null, outlet: Outlet, prefix: Buffer, log: RankLog | undefined, tail?: Tail): void {
    if (source === null) return;
    const pieces: Buffer[] = [];
    const lines = new LineSplitter((line) => {
      pieces.push(prefix, line);
      log?.write(line);
      tail?.push(line);
    });
    const flush = (): void => {
      if (pieces.length > 0) outlet.write(Buffer.concat(pieces), source);
      pieces.length = 0;
    };
    source.on('data', (chunk: Buffer) => {
      lines.push(chunk);
      flush();
    });
    source.once('close', () => {
      lines.end();
      flush();
    });
  }

  #watch(): Promise<RankExit> {
    const child = this.#child;
    return new Promise((settle) => {
      let afterMs = 0;
      const onEnd = (code: number | null, signal: NodeJS.Signals | null): void => {
        settle({
          rank: this.rank,
          processId: child.pid,
          code,
          signal,
          afterMs,
          wasStopped: this.#wasStopped,
          error: this.#error,
          lastLines: this.#tail.lines,
        });
      };
      child.once('error', (error) => {
        if (child.pid !== undefined) return; // a signal that could not be sent
        this.#hasExited = true;
        this.#error = toWire(error);
        onEnd(null, null);
      });
      child.once('exit', () => {
        this.#hasExited = true;
        afterMs = systemClock.now() - this.#startedMs;
        this.#signal('SIGKILL'); // what it started and left behind
        const limit = systemClock.schedule(() => this.#closeOutput(), OUTPUT_GRACE_MS, true);
        child.once('close', () => limit.cancel());
      });
      child.once('close', onEnd);
    });
  }

  #closeOutput(): void {
    this.#child.stdout?.destroy();
    this.#child.stderr?.destroy();
    if (this.#child.connected) this.#child.disconnect();
  }

  /** To the whole group of the rank, which exists as long as any member does. */
  #signal(signal: NodeJS.Signals): void {
    const { pid } = this.#child;
    if (pid === undefined) return;
    if (!hasProcessGroups) {
      this.#child.kill(signal);
      return;
    }
    try {
      process.kill(-pid, signal);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error; // all have ended
    }
  }
}
