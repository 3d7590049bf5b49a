/** Programs with a world, on ranks that the launcher started. */
import { areGone, LauncherBench, processIds, sortedLines, type Running } from './launcher';
import { freePort } from '../../helpers/free-port';

let bench: LauncherBench;
beforeAll(() => {
  bench = new LauncherBench();
});
afterAll(() => bench?.close());

/** A script whose `body` runs on each rank between init and close. */
const program = (name: string, body: string): string =>
  bench.script(
    name,
    `const { World, Tensor, allReduceSum } = require(${JSON.stringify(bench.dist)});
     async function main() {
       const generation = Number(process.env.LOCKSTEP_GENERATION);
       const world = await World.init();
       console.log('pid ' + process.pid);
       try { ${body} } finally { await world.close(); }
     }
     void main();`,
  );

const sum = `
  const tensor = Tensor.from([world.rank, 1]);
  await allReduceSum(tensor, world.group);
  console.log('sum', tensor.toArray().join(' '), 'local', world.localRank);`;

test('the ranks of one launcher are a world', async () => {
  const { status, stdout, stderr } = await bench.run(['run', '--nproc', '3', program('sum.js', sum)]);
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  expect(sortedLines(stdout, /sum/)).toEqual([0, 1, 2].map((rank) => `[${rank}] sum 3 3 local ${rank}`));
});

test('the ranks of two launchers, one a machine, are a world', async () => {
  const port = await freePort();
  const flags = ['--nproc=2', '--nnodes=2', '--master-addr=localhost', `--master-port=${port}`];
  const script = program('nodes.js', sum);
  const env = { LOCKSTEP_JOB_TOKEN: 'known to both' };
  // The machine of rank 0 comes second.
  const second = bench.run(['run', ...flags, '--node-rank=1', script], { env });
  const first = bench.run(['run', ...flags, '--node-rank=0', script], { env });
  const ends = await Promise.all([first, second]);
  expect(ends.map(({ status, stderr }) => ({ status, stderr }))).toEqual([0, 1].map(() => ({ status: 0, stderr: '' })));
  expect(ends.flatMap(({ stdout }) => sortedLines(stdout, /sum/))).toEqual(
    [0, 1, 2, 3].map((rank) => `[${rank}] sum 6 4 local ${rank % 2}`),
  );
});

test('a launcher with another token does not get in', async () => {
  const port = await freePort();
  const flags = ['--nnodes=2', '--master-addr=127.0.0.1', `--master-port=${port}`];
  const script = program('strangers.js', sum);
  const [own, stranger] = ['one', 'another'].map((token, nodeRank) =>
    bench.start(['run', ...flags, `--node-rank=${nodeRank}`, script], { env: { LOCKSTEP_JOB_TOKEN: token } }),
  ) as [Running, Running];
  // Both would wait for ten minutes for a rank that does not come; this one is told at once that it is not wanted.
  const { status, stdout, stderr } = await stranger.ended;
  expect({ status, stdout }).toEqual({ status: 1, stdout: '' });
  expect(stderr).toMatch(/do not hold the same job token/);
  await own.printed(/refused a connection .*do not hold the same job token/);
  own.child.kill('SIGTERM');
  expect(await own.ended).toMatchObject({ status: 143, stdout: '' });
});

test('a rank that throws is named first, though the others lose it', async () => {
  const script = program(
    'throws.js',
    `await world.barrier();
     if (world.rank === 1) throw new RangeError('no such layer');
     await world.barrier();`,
  );
  const { status, stderr } = await bench.run(['run', '--nproc', '3', script]);
  expect(status).toBe(1);
  const summary = sortedLines(stderr, /^lockstep: (rank|ranks) /);
  expect(summary.join('\n')).toContain('rank 1 failed first: exit code 1');
  expect(stderr).toMatch(/failed first.*\nlockstep: {3}RangeError: no such layer\n/);
});

test('a rank that ended well is named if the others still waited for it', async () => {
  const script = program(
    'early.js',
    `await world.barrier();
     if (world.rank === 1) process.exit(0);
     await world.barrier();`,
  );
  const { status, stderr } = await bench.run(['run', '--nproc', '3', script]);
  expect(status).toBe(1);
  const summary = stderr.split('\n').filter((line) => line.startsWith('lockstep: '));
  expect(summary[0]).toMatch(/^lockstep: rank 1 ended early \(exit 0\) while others waited for it: after /);
  expect(stderr).not.toContain('failed first');
  expect(summary.join('\n')).toMatch(/rank [02] failed after it: exit code 1, PeerLostError: rank 1 /);
});

test('a rank that throws is named first, though all catch their errors and print only the messages', async () => {
  const script = program(
    'caught.js',
    `try {
       await world.barrier();
       if (world.rank === 1) throw new RangeError('no such layer');
       await world.barrier();
     } catch (error) {
       console.error(error.message);
       process.exitCode = 7;
     }`,
  );
  const { status, stderr } = await bench.run(['run', '--nproc', '3', script]);
  expect(status).toBe(7);
  expect(stderr).toMatch(/lockstep: rank 1 failed first: exit code 7 .*\nlockstep: {3}no such layer\n/);
});

test('a rank that is killed in a collective is named first; after a restart the job is done', async () => {
  const script = program(
    'restarts.js',
    `await world.barrier();
     if (generation === 0 && world.rank === 2) process.kill(process.pid, 'SIGKILL');
     ${sum}`,
  );
  const { status, stdout, stderr } = await bench.run(['run', '--nproc', '3', '--max-restarts', '1', script]);
  expect(stderr).toContain('lockstep: rank 2 failed first: killed by SIGKILL');
  expect(sortedLines(stdout, /sum/)).toEqual([0, 1, 2].map((rank) => `[${rank}] sum 3 3 local ${rank}`));
  expect(status).toBe(0);
  await areGone(processIds(stdout));
});

test('the store may be a process of its own', async () => {
  const port = await freePort();
  const env = { LOCKSTEP_JOB_TOKEN: 'known to all' };
  const store = bench.start(['store', `--port=${port}`, '--world-size=2'], { env });
  await store.printed('listening');
  const args = ['run', '--nproc=2', `--master-port=${port}`, program('store.js', sum)];
  const { status, stdout, stderr } = await bench.run(args, { env: { ...env, LOCKSTEP_STORE: 'external' } });
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  expect(sortedLines(stdout, /sum/)).toEqual(['[0] sum 1 2 local 0', '[1] sum 1 2 local 1']);
  store.child.kill('SIGTERM');
  expect(await store.ended).toMatchObject({ status: 0, stderr: '' });
});
