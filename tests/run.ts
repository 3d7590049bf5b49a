/**
 * `npm test`: build, types, lint, format, then Jest. All stages run, so one failure does not hide another;
 * the last line is Jest's own result as `N passed, N failed`, and the exit status is 0 only if all stages passed.
 * Lint takes as long as the other checks together and uses one core, so it runs beside them; beside tests of many processes it
 * would take more time than it saves. The native code is compiled here, so that no test waits for it; without a compiler its
 * tests are skipped, and say so.
 *
 * `--long` sets LOCKSTEP_TEST_LONG=1 (see tests/helpers/counts.ts). Other arguments go to Jest.
 */
import { spawn, type StdioOptions } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

interface Stage {
  readonly name: string;
  readonly command: string;
  readonly args: readonly string[];
  /** Exit statuses beside 0 that are no failure, and what they mean. */
  readonly isFine?: Readonly<Record<number, string>>;
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

const script = (name: string): Stage => ({ name, command: 'npm', args: ['run', '--silent', name] });

/** As tests/helpers/native-build.ts builds it, which then finds it done. */
const native: Stage = {
  name: 'native',
  command: process.execPath,
  args: [join('native-nccl', 'scripts', 'build.mjs'), 'addon', 'stand-ins', ...(isLong ? [] : ['--quick'])],
  isFine: { 3: 'skipped' },
};

/** Each lane is run one after the other, beside the other lane. */
const lanes: readonly (readonly Stage[])[] = [
  [native, script('build'), script('typecheck'), script('format:check')],
  [script('lint')],
];

/** Runs one stage; true if it exited with 0. Its output is shown as it comes, or, of stages side by side, at the end. */
async function run(stage: Stage, isAlone: boolean): Promise<boolean> {
  const start = performance.now();
  const pieces: Buffer[] = [];
  const stdio: StdioOptions = isAlone ? 'inherit' : ['ignore', 'pipe', 'pipe'];
  const outcome = await new Promise<string>((settle) => {
    const child = spawn(stage.command, stage.args, {
      cwd: root,
      stdio,
      timeout: stageLimitMs,
      shell: process.platform === 'win32',
      env: { ...process.env, LOCKSTEP_TEST_LONG: isLong ? '1' : '0' },
    });
    for (const stream of [child.stdout, child.stderr]) stream?.on('data', (bytes: Buffer) => pieces.push(bytes));
    child.once('error', (error) => settle(`FAILED (${error.message})`));
    child.once('close', (code, signal) => {
      const fine = code === 0 ? 'ok' : stage.isFine?.[code ?? -1];
      settle(fine ?? `FAILED (exit ${code ?? signal})`);
    });
  });
  const seconds = ((performance.now() - start) / 1000).toFixed(1);
  process.stdout.write(`${Buffer.concat(pieces).toString()}[${stage.name}] ${outcome}, ${seconds} s\n`);
  return !outcome.startsWith('FAILED');
}

/** Names of the stages that failed. */
async function runLane(stages: readonly Stage[]): Promise<string[]> {
  const failed: string[] = [];
  for (const stage of stages) if (!(await run(stage, false))) failed.push(stage.name);
  return failed;
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

async function runJest(): Promise<{ readonly isOk: boolean; readonly tally: Tally }> {
  const folder = mkdtempSync(join(tmpdir(), 'lockstep-jest-'));
  try {
    const outputFile = join(folder, 'result.json');
    const jest = join(root, 'node_modules', 'jest', 'bin', 'jest.js');
    const args = [jest, '--json', `--outputFile=${outputFile}`, ...jestArgs];
    const isOk = await run({ name: 'jest', command: process.execPath, args }, true);
    return { isOk, tally: readTally(outputFile) };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

async function main(): Promise<void> {
  const failures = (await Promise.all(lanes.map(runLane))).flat();
  const { isOk, tally } = await runJest();
  if (!isOk) failures.push('jest');
  if (tally.passed === 0) failures.push('no test passed');
  if (failures.length > 0) process.stdout.write(`Failed: ${failures.join(', ')}\n`);
  process.stdout.write(`${tally.passed} passed, ${tally.failed} failed\n`);
  process.exitCode = failures.length > 0 || tally.failed > 0 ? 1 : 0;
}

void main();
