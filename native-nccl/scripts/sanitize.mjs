/**
 * The C++ tests, and tests of the addon in Node.js, under the address and undefined behaviour sanitizers.
 *
 *     node scripts/sanitize.mjs [jest path...]      by default tests/integration/addon.test.ts
 *
 * The Jest tests must load the addon in processes of their own, with the variables of tests/helpers/native-build.ts. Leaks
 * are not looked for: Node.js frees little at its end, and neither do the libraries that stay loaded.
 * Exit: 0 clean, or skipped with the reason; 1 something was found, or does not build.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';
import { build, compilerLibrary, rootFolder, run, say, testsIn } from './build-process.mjs';

/** Of a program that a sanitizer ends; unlike those that programs end with by themselves. */
const FOUND = 66;
const variables = {
  ASAN_OPTIONS: `detect_leaks=0:exitcode=${FOUND}:detect_stack_use_after_return=0`,
  UBSAN_OPTIONS: `halt_on_error=1:print_stacktrace=1:exitcode=${FOUND}`,
};

function report(name, { isOk, how, output }) {
  say(`${name}: ${isOk ? 'clean' : `FAILED (${how})`}`);
  if (!isOk) say(output);
  return isOk;
}

function main() {
  const library = compilerLibrary('libasan.so');
  if (library === undefined) {
    say('sanitize: skipped, as the compiler has no libasan.so');
    return true;
  }
  const made = build('addon', 'stand-ins', 'tests', '--sanitize');
  if (made.reason !== undefined) {
    say(`sanitize: skipped, as ${made.reason}`);
    return true;
  }
  if (made.errors !== undefined) return report('build', { isOk: false, how: 'does not build', output: made.errors });
  say('build: ok');
  const results = testsIn(made.folder).map((name) => report(name, run(join(made.folder, name), [], variables)));

  const jest = join(rootFolder, 'node_modules', 'jest', 'bin', 'jest.js');
  if (!existsSync(jest)) {
    say('Node.js: skipped, as Jest is not installed');
    return results.every(Boolean);
  }
  const paths = process.argv.length > 2 ? process.argv.slice(2) : [join('tests', 'integration', 'addon.test.ts')];
  const args = [jest, '--runInBand', ...paths];
  const underNode = run(process.execPath, args, { ...variables, LOCKSTEP_TEST_SANITIZE: library });
  return report(`Node.js (${paths.join(' ')})`, underNode) && results.every(Boolean);
}

process.exitCode = main() ? 0 : 1;
