/** Where a process listens, as Linux sees it from outside. */
import { existsSync, readdirSync, readFileSync, readlinkSync } from 'node:fs';

export interface Listening {
  readonly tcpPorts: readonly number[];
  readonly unixPaths: readonly string[];
}

/** True where `listeningOf` can tell. */
export const canSeeSockets: boolean = existsSync('/proc/self/net/tcp');

export function listeningOf(pid: number): Listening {
  const inodes = socketInodes(pid);
  const tcpPorts = ['tcp', 'tcp6'].flatMap((table) =>
    rows(`/proc/${pid}/net/${table}`)
      .filter((row) => row[3] === '0A' && inodes.has(row[9] ?? '')) // state LISTEN
      .map((row) => parseInt(row[1]?.split(':')[1] ?? '', 16)),
  );
  const unixPaths = rows(`/proc/${pid}/net/unix`)
    .filter((row) => row[3] === '00010000' && inodes.has(row[6] ?? '')) // __SO_ACCEPTCON
    .map((row) => row[7] ?? '');
  return { tcpPorts, unixPaths };
}

function rows(path: string): string[][] {
  return readFileSync(path, 'utf8')
    .split('\n')
    .slice(1)
    .map((line) => line.trim().split(/\s+/));
}

function socketInodes(pid: number): Set<string> {
  const links = readdirSync(`/proc/${pid}/fd`).map((fd) => {
    try {
      return readlinkSync(`/proc/${pid}/fd/${fd}`);
    } catch {
      return ''; // closed since
    }
  });
  return new Set(links.flatMap((link) => /^socket:\[(\d+)\]$/.exec(link)?.[1] ?? []));
}
