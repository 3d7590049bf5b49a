/** The check of a GPU in one command (native-nccl/gpu-check), dry-run on the CPU stand-ins. */
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import type { CheckResult } from '../../native-nccl/gpu-check/check';
import { runGroup } from '../../native-nccl/gpu-check/run-group';
import { isLong } from '../helpers/counts';
import { describeNative } from '../helpers/native-build';

const root = resolve(__dirname, '../..');
/** For hangs. */
const LIMIT_MS = 180_000;

jest.setTimeout(LIMIT_MS);

interface Outcome {
  readonly status: number | null;
  readonly lines: readonly string[];
}

interface Report {
  readonly isStandIn: boolean;
  readonly isComplete: boolean;
  readonly counts: { readonly ok: number; readonly failed: number; readonly skipped: number };
  readonly machine: { readonly bundle: { readonly isDryRun: boolean } };
  readonly checks: readonly {
    readonly group: string;
    readonly name: string;
    readonly outcome: 'ok' | 'failed' | 'skipped';
    readonly durationMs: number;
    readonly reason?: string;
  }[];
}

function run(command: string, args: readonly string[], variables: Record<string, string> = {}): Promise<Outcome> {
  return new Promise((settle, reject) => {
    const env: NodeJS.ProcessEnv = { ...process.env, ...variables };
    const child = spawn(command, args, { cwd: root, env, timeout: LIMIT_MS, stdio: ['ignore', 'pipe', 'pipe'] });
    const pieces: Buffer[] = [];
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (bytes: Buffer) => pieces.push(bytes));
    child.once('error', reject);
    child.once('close', (status) => settle({ status, lines: Buffer.concat(pieces).toString().trim().split('\n') }));
  });
}

const GROUPS = [
  'device',
  'training',
  'allocator',
  'backend',
  'communicator',
  'errors',
  'kernels',
  'optimizer',
  'timings',
  'two ranks',
];

/** `describeNative` of what takes too long for the short run. */
const describeLater: typeof describeNative = (title, _targets, define) => describe.skip(title, () => define(''));

const isVerdict = (line: string): boolean => /^(ok|FAILED|skipped) +/.test(line);

if (!isLong)
  process.stdout.write('[skip] the GPU check on the stand-ins: needs npm run test:long or npm run native:check\n');

(isLong ? describeNative : describeLater)('the GPU check on the stand-ins', ['addon', 'stand-ins'], () => {
  let folder: string;
  let bundle: string;

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'lockstep-gpu-check-'));
    bundle = join(folder, 'bundle');
    const script = join(root, 'native-nccl', 'gpu-check', 'bundle.ts');
    const args = ['--require', 'tsx/cjs', script, '--dry-run', '--out', bundle];
    const { status, lines } = await run(process.execPath, args);
    if (status !== 0) throw new Error(`the bundle could not be made:\n${lines.join('\n')}`);
  }, LIMIT_MS);

  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  /** `bash run.sh` in the bundle. */
  async function check(name: string, groups: readonly string[], variables: Record<string, string> = {}) {
    const out = join(folder, name);
    const outcome = await run('bash', [join(bundle, 'run.sh'), ...groups], { OUT: out, ...variables });
    const report = JSON.parse(readFileSync(join(out, 'report.json'), 'utf8')) as Report;
    return { ...outcome, report };
  }

  test('every check is made and holds, a line and an entry of the report each, and both say what it ran on', async () => {
    const misuse = join(folder, 'misuse.txt');
    const { status, lines, report } = await check('whole', [], {
      STANDIN_CUDA_REPORT: misuse,
    });
    expect(lines.filter((line) => line.startsWith('FAILED'))).toEqual([]);
    expect({ status, counts: report.counts }).toMatchObject({ status: 0, counts: { failed: 0 } });
    expect(lines[0]).toMatch(/STAND-INS: .*nothing about a GPU/);
    expect(lines.at(-1)).toMatch(/^\d+ ok, 0 failed, \d+ skipped \(on the CPU stand-ins, not on a GPU\)/);
    expect(report).toMatchObject({ isStandIn: true, isComplete: true, machine: { bundle: { isDryRun: true } } });

    // what a driver would answer with silence or a crash: races, use after free
    expect(existsSync(misuse) ? readFileSync(misuse, 'utf8') : '').toBe('');

    const verdicts = lines.filter(isVerdict);
    expect(verdicts).toHaveLength(report.checks.length);
    for (const [index, { group, name, outcome }] of report.checks.entries()) {
      const verdict = { ok: 'ok', failed: 'FAILED', skipped: 'skipped' }[outcome];
      expect(verdicts[index]).toMatch(new RegExp(`^${verdict} .*\\(\\d+ ms\\)$`));
      expect(verdicts[index]).toContain(`${group}: ${name}`);
    }
    const groups = new Set(report.checks.map(({ group }) => group));
    expect([...groups].sort()).toEqual([...GROUPS].sort());
    // the one thing that the stand-ins cannot show: they are not in a Python environment
    for (const skipped of report.checks.filter(({ outcome }) => outcome === 'skipped')) {
      expect(skipped).toMatchObject({ group: 'device', reason: 'python3 knows of no NCCL' });
    }
  });

  test('a check that does not hold is a FAILED line with the reason, and the exit status', async () => {
    const { status, lines, report } = await check('broken', ['device'], {
      LOCKSTEP_NCCL_LIBRARY: '/nowhere/libnccl.so.2',
    });
    expect(status).toBe(1);
    expect(lines.filter((line) => line.startsWith('FAILED'))[0]).toMatch(
      /NCCL is not loaded: .*\/nowhere\/libnccl\.so\.2/,
    );
    expect(report.counts.failed).toBeGreaterThan(0);
    expect(report.checks.length).toBeGreaterThan(report.counts.failed);
  });

  test('two ranks on one device are skipped where NCCL is too old for it, and that is no failure', async () => {
    const { status, report } = await check('older', ['two ranks'], { STANDIN_NCCL_VERSION: '22809' });
    expect(status).toBe(0);
    expect(report.counts).toMatchObject({ failed: 0, skipped: 2 });
    expect(report.checks[0]?.reason).toMatch(/NCCL 22809 cannot/);
  });
});

describe('the runner of checks', () => {
  /** A process of checks that do as their numbers say. */
  const program = `
    const [, , , first] = process.argv;
    const tell = (message) => new Promise((settle) => process.send(message, settle));
    const acts = {
      hang: () => new Promise(() => setInterval(() => undefined, 1000)),
      crash: () => process.kill(process.pid, 'SIGSEGV'),
      leave: () => process.exit(3),
      fail: () => 'failed',
      pass: () => 'ok',
    };
    const names = process.env.NAMES.split(' ').slice(Number(first));
    (async () => {
      for (const name of names) {
        await tell({ kind: 'begun' });
        const outcome = await acts[name]();
        await tell({ kind: 'ended', verdict: { outcome, durationMs: 1 } });
        if (outcome === 'failed') process.exit(0);
      }
      await tell({ kind: 'closed', reason: undefined });
      process.disconnect();
    })();`;

  async function results(names: readonly string[], options: { readonly dueMs?: number } = {}): Promise<CheckResult[]> {
    const folder = mkdtempSync(join(tmpdir(), 'lockstep-gpu-check-'));
    const found: CheckResult[] = [];
    try {
      writeFileSync(join(folder, 'program.cjs'), program);
      const checks = names.map((name) => ({ name, limitMs: name === 'hang' ? 500 : undefined, run: () => undefined }));
      await runGroup(
        { name: 'group', checks },
        {
          dueMs: options.dueMs ?? Infinity,
          logPath: join(folder, 'log'),
          environment: { ...process.env, NAMES: names.join(' ') },
          onResult: (result) => found.push(result),
          program: join(folder, 'program.cjs'),
        },
      );
      return found;
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  }
  const outcomes = (found: readonly CheckResult[]): string[] => found.map(({ name, outcome }) => `${name} ${outcome}`);
  const closing = expect.stringMatching(/closed and the process ends by itself ok/) as string;

  test('a check that hangs, crashes or leaves has failed, and all others are still made', async () => {
    const found = await results(['pass', 'hang', 'pass', 'crash', 'leave', 'fail', 'pass']);
    expect(outcomes(found)).toEqual([
      ...['pass ok', 'hang failed', 'pass ok', 'crash failed', 'leave failed', 'fail failed', 'pass ok'],
      closing,
    ]);
    const reasons = found.filter(({ outcome }) => outcome === 'failed').map(({ reason }) => reason ?? '');
    expect(reasons[0]).toBe('not finished after 500 ms; its process was killed');
    expect(reasons[1]).toMatch(/ended with SIGSEGV/);
    expect(reasons[2]).toMatch(/ended with exit code 3/);
  });

  test('what there is no time for has failed', async () => {
    const found = await results(['pass', 'pass'], { dueMs: 0 });
    expect(outcomes(found)).toEqual(['pass failed', 'pass failed']);
  });
});
