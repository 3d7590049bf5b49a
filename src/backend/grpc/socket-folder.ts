/** Folders of the Unix sockets that ranks listen at while they connect, and what killed processes have left of them. */
import { readdirSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';

const NAME = /^lockstep-(\d+)-(\d+)-\w{6}$/;

/** What mkdtemp completes; it names this process, so that others can tell when it is gone. */
export function socketFolderPrefix(parent: string): string {
  return join(parent, `lockstep-${pidNamespace()}-${process.pid}-`);
}

/** Remove the folders of processes that are gone. What cannot be read or removed is somebody else's, and stays. */
export function sweepSocketFolders(parent: string): void {
  for (const name of namesIn(parent)) {
    const [, namespace, pid] = NAME.exec(name) ?? [];
    if (namespace !== pidNamespace() || isAlive(Number(pid))) continue;
    try {
      rmSync(join(parent, name), { recursive: true, force: true });
    } catch {
      continue;
    }
  }
}

function namesIn(folder: string): readonly string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}

/** Containers may share a temporary folder and number their processes each for itself; 0 where there are none. */
function pidNamespace(): string {
  return String(statSync('/proc/self/ns/pid', { throwIfNoEntry: false })?.ino ?? 0);
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ESRCH'; // another user's process is alive too
  }
}
