import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import { connect, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { exec } from 'node:child_process';
import { scrypt } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';
import { gzip } from 'node:zlib';
import type { MockBackend } from '../../../src/backend/mock/mock-backend';
import { failures, names } from './mock-worlds';

/** How long the server keeps a client waiting: many turns of the event loop. */
const ANSWER_MS = 40;

let server: Server;
let port: number;
let folder: string;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'lockstep-liveness-'));
  writeFileSync(join(folder, 'data'), 'x'.repeat(1 << 20));
  server = createServer((_request, response) => void setTimeout(() => response.end('late'), ANSWER_MS));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  ({ port } = server.address() as AddressInfo);
});

afterAll(async () => {
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
  rmSync(folder, { recursive: true });
});

const fetchText = async (): Promise<string> => (await fetch(`http://127.0.0.1:${port}/`)).text();

/** What a rank may be doing while another waits for it. */
const ACTIVITIES: Readonly<Record<string, () => Promise<unknown>>> = {
  'setTimeout of the global object': () => new Promise((resolve) => setTimeout(resolve, 30)),
  'setTimeout of node:timers/promises': () => sleep(30),
  'an unreferenced timer': () => new Promise((resolve) => setTimeout(resolve, 30).unref()),
  setInterval: () =>
    new Promise<void>((resolve) => {
      let ticks = 0;
      const timer = setInterval(() => {
        ticks += 1;
        if (ticks < 3) return;
        clearInterval(timer);
        resolve();
      }, 8);
    }),
  'a chain of setImmediate': async () => {
    for (let turn = 0; turn < 30; turn++) await new Promise(setImmediate);
  },
  'fs.promises.readFile': async () => {
    for (let i = 0; i < 5; i++) await readFile(join(folder, 'data'));
  },
  fetch: fetchText,
  'fetch over a pooled connection': async () => {
    await fetchText();
    await fetchText();
  },
  'a socket': () =>
    new Promise<void>((resolve) => {
      const socket = connect(port, '127.0.0.1', () => socket.write('GET / HTTP/1.0\r\n\r\n'));
      socket.on('close', () => resolve()).resume();
    }),
  'a worker': () =>
    new Promise((resolve) => {
      const worker = new Worker('setTimeout(() => {}, 20)', { eval: true });
      worker.on('exit', resolve);
    }),
  'a child process': () => new Promise((resolve) => exec('sleep 0.03', resolve)),
  'a job of the thread pool': () => new Promise((resolve) => scrypt('a', 'b', 64, resolve)),
  compression: () => new Promise((resolve) => gzip(Buffer.alloc(1 << 22), resolve)),
};

describe.each(Object.entries(ACTIVITIES))('a rank in %s', (_what, activity) => {
  test('is not declared stuck, also while a call of its own is awaited elsewhere', async () => {
    const errors = await failures(2, async (backend) => {
      if (backend.rank === 1) {
        const answer = new Float32Array(1);
        const received = backend.recv(answer, 0).then(() => undefined);
        await activity();
        await backend.send(answer.slice(), 0, 1).catch(() => undefined);
        await received;
      } else {
        await backend.recv(new Float32Array(1), 1, 1);
        await backend.send(new Float32Array(1), 1);
      }
    });
    expect(errors).toEqual([undefined, undefined]);
  });
});

/** An empty module: what Node does not show while it is compiled. */
const WASM = Uint8Array.of(0, 0x61, 0x73, 0x6d, 1, 0, 0, 0);

/** Node has these, the type library of this build has not. */
const { WebAssembly } = globalThis as unknown as { WebAssembly: { compile(bytes: Uint8Array): Promise<unknown> } };
const { waitAsync } = Atomics as unknown as {
  waitAsync(array: Int32Array, index: number, value: number, timeoutMs: number): { readonly value: Promise<string> };
};

describe.each<[string, number, () => Promise<unknown>]>([
  ['WebAssembly.compile', 20, () => WebAssembly.compile(WASM)],
  ['Atomics.waitAsync', 1, () => waitAsync(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 120).value],
])('a rank in %s, which Node does not show', (_what, times, activity) => {
  test('is live while it awaits no call of its own', async () => {
    const errors = await failures(2, async (backend) => {
      for (let i = 0; backend.rank === 1 && i < times; i++) await activity();
      await backend.barrier();
    });
    expect(errors).toEqual([undefined, undefined]);
  });
});

test('a rank that awaits a call and something that Node does not show is given a moment', async () => {
  const errors = await failures(2, async (backend) => {
    const peer = 1 - backend.rank;
    if (backend.rank === 1) {
      const sendLater = async (): Promise<void> => {
        await waitAsync(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20).value;
        await backend.send(new Float32Array(1), peer);
      };
      await Promise.all([backend.recv(new Float32Array(1), peer), sendLater()]);
    } else {
      await backend.recv(new Float32Array(1), peer);
      await backend.send(new Float32Array(1), peer);
    }
  });
  expect(errors).toEqual([undefined, undefined]);
});

describe.each(
  [
    'setTimeout of the global object',
    'setInterval',
    'fs.promises.readFile',
    'a socket',
    'a worker',
    'a child process',
    'a job of the thread pool',
  ].map((name) => [name, ACTIVITIES[name] as () => Promise<unknown>] as const),
)('after %s', (_what, activity) => {
  test('a rank that waits for a dead peer is declared stuck', async () => {
    const errors = await failures(
      2,
      async (backend: MockBackend) => {
        if (backend.rank === 0) return;
        const work = backend.barrier();
        await activity();
        await work;
      },
      { timeoutMs: 5000 },
    );
    expect(names(errors)).toEqual([undefined, 'DeadlockError']);
  });
});

test('a branch that ends without a call leaves the other branch of the rank stuck, and that is found', async () => {
  const errors = await failures(
    2,
    async (backend) => {
      if (backend.rank === 0) return;
      await Promise.all([backend.barrier(), sleep(30)]);
    },
    { timeoutMs: 5000 },
  );
  expect(names(errors)).toEqual([undefined, 'DeadlockError']);
});

test('a wait with a limit of its own ends by that limit, and the deadline timers of calls keep nobody alive', async () => {
  const errors = await failures(2, async (backend) => {
    const work = backend.recv(new Float32Array(1), 1 - backend.rank, 0, { timeoutMs: 5000 });
    if (backend.rank === 0)
      await work.wait({ timeoutMs: 30 }).catch((error: Error) => expect(error.message).toMatch(/still in flight/));
    await work;
  });
  expect(names(errors)).toEqual(['DeadlockError', 'DeadlockError']);
});

test('reading this file synchronously is no activity', async () => {
  const errors = await failures(2, async (backend) => {
    readFileSync(__filename);
    await backend.barrier();
    if (backend.rank === 0) await backend.barrier();
  });
  expect(names(errors)).toEqual(['DeadlockError', undefined]);
});
