import { existsSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { RankLog } from '../../../src/launcher/rank-output';
import { makeFolder } from '../../../src/launcher/make-folder';
import { testWhere } from '../../helpers/test-where';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'lockstep-make-folder-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

test('makes what is missing, and leaves what is there', () => {
  const path = join(folder, 'a', 'b', 'c');
  makeFolder(path);
  writeFileSync(join(path, 'kept'), '');
  makeFolder(path);
  expect(statSync(join(path, 'kept')).isFile()).toBe(true);
});

test('a folder below a file is an error of the system', () => {
  writeFileSync(join(folder, 'file'), '');
  expect(() => makeFolder(join(folder, 'file', 'a', 'b'))).toThrow(/ENOTDIR/);
});

// Node's recursive mkdir never comes back from there.
testWhere(
  existsSync('/proc/self'),
  'folders that cannot be made',
  "Linux's /proc",
)('a folder that cannot be made although its parent is there is an error that names the flag, soon', () => {
  const log = (): RankLog => new RankLog('/proc/nope/logs', 0, 0, () => undefined);
  expect(log).toThrow(
    /^lockstep run: --log-dir: expected a folder .* cannot write \/proc\/nope\/logs\/rank-0\.log \(E/,
  );
});
