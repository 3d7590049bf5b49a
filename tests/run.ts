/**
 * `npm test`: build, types, lint, format, then Jest. All stages run, so one failure does not hide another;
 * the last line is Jest's own result as `N passed, N failed`, and the exit status is 0 only if all stages passed.
 * The native code is compiled before the tests, so that none waits for it; without a compiler its tests are skipped, and say so.
 * What only reads the sources runs beside all that.
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

/** What tests run. */
const builds: readonly Stage[] = [native, script('build')];
const checks: readonly Stage[] = [script('typecheck'), script('lint'), script('format:check')];

interface Outcome {
  /** Name of the stage if it failed. */
  readonly failures: readonly string[];
  /** Output that was kept, and a line on how the stage ended. */
  readonly report: string;
}

/** @param isShown its output goes out as it comes, and is not kept */
async function run(stage: Stage, isShown = false): Promise<Outcome> {
  const start = performance.now();
  const pieces: Buffer[] = [];
  const stdio: StdioOptions = isShown ? 'inherit' : ['ignore', 'pipe', 'pipe'];
  const ending = await new Promise<string>((resolveEnding) => {
    const child = spawn(stage.command, stage.args, {
      cwd: root,
      stdio,
      timeout: stageLimitMs,
      shell: process.platform === 'win32',
      env: { ...process.env, LOCKSTEP_TEST_LONG: isLong ? '1' : '0' },
    });
    for (const stream of [child.stdout, child.stderr]) stream?.on('data', (bytes: Buffer) => pieces.push(bytes));
    child.once('error', (error) => resolveEnding(`FAILED (${error.message})`));
    child.once('close', (code, signal) => {
      const fine = code === 0 ? 'ok' : stage.isFine?.[code ?? -1];
      resolveEnding(fine ?? `FAILED (exit ${code ?? signal})`);
    });
  });
  const seconds = ((performance.now() - start) / 1000).toFixed(1);
  const report = `${Buffer.concat(pieces).toString()}[${stage.name}] ${ending}, ${seconds} s\n`;
  return { failures: ending.startsWith('FAILED') ? [stage.name] : [], report };
}

/** One stage after the other, whether they fail or not. */
async function runAll(stages: readonly Stage[]): Promise<readonly Outcome[]> {
  const outcomes: Outcome[] = [];
  for (const stage of stages) outcomes.push(await run(stage));
  return outcomes;
}

/** Print the reports. @returns names of the stages that failed */
function settle(outcomes: readonly Outcome[]): string[] {
  for (const { report } of outcomes) process.stdout.write(report);
  return outcomes.flatMap(({ failures }) => failures);
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

async function runJest(): Promise<{ readonly outcome: Outcome; readonly tally: Tally }> {
  const folder = mkdtempSync(join(tmpdir(), 'lockstep-jest-'));
  try {
    const outputFile = join(folder, 'result.json');
    const jest = join(root, 'node_modules', 'jest', 'bin', 'jest.js');
    const args = [jest, '--json', `--outputFile=${outputFile}`, ...jestArgs];
    const outcome = await run({ name: 'jest', command: process.execPath, args }, true);
    return { outcome, tally: readTally(outputFile) };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

async function main(): Promise<void> {
  const checking = runAll(checks);
  const failures = settle(await runAll(builds));
  const { outcome, tally } = await runJest();
  failures.push(...settle([...(await checking), outcome]));
  if (tally.passed === 0) failures.push('no test passed');
  if (failures.length > 0) process.stdout.write(`Failed: ${failures.join(', ')}\n`);
  process.stdout.write(`${tally.passed} passed, ${tally.failed} failed\n`);
  process.exitCode = failures.length > 0 || tally.failed > 0 ? 1 : 0;
}

void main();
