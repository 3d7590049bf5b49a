/** How a rank finds the others: it connects to the store, tells its address, and waits for everybody's. */
import type { Deadline } from '../../core/deadline';
import { BackendUnavailableError, asError, isLockstepError } from '../../core/errors';
import { invariant } from '../../core/invariant';
import type { Logger } from '../../core/logger';
import type { JobIdentity, PeerAddress } from './endpoint';
import { toFailure } from './failure';
import { HandshakeError } from './handshake';
import { hostPort, lookupAll, resolveHost, stripBrackets, type Lookup } from './host-address';
import { addressFromWire } from './proto';
import { Retries } from './retries';
import { NoStoreError, StoreConnection } from './store-connection';

export interface StoreAddress {
  /** MASTER_ADDR: a name, an IPv4 address, or an IPv6 address with or without brackets. */
  readonly host: string;
  readonly port: number;
}

/** One address is given so long before the next is tried: a host that drops packets must not take all the time. */
const ATTEMPT_MS = 5000;
/** How long the store may take to note that a rank gives up. */
const ANSWER_MS = 1000;

/**
 * Connect to the job's store, again and again until it is there: ranks start in any order.
 *
 * @throws BackendUnavailableError with the address and the last reason, once the time is over
 * @throws HandshakeError at once if a store answers that is not this job's or does not want this process
 */
export async function connectStore(
  identity: JobIdentity,
  { host, port }: StoreAddress,
  deadline: Deadline,
  logger: Logger,
  lookup: Lookup = lookupAll,
): Promise<StoreConnection> {
  const retries = new Retries(deadline, (reason) =>
    logger.warn(`rank ${identity.rank} still waits for the store at ${hostPort(host, port)}: ${reason}`),
  );
  for (;;) {
    const reasons: string[] = [];
    const addresses = await resolveHost(host, lookup, deadline).catch((thrown: unknown) => {
      reasons.push(asError(thrown).message);
      return [];
    });
    for (const address of addresses) {
      if (deadline.isPast) break;
      try {
        const timeoutMs = Math.min(ATTEMPT_MS, deadline.remainingMs);
        return await StoreConnection.open(identity, stripBrackets(host), address, port, timeoutMs);
      } catch (thrown) {
        if (thrown instanceof HandshakeError) throw cannotJoin(identity, hostPort(address, port), thrown);
        if (!(thrown instanceof NoStoreError)) throw thrown;
        reasons.push(thrown.message);
      }
    }
    const reason = reasons.join('; ');
    if (!(await retries.again(reason))) throw noStore(identity, host, port, deadline.timeoutMs, reason);
  }
}

/**
 * Claim this process's rank, and wait until every rank of the world has come.
 *
 * @returns the addresses of all ranks, by rank
 * @throws CollectiveTimeoutError naming the ranks that never came
 * @throws PeerLostError if a rank left, or the store is gone, before all had come
 * @throws InvalidArgumentError if another process has this rank, or ranks disagree about the world's size
 */
export async function join(
  connection: StoreConnection,
  address: PeerAddress,
  timeoutMs: number,
): Promise<readonly PeerAddress[]> {
  const result = await connection.request('join', { join: { address } }, timeoutMs);
  invariant('members' in result, 'the store answered join with something else');
  return result.members.addresses.map(addressFromWire);
}

/**
 * Connect to the others by `connect`, and wait until every rank has done so: no rank starts in a world that does not form.
 *
 * [Note: who is to blame] A rank that loses another one gives up and closes its connections, which a third rank may notice
 * before it notices the loss. So who gives up tells the store first, and all take the store's word for the reason: it is
 * the first one, and no connection has been closed because of it yet.
 *
 * @param connect gives up when the signal is aborted
 * @throws what kept a rank from connecting, the same on all ranks
 */
export async function startTogether<T>(
  connection: StoreConnection,
  connect: (signal: AbortSignal) => Promise<T>,
  timeoutMs: number,
): Promise<T> {
  const abort = new AbortController();
  const started = connection.request('connect', { start: {} }, timeoutMs);
  started.catch((reason: unknown) => abort.abort(reason));
  let connected: T;
  try {
    connected = await connect(abort.signal);
  } catch (thrown) {
    if (!abort.signal.aborted) {
      const failure = toFailure(thrown);
      await connection.request('connect', { connected: { failure } }, ANSWER_MS).catch(() => undefined); // then the store is gone, and `started` says so
    }
    await started.catch((reason: unknown) => {
      throw isLockstepError(thrown) ? reason : thrown;
    });
    throw thrown;
  }
  await connection.request('connect', { connected: {} }, timeoutMs);
  await started;
  return connected;
}

function cannotJoin({ rank }: JobIdentity, place: string, error: HandshakeError): Error {
  return new HandshakeError(
    error.refusal,
    `rank ${rank} cannot join the job whose store is at ${place}: ${error.message}`,
    { op: 'join', rank, ranks: [rank], cause: error },
  );
}

function noStore(identity: JobIdentity, host: string, port: number, timeoutMs: number, reason: string): Error {
  const place = hostPort(stripBrackets(host), port);
  const advice =
    identity.rank === 0
      ? `Rank 0 serves it itself, unless LOCKSTEP_STORE is 'external', and must reach it like every other rank: check that MASTER_ADDR leads to this machine.`
      : `Check that rank 0 was started, and that MASTER_ADDR and MASTER_PORT are its address, the same on all ranks.`;
  return new BackendUnavailableError(
    `rank ${identity.rank}: nobody served the job's store at ${place} within ${timeoutMs} ms (${reason}). ${advice}`,
    { op: 'join', rank: identity.rank, ranks: [0] },
  );
}
