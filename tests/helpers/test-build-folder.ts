/** Jest's globalSetup: an empty folder for test-build.ts, which goes away with the run. */
import { mkdtempSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { socketFolderPrefix, sweepSocketFolders } from '../../src/backend/grpc/socket-folder';
import { FOLDER_VARIABLE } from './test-build';

/** Workers get the environment as it is after this. The folder is named as those of sockets are, and swept like them. */
export default function setUp(): void {
  const base = realpathSync(tmpdir());
  sweepSocketFolders(base); // what runs that were killed have left
  const folder = mkdtempSync(socketFolderPrefix(base));
  process.env[FOLDER_VARIABLE] = folder;
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }));
}
