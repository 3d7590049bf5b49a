import { Writable } from 'node:stream';
import { readFlags } from '../../../src/launcher/flags';
import { PLAN, planFlags, runPlan } from '../../../src/launcher/plan-command';

function plan(...args: string[]): string {
  let text = '';
  const stdout = new Writable({
    write: (chunk, _encoding, done) => {
      text += String(chunk);
      done();
    },
  });
  expect(runPlan(readFlags(args, planFlags, PLAN), { stdout, stderr: stdout })).toBe(0);
  return text;
}

test('prints the table of the paper for 7.5 billion parameters in mixed precision on 64 ranks', () => {
  const text = plan('--params', '7.5e9', '--world', '64', '--precision', 'float16');
  expect(text).toContain('7.5B parameters, float16 with float32 masters, adamw, 64 ranks');
  expect(text).toMatch(/0 +15\.00 +15\.00 +90\.00 +120\.0\n/);
  expect(text).toMatch(/1 +15\.00 +15\.00 +1\.406 +31\.41\n/);
  expect(text).toMatch(/2 +15\.00 +0\.2344 +1\.406 +16\.64\n/);
  expect(text).toMatch(/3 +0\.2344 +0\.2344 +1\.406 +1\.875\n/);
});

test('with a memory it says which stage fits, and how large a model would', () => {
  const text = plan('--params', '350M', '--world', '4', '--memory', '4GB');
  expect(text).toMatch(/0 .* 5\.600 +no +250M\n/);
  expect(text).toMatch(/1 .* 3\.500 +yes +400M\n/);
  expect(plan('--params', '1', '--world', '1', '--memory', '24GiB')).toContain('fits 25.77 GB');
});

test.each([
  [['--world', '4'], '--params is missing'],
  [['--params', '7', '--world', '0'], "--world: expected a whole number from 1 to 4096, got '0'"],
  [['--params', '7Q', '--world', '4'], "--params: expected a number such as 7.5e9 or 7.5B, got '7Q'"],
  [['--params', '7'], '--world is missing'],
  [['--params', '7', '--world', '4', '--precision', 'int8'], '--precision: expected float32, bfloat16 or float16'],
  [['--params', '7', '--world', '4', '--memory', '0GB'], '--memory: expected a number such as 80GB or 24GiB'],
  [['--params', '7', '--world', '4', 'x'], "expected no arguments, got 'x'"],
])('%j is refused by the name of the flag', (args, message) => {
  expect(() => plan(...args)).toThrow(message);
});
