/**
 * What `npm test` has no time for: the native code's own tests under the sanitizers, the mutants, and the GPU check on the
 * stand-ins.
 *
 *     node scripts/check.mjs
 *
 * Exit: 0 all held, or was skipped with the reason; 1 something did not.
 */
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { performance } from 'node:perf_hooks';
import process from 'node:process';
import { rootFolder, say } from './build-process.mjs';

const jest = join('node_modules', 'jest', 'bin', 'jest.js');
const steps = [
  { name: 'sanitizers', args: [join('native-nccl', 'scripts', 'sanitize.mjs')] },
  { name: 'mutations', args: [join('native-nccl', 'scripts', 'mutations.mjs')] },
  {
    name: 'GPU check on the stand-ins',
    args: [jest, join('tests', 'integration', 'gpu-bundle.test.ts')],
    env: { LOCKSTEP_TEST_LONG: '1' },
  },
];
/** For hangs; each takes minutes. */
const LIMIT_MS = 1_800_000;

/** True if the step held. */
function runStep({ name, args, env }) {
  const start = performance.now();
  const { status } = spawnSync(process.execPath, args, {
    cwd: rootFolder,
    stdio: 'inherit',
    timeout: LIMIT_MS,
    env: { ...process.env, ...env },
  });
  const seconds = ((performance.now() - start) / 1000).toFixed(0);
  say(`[${name}] ${status === 0 ? 'ok' : 'FAILED'}, ${seconds} s`);
  return status === 0;
}

process.exitCode = steps.map(runStep).every(Boolean) ? 0 : 1;
