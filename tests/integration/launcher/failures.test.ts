import { areGone, isAlive, LauncherBench, processIds, sortedLines } from './launcher';

let bench: LauncherBench;
beforeAll(() => {
  bench = new LauncherBench();
});
afterAll(() => bench?.close());

/**
 * A script for all ranks, with `rank`, `generation`, `stay()` until a signal comes, `gone(processId)`, and `arrived()` once all
 * ranks have, which gives their process ids by rank.
 */
const program = (name: string, body: string): string =>
  bench.script(
    name,
    `const { mkdirSync, readdirSync, writeFileSync } = require('node:fs');
     const rank = Number(process.env.RANK);
     const generation = Number(process.env.LOCKSTEP_GENERATION);
     const stay = () => setInterval(() => {}, 1000);
     const pause = (ms) => new Promise((settle) => setTimeout(settle, ms));
     const arrived = async () => {
       const folder = __filename + '.' + process.ppid + '.' + generation;
       mkdirSync(folder, { recursive: true });
       writeFileSync(folder + '/' + rank + '.' + process.pid, '');
       while (readdirSync(folder).length < Number(process.env.WORLD_SIZE)) await pause(5);
       return (other) => Number(readdirSync(folder).find((name) => name.startsWith(other + '.')).split('.')[1]);
     };
     const gone = async (processId) => {
       for (;;) {
         try { process.kill(processId, 0); } catch { return; } // it is no more
         await pause(5);
       }
     };
     console.log('pid ' + process.pid);
     void (async () => { ${body} })();`,
  );

describe('a rank that fails', () => {
  test('gives its exit code, is named first with what it said, and the others are stopped', async () => {
    const script = program(
      'code.js',
      `await arrived();
       if (rank === 1) { console.error('disk is full'); process.exit(3); }
       stay();`,
    );
    const { status, stdout, stderr } = await bench.run(['run', '--nproc', '3', script]);
    expect(status).toBe(3);
    const summary = stderr.split('\n').filter((line) => line.startsWith('lockstep:'));
    expect(summary).toEqual([
      expect.stringMatching(/^lockstep: rank 1 failed first: exit code 3 after \d+\.\d s, process \d+$/),
      'lockstep:   disk is full',
      'lockstep: ranks 0, 2: stopped by the launcher',
    ]);
    expect(processIds(stdout)).toHaveLength(3);
    expect(processIds(stdout).filter(isAlive)).toEqual([]);
  });

  test('with an error that nobody caught: the error is in the summary', async () => {
    const script = program('throws.js', `if (rank === 0) throw new RangeError('no such layer'); stay();`);
    const { status, stderr } = await bench.run(['run', '--nproc', '2', script]);
    expect(status).toBe(1);
    expect(stderr).toMatch(
      /lockstep: rank 0 failed first: exit code 1 .*\nlockstep: {3}RangeError: no such layer\nlockstep: {7}at /,
    );
  });

  test('killed by a signal: 128 and its number', async () => {
    const script = program('killed.js', `if (rank === 2) process.kill(process.pid, 'SIGKILL'); else stay();`);
    const { status, stderr } = await bench.run(['run', '--nproc', '3', script]);
    expect(status).toBe(137);
    expect(stderr).toContain('lockstep: rank 2 failed first: killed by SIGKILL');
  });

  test.each([
    ['printed', `console.error('PeerLostError: rank 1 was lost'); process.exit(1);`],
    [
      'thrown',
      `const { PeerLostError } = require(process.argv[2]); throw new Error('step 3', { cause: new PeerLostError('rank 1 was lost') });`,
    ],
  ])(
    'is found behind the rank that lost it, which ends sooner with an error that it has %s',
    async (_how, consequence) => {
      const script = program(
        'behind.js',
        `const idOf = await arrived(); if (rank === 0) { ${consequence} } await gone(idOf(0)); process.exit(5);`,
      );
      const { status, stderr } = await bench.run(['run', '--nproc', '2', script, bench.dist]);
      expect(status).toBe(5);
      expect(stderr).toMatch(
        /lockstep: rank 1 failed first: exit code 5 [^]*lockstep: rank 0 failed after it: exit code 1/,
      );
    },
  );

  test('ends the others also where they ignore SIGTERM, and what they started with them', async () => {
    const script = program(
      'stubborn.js',
      `if (rank === 0) {
         process.on('SIGTERM', () => console.log('ignored'));
         const child = require('node:child_process').spawn('sleep', ['100'], { stdio: 'inherit' });
         console.log('pid ' + child.pid);
         stay();
       }
       await arrived();
       if (rank === 1) process.exit(4);`,
    );
    const { status, stdout } = await bench.run(['run', '--nproc', '2', '--grace-ms', '200', script]);
    expect(status).toBe(4);
    expect(stdout).toContain('[0] ignored');
    expect(processIds(stdout)).toHaveLength(3);
    await areGone(processIds(stdout));
  });
});

describe('restarts', () => {
  test('start all ranks again, in a new generation, on another port, with another token', async () => {
    const script = program(
      'again.js',
      `console.log('start', rank, generation, process.env.LOCKSTEP_JOB_TOKEN);
       console.log('port', process.env.MASTER_PORT);
       await arrived();
       if (generation === 2) return;
       if (rank === 1) process.exit(9);
       stay();`,
    );
    const { status, stdout, stderr } = await bench.run([
      'run',
      '--nproc',
      '2',
      '--max-restarts',
      '2',
      '--log-dir',
      'again',
      script,
    ]);
    expect(status).toBe(0);
    const starts = sortedLines(stdout, /start/).map((line) => line.split(' ').slice(2, 4).join(' '));
    expect(starts).toEqual(['0 0', '0 1', '0 2', '1 0', '1 1', '1 2']);
    expect(new Set(stdout.match(/[0-9a-f]{64}/g))).toHaveProperty('size', 3);
    expect(new Set(stdout.match(/port \d+/g))).toHaveProperty('size', 3);
    expect(sortedLines(stderr, /starting/)).toEqual([
      'lockstep: starting again: generation 1, restart 1 of 2',
      'lockstep: starting again: generation 2, restart 2 of 2',
    ]);
    expect(bench.list('again')).toContain('rank-1.restart-2.log');
  });

  test('end with the last failure once they are used up', async () => {
    const script = program('never.js', `process.exit(10 + generation);`);
    const { status } = await bench.run(['run', '--max-restarts', '1', script]);
    expect(status).toBe(11);
  });
});

describe('a launcher that is told to stop', () => {
  test.each([
    ['SIGINT', 130],
    ['SIGTERM', 143],
  ] as const)('%s goes to all ranks, and no restart follows', async (signal, code) => {
    const script = program(
      'told.js',
      `process.on('${signal}', () => { console.log('told ' + rank); process.exit(1); }); console.log('ready ' + rank); stay();`,
    );
    const job = bench.start(['run', '--nproc', '2', '--max-restarts', '3', script]);
    await job.printed('ready 0');
    await job.printed('ready 1');
    job.child.kill(signal);
    const { status, stdout, stderr } = await job.ended;
    expect(status).toBe(code);
    expect(sortedLines(stdout, /told/)).toEqual(['[0] told 0', '[1] told 1']);
    expect(stderr).toBe(`lockstep: stopped by ${signal}\n`);
    expect(processIds(stdout).filter(isAlive)).toEqual([]);
  });

  test('twice kills what is left, without waiting for the grace period', async () => {
    const script = program('deaf.js', `process.on('SIGINT', () => console.log('no')); console.log('ready'); stay();`);
    const job = bench.start(['run', '--grace-ms', '60000', script]);
    await job.printed('ready');
    job.child.kill('SIGINT');
    await job.printed('no');
    job.child.kill('SIGINT');
    const { status, stdout } = await job.ended;
    expect(status).toBe(130);
    expect(processIds(stdout).filter(isAlive)).toEqual([]);
  });

  test('ends when nobody reads its output any more', async () => {
    const script = program('chatty.js', `setInterval(() => console.log('x'.repeat(1000)), 1);`);
    const job = bench.start(['run', '--nproc', '2', script]);
    await job.printed(/\[0\] xxx[^]*\[1\] xxx|\[1\] xxx[^]*\[0\] xxx/);
    job.child.stdout?.destroy();
    const { status } = await job.ended;
    expect(status).toBe(141);
    await areGone(processIds(job.output()));
  });

  test('that is killed takes its ranks, and what they started, with it', async () => {
    const script = program(
      'orphans.js',
      `const child = require('node:child_process').spawn('sleep', ['100'], { stdio: 'ignore' });
       console.log('pid ' + child.pid + ' ready ' + rank);
       stay();`,
    );
    const job = bench.start(['run', '--nproc', '2', script]);
    await job.printed('ready 0');
    await job.printed('ready 1');
    job.child.kill('SIGKILL');
    await job.ended;
    expect(processIds(job.output())).toHaveLength(4);
    await areGone(processIds(job.output()));
  });
});
