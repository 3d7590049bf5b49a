/** Hosts and ports: how they are written, and what they resolve to. */
import { lookup as systemLookup } from 'node:dns/promises';
import { BlockList, isIP } from 'node:net';
import { systemClock } from '../../core/clock';
import type { Deadline } from '../../core/deadline';

/** Addresses of a name, in the order in which to try them; rejects if there are none. */
export type Lookup = (host: string) => Promise<readonly string[]>;

/** What the operating system says, /etc/hosts included. */
export const lookupAll: Lookup = async (host) =>
  (await systemLookup(host, { all: true })).map(({ address }) => address);

/** IPv6 addresses may be given in brackets, as in a URL; they are kept without. */
export function stripBrackets(host: string): string {
  return /^\[.*\]$/.test(host) ? host.slice(1, -1) : host;
}

/** 'host:port', with brackets around an IPv6 address. */
export function hostPort(host: string, port: number): string {
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;
}

const loopback = new BlockList();
loopback.addSubnet('127.0.0.0', 8, 'ipv4');
loopback.addAddress('::1', 'ipv6');

/** True for an address that only processes of this machine can reach. */
export function isLoopback(address: string): boolean {
  const version = isIP(address);
  return version !== 0 && loopback.check(address, version === 4 ? 'ipv4' : 'ipv6');
}

/**
 * The addresses of `host`, numeric ones as they are. 'localhost' is both loopback addresses whatever the resolver
 * says, because processes of one job may see different ones first.
 * @param deadline rejects when it has passed; default: as long as the resolver takes
 */
export async function resolveHost(
  host: string,
  lookup: Lookup = lookupAll,
  deadline?: Deadline,
): Promise<readonly string[]> {
  const bare = stripBrackets(host);
  if (isIP(bare) !== 0) return [bare];
  const answer = within(deadline, lookup(bare));
  if (bare !== 'localhost') return answer;
  const found = await answer.catch(() => []); // a machine without the entry still has the addresses
  return [...new Set([...found.filter(isLoopback), '127.0.0.1', '::1'])];
}

/** A resolver whose servers are silent may take longer than there is time. */
async function within<T>(deadline: Deadline | undefined, answer: Promise<T>): Promise<T> {
  if (deadline === undefined) return answer;
  let giveUp = (_silence: Error): void => undefined;
  const silence = new Promise<never>((_resolve, reject) => (giveUp = reject));
  const timer = systemClock.schedule(() => giveUp(new Error('no answer of the resolver')), deadline.remainingMs, true);
  return Promise.race([answer, silence]).finally(() => timer.cancel());
}

/** The two halves of what hostPort() made. */
export function parseHostPort(text: string): { readonly host: string; readonly port: number } {
  const colon = text.lastIndexOf(':');
  return { host: stripBrackets(text.slice(0, colon)), port: Number(text.slice(colon + 1)) };
}
