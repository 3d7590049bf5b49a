/** What ranks print: whole lines, each with its rank before it, and a file per rank where one is asked for. */
import { closeSync, openSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { asError, InvalidArgumentError } from '../core/errors';
import { makeFolder } from '../core/make-folder';

const NEWLINE = 0x0a;
/** A line longer than this is cut, so that a rank that never ends its line costs no memory. */
const LONGEST_LINE_BYTES = 64 * 1024;
const TAIL_LINES = 12;
const TAIL_LINE_CHARACTERS = 400;

/** The launcher's own streams. */
export interface Terminal {
  readonly stdout: Writable & { readonly isTTY?: boolean };
  readonly stderr: Writable & { readonly isTTY?: boolean };
}

/** Cuts bytes into lines, so that the lines of several ranks never mix; UTF-8 stays whole. */
export class LineSplitter {
  #rest: Buffer = Buffer.alloc(0);
  readonly #onLine: (line: Buffer) => void;

  /** @param onLine gets each line with its newline; only during the call */
  constructor(onLine: (line: Buffer) => void) {
    this.#onLine = onLine;
  }

  push(chunk: Buffer): void {
    let bytes = this.#rest.length === 0 ? chunk : Buffer.concat([this.#rest, chunk]);
    for (let end = bytes.indexOf(NEWLINE); end >= 0; end = bytes.indexOf(NEWLINE)) {
      this.#onLine(bytes.subarray(0, end + 1));
      bytes = bytes.subarray(end + 1);
    }
    this.#rest = bytes;
    if (bytes.length > LONGEST_LINE_BYTES) this.end();
  }

  /** Give out what has no newline yet. */
  end(): void {
    if (this.#rest.length === 0) return;
    const line = Buffer.concat([this.#rest, Buffer.of(NEWLINE)]);
    this.#rest = Buffer.alloc(0);
    this.#onLine(line);
  }
}

/** One of our own output streams, written to by many ranks at the speed of its reader. */
export class Outlet {
  readonly #stream: Writable;
  readonly #waiting = new Set<Readable>();
  #isBroken = false;
  readonly #release: () => void;

  /** @param onBroken is called once, when nobody reads any more; from then on output is dropped */
  constructor(stream: Writable, onBroken: () => void) {
    this.#stream = stream;
    this.#release = () => {
      for (const source of this.#waiting) source.resume();
      this.#waiting.clear();
    };
    stream.on('drain', this.#release);
    stream.on('error', () => {
      if (this.#isBroken) return;
      this.#isBroken = true;
      this.#release();
      onBroken();
    });
  }

  /** `source` waits while the reader is slow. */
  write(bytes: Buffer, source: Readable): void {
    if (this.#isBroken || this.#stream.write(bytes)) return;
    source.pause();
    this.#waiting.add(source);
  }

  /** The stream stays open; that nobody reads it any more is no concern of ours from now on. */
  close(): void {
    this.#stream.off('drain', this.#release);
    this.#isBroken = true;
  }
}

/** @throws InvalidArgumentError if the folder of the ranks' files cannot be made */
export async function makeLogFolder(folder: string): Promise<void> {
  try {
    await makeFolder(folder);
  } catch (error) {
    throw unwritable(folder, error);
  }
}

function unwritable(path: string, error: unknown): InvalidArgumentError {
  return new InvalidArgumentError(
    `lockstep run: --log-dir: expected a folder that can be made and written to, cannot write ${path} (${asError(error).message}).`,
  );
}

/** The file of one rank, in a folder that is there. A full disk ends the logging, not the job. */
export class RankLog {
  #file: number | undefined;
  readonly #onProblem: (message: string) => void;

  /** @throws InvalidArgumentError if the file cannot be made */
  constructor(folder: string, rank: number, restart: number, onProblem: (message: string) => void) {
    const path = join(folder, `rank-${rank}${restart === 0 ? '' : `.restart-${restart}`}.log`);
    try {
      this.#file = openSync(path, 'w');
    } catch (error) {
      throw unwritable(path, error);
    }
    this.#onProblem = onProblem;
  }

  write(line: Buffer): void {
    if (this.#file === undefined) return;
    try {
      writeSync(this.#file, line);
    } catch (error) {
      this.close();
      this.#onProblem(`logging stopped: ${asError(error).message}`);
    }
  }

  close(): void {
    if (this.#file !== undefined) closeSync(this.#file);
    this.#file = undefined;
  }
}

/** The last lines of a stream, as text. */
export class Tail {
  readonly #lines: string[] = [];

  push(line: Buffer): void {
    this.#lines.push(line.toString('utf8', 0, TAIL_LINE_CHARACTERS).trimEnd());
    if (this.#lines.length > TAIL_LINES) this.#lines.shift();
  }

  get lines(): readonly string[] {
    return this.#lines;
  }
}

/** Colours that are legible on black and on white: cyan, green, yellow, magenta, blue, red. */
const COLORS = [36, 32, 33, 35, 34, 31];

export function linePrefix(rank: number, hasColor: boolean): Buffer {
  const text = `[${rank}]`;
  return Buffer.from(hasColor ? `\x1b[${COLORS[rank % COLORS.length]}m${text}\x1b[0m ` : `${text} `);
}
