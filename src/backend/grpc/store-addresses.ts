/** Where the store listens. */
import { BlockList, isIP } from 'node:net';
import { networkInterfaces } from 'node:os';
import type { Deadline } from '../../core/deadline';
import { BackendUnavailableError, InvalidArgumentError, asError } from '../../core/errors';
import type { Logger } from '../../core/logger';
import { isLoopback, lookupAll, resolveHost, stripBrackets, type Lookup } from './host-address';
import { Retries } from './retries';

const EVERY_ADDRESS = ['::', '0.0.0.0'];

export interface StorePlace {
  /** MASTER_ADDR, or what somebody said to listen at. */
  readonly host: string;
  /** A token or TLS keeps strangers out. */
  readonly isProtected: boolean;
  /**
   * `host` may be an address of something that forwards here (a Kubernetes service, NAT): then every address of this
   * machine is listened at, with a warning. Else that is refused.
   */
  readonly mayForward: boolean;
  readonly logger: Logger;
  readonly lookup?: Lookup | undefined;
  /** Until when a name that does not resolve is tried again; undefined: once. */
  readonly deadline?: Deadline | undefined;
}

/**
 * The addresses of this machine at which processes that connect to `host` arrive; '0.0.0.0' and '::' are all of them.
 *
 * @throws InvalidArgumentError if others than this machine could connect although nothing protects the job; for a host of
 *   another machine; for a name that does not resolve
 * @throws BackendUnavailableError for a name that did not resolve until the deadline
 */
export async function storeAddresses(place: StorePlace): Promise<readonly string[]> {
  const { host, isProtected, mayForward } = place;
  const isEverything = EVERY_ADDRESS.includes(stripBrackets(host));
  const addresses = isEverything ? EVERY_ADDRESS : await resolve(place);
  if (addresses.every(isLoopback)) return addresses;
  const local = isEverything ? addresses : addresses.filter((address) => isLoopback(address) || isOwn(address));
  if (local.length === 0 && !mayForward) throw notHere(host);
  if (!isProtected) {
    throw new InvalidArgumentError(
      `store: '${host}' can be reached by other machines, and nothing proves that who connects belongs to the job. Set LOCKSTEP_JOB_TOKEN or LOCKSTEP_JOB_TOKEN_FILE to the same secret on all ranks, or give tls to World.init; 'lockstep run' makes a token. On one machine use 127.0.0.1.`,
    );
  }
  if (local.length > 0) return local;
  place.logger.warn(
    `store: MASTER_ADDR '${host}' is no address of this machine (${ownAddresses().join(', ')}), so rank 0 listens at all of these. That is right where something forwards the address here: a Kubernetes service, NAT, the published port of a container. If nothing does, no rank will come: set MASTER_ADDR on all ranks to an address of this machine.`,
  );
  return EVERY_ADDRESS;
}

/** Names of a cluster may become known only after the process that they name has started. */
async function resolve({ host, lookup = lookupAll, deadline, logger }: StorePlace): Promise<readonly string[]> {
  const waits = (reason: string): void =>
    logger.warn(`store: rank 0 still waits for the name '${host}' (MASTER_ADDR) to resolve: ${reason}`);
  const retries = deadline && new Retries(deadline, waits);
  for (;;) {
    try {
      return await resolveHost(host, lookup, deadline);
    } catch (thrown) {
      const { message } = asError(thrown);
      if (await retries?.again(message)) continue;
      const advice = `Set MASTER_ADDR (of lockstep store: --host) to a name or address of the machine that serves the store.`;
      if (deadline === undefined) {
        throw new InvalidArgumentError(`store: the address '${host}' does not resolve (${message}). ${advice}`, {
          cause: thrown,
        });
      }
      throw new BackendUnavailableError(
        `store: rank 0 cannot listen: its address '${host}' did not resolve within ${deadline.timeoutMs} ms (${message}). ${advice}`,
        { op: 'join', rank: 0, ranks: [0], cause: thrown },
      );
    }
  }
}

function ownAddresses(): string[] {
  return Object.values(networkInterfaces()).flatMap((list) => (list ?? []).map(({ address }) => address));
}

/** Compared as addresses, since IPv6 has several spellings; a zone says only by which interface. */
function isOwn(address: string): boolean {
  const version = isIP(address);
  const family = version === 4 ? 'ipv4' : 'ipv6';
  const own = new BlockList();
  for (const each of ownAddresses()) if (isIP(each) === version) own.addAddress(each, family);
  return own.check(address.replace(/%.*$/, ''), family);
}

function notHere(host: string): InvalidArgumentError {
  return new InvalidArgumentError(
    `store: '${host}' is no address of this machine, which has ${ownAddresses().join(', ')}. Name one of them; or, where something forwards '${host}' here, 0.0.0.0 to listen at all.`,
  );
}
