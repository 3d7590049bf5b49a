/**
 * `npm test`: build, types, lint, format, then Jest. All stages run, so one failure does not hide another;
 * the last line is Jest's own result as `N passed, N failed`, and the exit status is 0 only if all stages passed.
 *
 * `--long` sets LOCKSTEP_TEST_LONG=1 (see tests/helpers/counts.ts). Other arguments go to Jest.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

interface Stage {
  readonly name: string;
  readonly command: string;
  readonly args: readonly string[];
}

interface Tally {
  readonly passed: number;
  readonly failed: number;
}

const root = resolve(__dirname, '..');
const isLong = process.argv.includes('--long') || process.env['LOCKSTEP_TEST_LONG'] === '1';
const jestArgs = process.argv.slice(2).filter((argument) => argument !== '--long');

/** For hangs; a stage takes seconds, Jest a few minutes. */
const stageLimitMs = (isLong ? 300 : 20) * 60_000;

const checks: readonly Stage[] = ['build', 'typecheck', 'lint', 'format:check'].map((name) => ({
  name,
  command: 'npm',
  args: ['run', '--silent', name],
}));

/** Runs one stage with its output shown; true if it exited with 0. */
function run(stage: Stage): boolean {
  const start = performance.now();
  const { status, error } = spawnSync(stage.command, stage.args, {
    cwd: root,
    stdio: 'inherit',
    timeout: stageLimitMs,
    shell: process.platform === 'win32',
    env: { ...process.env, LOCKSTEP_TEST_LONG: isLong ? '1' : '0' },
  });
  const seconds = ((performance.now() - start) / 1000).toFixed(1);
  const outcome = status === 0 ? 'ok' : `FAILED (${error?.message ?? `exit ${status}`})`;
  process.stdout.write(`[${stage.name}] ${outcome}, ${seconds} s\n`);
  return status === 0;
}

/** Jest's result file; a test file that could not even run counts as one failure. */
function readTally(path: string): Tally {
  try {
    const result = JSON.parse(readFileSync(path, 'utf8')) as Record<string, number>;
    return {
      passed: result['numPassedTests'] ?? 0,
      failed: (result['numFailedTests'] ?? 0) + (result['numRuntimeErrorTestSuites'] ?? 0),
    };
  } catch (error) {
    process.stdout.write(`Jest left no result: ${String(error)}\n`);
    return { passed: 0, failed: 0 };
  }
}

function runJest(): { readonly isOk: boolean; readonly tally: Tally } {
  const folder = mkdtempSync(join(tmpdir(), 'lockstep-jest-'));
  try {
    const outputFile = join(folder, 'result.json');
    const jest = join(root, 'node_modules', 'jest', 'bin', 'jest.js');
    const args = [jest, '--json', `--outputFile=${outputFile}`, ...jestArgs];
    const isOk = run({ name: 'jest', command: process.execPath, args });
    return { isOk, tally: readTally(outputFile) };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

const failures = checks.filter((stage) => !run(stage)).map((stage) => stage.name);
const { isOk, tally } = runJest();
if (!isOk) failures.push('jest');
if (tally.passed === 0) failures.push('no test passed');
if (failures.length > 0) process.stdout.write(`Failed: ${failures.join(', ')}\n`);
process.stdout.write(`${tally.passed} passed, ${tally.failed} failed\n`);
process.exitCode = failures.length > 0 || tally.failed > 0 ? 1 : 0;
