/**
 * Who writes a temporary folder, so that the next save can tell one of a dead process from one in use: machine, process,
 * and a number that nobody else has, as `<machine>-<pid>-<nonce>`.
 */
import { stat } from 'node:fs/promises';
import { hostname } from 'node:os';
import { checksum } from './checksum';
import { nonce } from './durable-file';

/** After so long a save of another machine, whose processes cannot be asked for, has died. */
const ABANDONED_MS = 24 * 60 * 60 * 1000;

/** The saves that this process works on: a registry of their tags. */
const inProgress = new Set<string>();

/** A new tag; its folder counts as in use until `release`. */
export function claimOwnerTag(): string {
  const tag = `${thisMachine()}-${process.pid}-${nonce()}`;
  inProgress.add(tag);
  return tag;
}

export function releaseOwnerTag(tag: string): void {
  inProgress.delete(tag);
}

/**
 * Whether the process that made the folder `path` has left it for good.
 * @param ownPath a folder made just now, whose time is compared with: the clock of the file system
 */
export async function isAbandoned(path: string, owner: string, ownPath: string): Promise<boolean> {
  const [machine, pid] = owner.split('-');
  if (machine === thisMachine()) {
    return Number(pid) === process.pid ? !inProgress.has(owner) : !isAlive(Number(pid));
  }
  const [made, now] = await Promise.all([stat(path), stat(ownPath)]);
  return now.mtimeMs - made.mtimeMs > ABANDONED_MS;
}

function thisMachine(): string {
  return checksum(Buffer.from(hostname()));
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0); // sends nothing
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ESRCH';
  }
}
