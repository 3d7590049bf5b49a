import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { runnable } from '../helpers/test-build';
import { programs } from './programs';

test('the programs load in a process of their own, without Jest, as the ranks of a backend of processes need', () => {
  const { options, files } = runnable(join(__dirname, 'programs.ts'));
  const script = `
    const { programs } = require(${JSON.stringify(files[0])});
    process.stdout.write(JSON.stringify(Object.keys(programs)));
  `;
  const names: unknown = JSON.parse(
    execFileSync(process.execPath, [...options, '--eval', script], { encoding: 'utf8' }),
  );
  expect(names).toEqual(Object.keys(programs));
});
