import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { programs } from './programs';

test('the programs load in a process of their own, without Jest, as the ranks of a backend of processes need', () => {
  const script = `
    const { programs } = require(${JSON.stringify(join(__dirname, 'programs'))});
    process.stdout.write(JSON.stringify(Object.keys(programs)));
  `;
  const names: unknown = JSON.parse(
    execFileSync(process.execPath, ['--require', 'tsx/cjs', '--eval', script], { encoding: 'utf8' }),
  );
  expect(names).toEqual(Object.keys(programs));
});
