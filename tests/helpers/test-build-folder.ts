/** Jest's globalSetup: an empty folder for test-build.ts, which goes away with the run. */
import { mkdtempSync, readdirSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FOLDER_VARIABLE } from './test-build';

const PREFIX = 'lockstep-test-build-';

/** Workers get the environment as it is after this. */
export default function setUp(): void {
  const base = realpathSync(tmpdir());
  sweep(base);
  const folder = mkdtempSync(join(base, `${PREFIX}${process.pid}-`));
  process.env[FOLDER_VARIABLE] = folder;
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }));
}

/** What runs that were killed have left. */
function sweep(base: string): void {
  for (const name of readdirSync(base)) {
    const [, processId] = /^lockstep-test-build-(\d+)-/.exec(name) ?? [];
    if (processId !== undefined && !isAlive(Number(processId))) {
      rmSync(join(base, name), { recursive: true, force: true });
    }
  }
}

function isAlive(processId: number): boolean {
  try {
    process.kill(processId, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ESRCH';
  }
}
