/** Which machine this is, as far as Unix sockets are concerned. */
import { createHash } from 'node:crypto';
import { readFileSync, readlinkSync } from 'node:fs';
import { hostname, userInfo } from 'node:os';

/**
 * The same for two processes if each can open files in the other's private folder: one kernel that was started once,
 * one view of the file system (containers on one machine have their own), one user.
 */
export function hostId(): string {
  const parts = [
    hostname(),
    ifReadable(() => readFileSync('/proc/sys/kernel/random/boot_id', 'utf8')),
    ifReadable(() => readlinkSync('/proc/self/ns/mnt')),
    ifReadable(() => String(userInfo().uid)),
  ];
  return createHash('sha256').update(JSON.stringify(parts)).digest('base64url').slice(0, 22);
}

/** Only Linux has /proc, and a user of a container need not have an entry; elsewhere the rest must do. */
function ifReadable(read: () => string): string {
  try {
    return read();
  } catch {
    return '';
  }
}
