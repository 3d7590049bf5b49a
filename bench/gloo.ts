/** gloo through Debian's python3-torch, as the reference; absent on most machines. */
import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { createInterface } from 'node:readline';
import { join } from 'node:path';
import { freePort } from '../tests/helpers/free-port';

const SCRIPT = join(__dirname, 'gloo-all-reduce.py');

/** Debian's package is for the system's Python, which need not be the first one on the path. */
const PYTHONS = ['python3', '/usr/bin/python3'];

/** A Python that has gloo; undefined where none is installed. */
export function pythonWithGloo(): string | undefined {
  const script = 'import torch.distributed as d, sys; sys.exit(not d.is_available())';
  return PYTHONS.find((python) => spawnSync(python, ['-c', script]).status === 0);
}

/** A world of gloo ranks that wait for orders. */
export class Gloo {
  readonly #children: readonly ChildProcess[];
  readonly #answers: readonly AsyncIterator<string>[];

  private constructor(children: readonly ChildProcess[]) {
    this.#children = children;
    this.#answers = children.map(({ stdout }) =>
      createInterface({ input: stdout as NodeJS.ReadableStream })[Symbol.asyncIterator](),
    );
  }

  static async start(python: string, size: number): Promise<Gloo> {
    const port = await freePort();
    const children = Array.from({ length: size }, (_unused, rank) =>
      spawn(python, [SCRIPT, String(rank), String(size), String(port)], { stdio: ['pipe', 'pipe', 'inherit'] }),
    );
    const gloo = new Gloo(children);
    await gloo.#read();
    return gloo;
  }

  /** Microseconds of one all-reduce of `bytes`, by block, as rank 0 sees it. */
  async measure(bytes: number, iterations: number, blocks: number): Promise<number[]> {
    for (const { stdin } of this.#children) stdin?.write(`${bytes} ${iterations} ${blocks}\n`);
    return JSON.parse((await this.#read())[0] as string) as number[];
  }

  async close(): Promise<void> {
    const ended = this.#children.map((child) => new Promise((resolve) => child.once('exit', resolve)));
    for (const { stdin } of this.#children) stdin?.end();
    await Promise.all(ended);
  }

  async #read(): Promise<string[]> {
    const lines = await Promise.all(this.#answers.map((answer) => answer.next()));
    return lines.map(({ done, value }) => {
      if (done === true) throw new Error('a rank of gloo ended');
      return value;
    });
  }
}
