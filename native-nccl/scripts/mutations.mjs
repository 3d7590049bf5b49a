/**
 * Whether the tests notice when a rule that the engine lives by is taken out of it: each mutant must make a C++ test fail.
 *
 *     node scripts/mutations.mjs
 *
 * Exit: 0 all found, or skipped with the reason; 1 a mutant lives, or the tests fail without one, or it does not build.
 */
import { join } from 'node:path';
import process from 'node:process';
import { build, run, say, testsIn } from './build-process.mjs';

const mutants = [
  ['LOCKSTEP_MUTATE_NO_PRODUCER_WAIT', 'a command does not wait for what wrote its memory on another stream'],
  ['LOCKSTEP_MUTATE_NO_POLL', 'a collective counts as launched while NCCL still says that it is in progress'],
  ['LOCKSTEP_MUTATE_NO_HOLD', 'a command in flight does not hold its memory'],
];

/** Names of the tests that fail, with how; or why it could not be seen. */
function failures(...options) {
  const made = build('tests', '--only', 'engine', ...options);
  if (made.reason !== undefined || made.errors !== undefined) return made;
  const failed = testsIn(made.folder)
    .filter((name) => name.includes('engine'))
    .map((name) => ({ name, ...run(join(made.folder, name)) }))
    .filter(({ isOk }) => !isOk);
  return { failed };
}

function main() {
  const { reason, errors, failed } = failures();
  if (reason !== undefined) {
    say(`mutations: skipped, as ${reason}`);
    return true;
  }
  if (errors !== undefined || failed.length > 0) {
    say(`no mutant: FAILED${errors ? `\n${errors}` : ''}`);
    for (const { name, how, output } of failed ?? []) say(`${name} (${how})\n${output}`);
    return false;
  }
  say('no mutant: all tests pass');
  let areAllFound = true;
  for (const [name, what] of mutants) {
    const found = failures('--define', name);
    const isFound = found.failed !== undefined && found.failed.length > 0;
    const by = isFound ? found.failed.map((test) => `${test.name} (${test.how})`).join(', ') : 'NOTHING';
    say(`${name} (${what}): ${found.errors ? `does not build\n${found.errors}` : `found by ${by}`}`);
    areAllFound &&= isFound;
  }
  return areAllFound;
}

process.exitCode = main() ? 0 : 1;
