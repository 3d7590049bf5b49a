import { spawnSync } from 'node:child_process';
import { testBuild } from '../helpers/test-build';

/** For a process that does not end by itself. */
const LIMIT_MS = 15_000;

/** Runs a program in a process of its own, which has to end by itself, and says how it ended. */
function endOf(body: string): string {
  const program = `
    const { MockBackend } = require('./src/backend/mock/mock-backend');
    const { runWorld } = require('./src/testing/run-world');
    async function main() { ${body} }
    main().then(() => console.log('done'), (error) => console.log(error.name));
  `;
  const args = ['--unhandled-rejections=strict', '-e', program];
  const { status, stdout, stderr } = spawnSync(process.execPath, args, {
    cwd: testBuild(),
    encoding: 'utf8',
    timeout: LIMIT_MS,
  });
  return `${status ?? 'still running'}: ${stdout}${stderr}`.trim();
}

test.each<[string, string, string]>([
  ['a world that ran', 'await runWorld(4, async (world) => { await world.barrier(); });', '0: done'],
  [
    'a world with pauses, on which deadlines and polls were set',
    `await runWorld(2, async (world) => {
       if (world.rank === 1) await new Promise((resolve) => setTimeout(resolve, 30));
       await world.barrier();
     });`,
    '0: done',
  ],
  [
    'a world that failed',
    "await runWorld(2, async (world) => { if (world.rank === 1) throw new Error('no'); await world.barrier(); });",
    '0: WorldError',
  ],
  ['a world that stalled', 'await runWorld(2, () => new Promise(() => {}), { stallMs: 50 });', '0: WorldError'],
  [
    'closed backends with calls in flight that nobody awaits',
    `const world = MockBackend.createWorld(3);
     const works = [world[0].barrier(), world[1].recv(new Float32Array(1), 0)];
     await new Promise(setImmediate);
     for (const backend of world) await backend.close();`,
    '0: done',
  ],
  [
    'backends that nobody closed, once nobody waits',
    `const world = MockBackend.createWorld(2);
     world[0].barrier();
     await new Promise(setImmediate);`,
    '0: done',
  ],
  [
    'a failure that nobody hears',
    `const world = MockBackend.createWorld(2);
     world[0].barrier();
     world[1].split([0]).catch(() => {});
     await new Promise((resolve) => setTimeout(resolve, 20));`,
    '0: done',
  ],
])('nothing is left to keep the process alive, or to end it badly, after %s', (_what, body, end) => {
  expect(endOf(body)).toBe(end);
});

test('a process waits for a call that somebody awaits', () => {
  const body = 'await MockBackend.createWorld(2)[0].barrier({ timeoutMs: 100 });';
  expect(endOf(body)).toBe('0: CollectiveTimeoutError');
});
