import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { LauncherBench, sortedLines } from './launcher';
import { testWhere } from '../../helpers/test-where';

let bench: LauncherBench;
beforeAll(() => {
  bench = new LauncherBench();
});
afterAll(() => bench?.close());

const printVariables = `
  const names = ['RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'GROUP_RANK', 'MASTER_ADDR', 'LOCKSTEP_BACKEND',
    'LOCKSTEP_GENERATION', 'LOCKSTEP_DATA_PLANE', 'LOCKSTEP_TIMEOUT_MS'];
  console.log(names.map((name) => name + '=' + process.env[name]).join(' '));
  console.log('port ' + process.env.MASTER_PORT);
  console.log('token ' + process.env.LOCKSTEP_JOB_TOKEN);`;

describe('what a rank gets', () => {
  test("torchrun's variables, one port, one token of 32 bytes, and its arguments", async () => {
    const script = bench.script(
      'variables.js',
      `${printVariables} console.log(JSON.stringify(process.argv.slice(2)));`,
    );
    const args = ['run', '--nproc', '3', '--data-plane=socket', '--timeout-ms', '5000', script, '--nproc', '9', 'x y'];
    const { status, stdout, stderr } = await bench.run(args);
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    expect(sortedLines(stdout, /RANK/)).toEqual(
      [0, 1, 2].map(
        (rank) =>
          `[${rank}] RANK=${rank} LOCAL_RANK=${rank} WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 GROUP_RANK=0 MASTER_ADDR=127.0.0.1 LOCKSTEP_BACKEND=grpc LOCKSTEP_GENERATION=0 LOCKSTEP_DATA_PLANE=socket LOCKSTEP_TIMEOUT_MS=5000`,
      ),
    );
    expect(sortedLines(stdout, /nproc/)).toEqual([0, 1, 2].map((rank) => `[${rank}] ["--nproc","9","x y"]`));
    expect(new Set(stdout.match(/port \d+/g))).toHaveProperty('size', 1);
    expect(new Set(stdout.match(/token [0-9a-f]{64}$/gm))).toHaveProperty('size', 1);
  });

  test('the token that its user chose, and another backend', async () => {
    const env = { LOCKSTEP_JOB_TOKEN: 'a secret of my own', LOCKSTEP_BACKEND: 'mine', LOCKSTEP_GENERATION: '7' };
    const { stdout } = await bench.run(['run', bench.script('own.js', printVariables)], { env });
    expect(stdout).toContain('token a secret of my own');
    expect(stdout).toContain('LOCKSTEP_BACKEND=mine LOCKSTEP_GENERATION=7 LOCKSTEP_DATA_PLANE=undefined');
  });

  test('no token of the launcher where a file holds one', async () => {
    const env = { LOCKSTEP_JOB_TOKEN_FILE: '/run/secrets/token' };
    const { stdout } = await bench.run(['run', bench.script('file.js', printVariables)], { env });
    expect(stdout).toContain('token undefined');
  });

  test('a token on no command line and in no log', async () => {
    const script = bench.script(
      'secret.js',
      `const { readFileSync, readdirSync, writeFileSync } = require('node:fs');
       const { execFileSync } = require('node:child_process');
       const commandLines = () => process.platform === 'linux'
         ? readdirSync('/proc').filter((name) => /^\\d+$/.test(name)).map((id) => {
             try { return readFileSync('/proc/' + id + '/cmdline', 'utf8'); } catch { return ''; } // it has ended
           }).join('\\n')
         : execFileSync('ps', ['-axww', '-o', 'args'], { encoding: 'utf8' });
       const token = process.env.LOCKSTEP_JOB_TOKEN;
       writeFileSync('seen.json', JSON.stringify({ token, lines: commandLines() }));
       process.exitCode = 1;`,
    );
    const { status, stdout, stderr } = await bench.run(['run', '--log-dir', 'secret-logs', script], {
      env: { LOCKSTEP_LOG: 'debug' },
    });
    expect(status).toBe(1);
    const { token, lines } = JSON.parse(readFileSync(join(bench.scripts, 'seen.json'), 'utf8'));
    expect(token).toMatch(/^[0-9a-f]{64}$/);
    expect(lines).toContain('secret.js');
    expect(lines).not.toContain(token);
    const logs = bench
      .list('secret-logs')
      .map((name) => readFileSync(join(bench.scripts, 'secret-logs', name), 'utf8'));
    expect(stdout + stderr + logs.join('')).not.toContain(token);
  });
});

test('two launchers, one a machine, number all ranks of the job', async () => {
  const script = bench.script(
    'nodes.js',
    `const { RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT } = process.env;
     console.log([RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT].join(' '));`,
  );
  const flags = ['--nproc=2', '--nnodes=2', '--master-addr=127.0.0.1', '--master-port=29511'];
  const env = { LOCKSTEP_JOB_TOKEN: 'known to both' };
  const ends = await Promise.all(
    [0, 1].map((nodeRank) => bench.run(['run', ...flags, `--node-rank=${nodeRank}`, script], { env })),
  );
  expect(ends.map(({ status, stderr }) => ({ status, stderr }))).toEqual([0, 1].map(() => ({ status: 0, stderr: '' })));
  expect(ends.flatMap(({ stdout }) => sortedLines(stdout))).toEqual([
    '[0] 0 0 4 2 0 127.0.0.1 29511',
    '[1] 1 1 4 2 0 127.0.0.1 29511',
    '[2] 2 0 4 2 1 127.0.0.1 29511',
    '[3] 3 1 4 2 1 127.0.0.1 29511',
  ]);
});

describe('what ranks print', () => {
  test('comes line by line, whole, with its rank before it, also where a rank writes it in pieces', async () => {
    const script = bench.script(
      'pieces.js',
      `const bytes = Buffer.from('grüße von rank ' + process.env.RANK + '\\n');
       (async () => {
         for (const byte of bytes) {
           process.stdout.write(Buffer.of(byte));
           await new Promise((settle) => setTimeout(settle, 1));
         }
         console.error('an error line');
         process.stdout.write('no newline at the end');
       })();`,
    );
    const { status, stdout, stderr } = await bench.run(['run', '--nproc', '3', script]);
    expect(status).toBe(0);
    const expected = [0, 1, 2].flatMap((rank) => [
      `[${rank}] grüße von rank ${rank}`,
      `[${rank}] no newline at the end`,
    ]);
    expect(sortedLines(stdout)).toEqual(expected.sort());
    expect(sortedLines(stderr)).toEqual(['[0] an error line', '[1] an error line', '[2] an error line']);
  });

  test('comes without a rank under --no-prefix, and goes to a file per rank under --log-dir', async () => {
    const script = bench.script(
      'logged.js',
      `console.log('out ' + process.env.RANK); console.error('err ' + process.env.RANK);`,
    );
    const { stdout } = await bench.run(['run', '--nproc', '2', '--no-prefix', '--log-dir', 'logs', script]);
    expect(sortedLines(stdout)).toEqual(['out 0', 'out 1']);
    expect(bench.list('logs')).toEqual(['rank-0.log', 'rank-1.log']);
    const log = readFileSync(join(bench.scripts, 'logs', 'rank-1.log'), 'utf8');
    expect(sortedLines(log)).toEqual(['err 1', 'out 1']);
  });

  test('is complete, however much it is', async () => {
    const script = bench.script('much.js', `for (let i = 0; i < 20000; i++) console.log('line ' + i);`);
    const { stdout } = await bench.run(['run', '--nproc', '2', script]);
    for (const rank of [0, 1]) {
      const lines = stdout.split('\n').filter((line) => line.startsWith(`[${rank}]`));
      expect(lines).toEqual(Array.from({ length: 20_000 }, (_, i) => `[${rank}] line ${i}`));
    }
  });
});

describe('TypeScript', () => {
  const typed = `const rank: string = process.env.RANK as string; enum Kind { A } console.log('typed', rank, Kind[0]);`;

  test('runs where tsx is installed', async () => {
    // From the checkout's root the package tsx resolves.
    const script = bench.script('typed.ts', typed);
    const { status, stdout } = await bench.run(['run', script], { cwd: join(__dirname, '../../..') });
    expect({ status, stdout }).toEqual({ status: 0, stdout: '[0] typed 0 A\n' });
  });

  const stripsTypes = Boolean((process.features as { typescript?: unknown }).typescript);
  const test20 = testWhere(!stripsTypes, 'TypeScript without tsx', 'a Node.js that does not strip types itself');
  test20('is refused with the remedy where it is not', async () => {
    const script = bench.script('untyped.ts', typed);
    const { status, stdout, stderr } = await bench.run(['run', '--nproc', '4', script]);
    expect({ status, stdout }).toEqual({ status: 1, stdout: '' });
    expect(stderr).toMatch(/untyped\.ts is TypeScript, and the package tsx was not found.*npm install --save-dev tsx/);
  });

  test('ES modules run', async () => {
    const script = bench.script(
      'module.mjs',
      `import { hostname } from 'node:os'; await 1; console.log(typeof hostname);`,
    );
    expect(await bench.run(['run', script])).toEqual({ status: 0, stdout: '[0] function\n', stderr: '' });
  });
});

describe('a command line that cannot be run', () => {
  test.each<[string, string[], RegExp]>([
    ['flags', ['run', '--nproc', '-1', '--timeout-ms', '1.5'], /^lockstep run: --nproc: .* got '-1'; --timeout-ms: /],
    ['an unknown command', ['start'], /there is no command 'start'\. Commands: run/],
    [
      'a folder for logs that is below a file',
      ['run', '--log-dir', 'x.js/logs', 'x.js'],
      /^lockstep run: --log-dir: expected a folder .* cannot write .*x\.js.logs \(ENOTDIR/,
    ],
  ])('ends with 2 and one line that says why: %s', async (_what, args, message) => {
    bench.script('x.js', '');
    const { status, stdout, stderr } = await bench.run(args);
    expect({ status, stdout }).toEqual({ status: 2, stdout: '' });
    expect(stderr).toMatch(message);
    expect(stderr.split('\n')).toHaveLength(2);
  });

  test.each(['--help', 'run --help'])('%s helps', async (line) => {
    const { status, stdout } = await bench.run(line.split(' '));
    expect(status).toBe(0);
    expect(stdout).toContain('lockstep run');
  });
});
