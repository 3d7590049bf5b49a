import { existsSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { makeFolder } from '../../../src/core/make-folder';
import { makeLogFolder } from '../../../src/launcher/rank-output';
import { testWhere } from '../../helpers/test-where';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'lockstep-make-folder-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

test('makes what is missing, says what it made, and leaves what is there', async () => {
  const path = join(folder, 'a', 'b', 'c');
  expect(await makeFolder(path)).toEqual([join(folder, 'a'), join(folder, 'a', 'b'), path]);
  writeFileSync(join(path, 'kept'), '');
  expect(await makeFolder(path)).toEqual([]);
  expect(statSync(join(path, 'kept')).isFile()).toBe(true);
});

test('two that make the same folder at once both succeed', async () => {
  const path = join(folder, 'a', 'b', 'c');
  await Promise.all([makeFolder(path), makeFolder(path)]);
  expect(statSync(path).isDirectory()).toBe(true);
});

test('a folder below a file is an error of the system', async () => {
  writeFileSync(join(folder, 'file'), '');
  await expect(makeFolder(join(folder, 'file', 'a', 'b'))).rejects.toThrow(/ENOTDIR/);
});

// Node's recursive mkdir never comes back from there.
testWhere(
  existsSync('/proc/self'),
  'folders that cannot be made',
  "Linux's /proc",
)('a folder that cannot be made although its parent is there is an error that names the flag, soon', async () => {
  await expect(makeLogFolder('/proc/nope/logs')).rejects.toThrow(
    /^lockstep run: --log-dir: expected a folder .* cannot write \/proc\/nope\/logs \(E/,
  );
});
