/** Opens this rank's end of the data plane: which kind, where it listens, and whether that is allowed. */
import { networkInterfaces } from 'node:os';
import { BackendUnavailableError, InvalidArgumentError, asError } from '../../core/errors';
import { stderrLogger, type Logger } from '../../core/logger';
import { Arrivals } from './arrivals';
import type { DataPlane, Endpoint, JobIdentity } from './endpoint';
import { openGrpcTransport } from './grpc-transport';
import { isLoopback, resolveHost } from './host-address';
import { PeerEndpoint } from './peer-endpoint';
import { openSocketTransport } from './socket-transport';
import { checkTls } from './tls-failure';
import type { Transport, TransportOptions } from './transport';

export interface DataPlaneOptions {
  readonly dataPlane: DataPlane;
  /** Address or name of this machine where peers may connect; '127.0.0.1' where nothing is said. */
  readonly bindAddress?: string | undefined;
  /** What peers are told to connect to, where that differs from bindAddress. */
  readonly advertiseAddress?: string | undefined;
  readonly logger?: Logger | undefined;
  /** How long a connection may take to prove the job token; 5 s where nothing is said. */
  readonly handshakeTimeoutMs?: number | undefined;
}

/**
 * Listen for the other ranks of the job.
 *
 * @throws InvalidArgumentError for TLS options that do not parse, or an address that other machines reach although
 *   neither a token nor TLS protects the job
 * @throws BackendUnavailableError if the kind is not there ('native'), or no address can be bound
 */
export async function openEndpoint(identity: JobIdentity, options: DataPlaneOptions): Promise<Endpoint> {
  const logger = options.logger ?? stderrLogger;
  checkTls(identity.tls);
  const { kind, reason } = choose(options.dataPlane);
  const bindAddress = options.bindAddress ?? '127.0.0.1';
  const arrivals = new Arrivals();
  const transport = await openTransport(kind, {
    identity,
    bindAddresses: await allowedAddresses(bindAddress, identity),
    advertisedHost: options.advertiseAddress ?? reachableHost(bindAddress),
    arrivals,
    logger,
    handshakeTimeoutMs: options.handshakeTimeoutMs,
  });
  const { tcpSocket, grpc } = transport.address;
  logger.info(`rank ${identity.rank}: data plane '${kind}' at ${tcpSocket ?? grpc}: ${reason}`);
  return new PeerEndpoint(identity, transport, arrivals, logger);
}

function choose(dataPlane: DataPlane): { readonly kind: 'grpc' | 'socket'; readonly reason: string } {
  switch (dataPlane) {
    case 'auto':
      return {
        kind: 'socket',
        reason: `the fastest one here: Unix sockets between ranks of one machine, TCP otherwise ('native' is not part of this version)`,
      };
    case 'socket':
    case 'grpc':
      return { kind: dataPlane, reason: 'as asked for' };
    case 'native':
      throw new BackendUnavailableError(
        `dataPlane 'native' (a thread of its own in native code) is not part of this version of Lockstep. Use 'auto', 'socket' or 'grpc'.`,
      );
    default:
      throw unknownPlane(dataPlane);
  }
}

function unknownPlane(dataPlane: never): InvalidArgumentError {
  return new InvalidArgumentError(
    `dataPlane: expected 'auto', 'socket', 'grpc' or 'native', got ${JSON.stringify(dataPlane)}.`,
  );
}

function openTransport(kind: 'grpc' | 'socket', options: TransportOptions): Promise<Transport> {
  return kind === 'grpc' ? openGrpcTransport(options) : openSocketTransport(options);
}

async function allowedAddresses(bindAddress: string, identity: JobIdentity): Promise<readonly string[]> {
  let addresses: readonly string[];
  try {
    addresses = await resolveHost(bindAddress);
  } catch (error) {
    throw new InvalidArgumentError(
      `data plane: the address '${bindAddress}' does not resolve (${asError(error).message}). Give a name or address of this machine.`,
      { cause: error },
    );
  }
  const isProtected = identity.token !== undefined || identity.tls !== undefined;
  if (isProtected || addresses.every(isLoopback)) return addresses;
  throw new InvalidArgumentError(
    `data plane: '${bindAddress}' can be reached by other machines, and nothing proves that who connects belongs to the job. Set LOCKSTEP_JOB_TOKEN or LOCKSTEP_JOB_TOKEN_FILE to the same secret on all ranks, or give tls to World.init; 'lockstep run' makes a token. On one machine use 127.0.0.1.`,
  );
}

/** Nobody can connect to "every address"; tell one that others reach. */
function reachableHost(bindAddress: string): string | undefined {
  if (bindAddress !== '0.0.0.0' && bindAddress !== '::') return undefined;
  const family = bindAddress === '::' ? 'IPv6' : 'IPv4';
  const all = Object.values(networkInterfaces()).flatMap((list) => list ?? []);
  const fitting = all.filter((entry) => entry.family === family && !entry.address.startsWith('fe80:'));
  const chosen = fitting.find((entry) => !entry.internal) ?? fitting[0];
  return chosen?.address;
}
