import { spawnSync } from 'node:child_process';
import { join } from 'node:path';

test('runWorld and the matchers work under Vitest', () => {
  const vitest = join(__dirname, '..', '..', '..', 'node_modules', 'vitest', 'vitest.mjs');
  const { status, stdout, stderr } = spawnSync(process.execPath, [vitest, 'run'], {
    cwd: join(__dirname, 'vitest'),
    encoding: 'utf8',
    timeout: 60_000,
    env: { ...process.env, NO_COLOR: '1' },
  });
  expect(`${stdout}${stderr}`).toMatch(/Tests {2}2 passed \(2\)/);
  expect(status).toBe(0);
}, 60_000);
