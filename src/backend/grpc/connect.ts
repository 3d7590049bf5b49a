/** A rank's way into a job of several processes: store, rendezvous, links, backend. */
import { DEFAULT_TIMEOUT_MS, Deadline, checkTimeout } from '../../core/deadline';
import { InvalidArgumentError } from '../../core/errors';
import { stderrLogger, type Logger } from '../../core/logger';
import type { BackendInit } from '../backend-init';
import { GrpcControlPlane } from './control-plane';
import { openEndpoint } from './data-plane';
import type { Endpoint, JobIdentity } from './endpoint';
import { GrpcBackend } from './grpc-backend';
import { lookupAll, type Lookup } from './host-address';
import { JobMesh } from './job-mesh';
import type { Mesh } from './link';
import { localAddressTowards } from './local-address';
import type { RootGroupOptions } from './root-group';
import { connectStore, join, startTogether, type StoreAddress } from './rendezvous';
import { StoreClient } from './store-client';
import { startStore } from './store-server';

/** A rank that finds a peer missing names it; the store, which knows only who is not ready, speaks after it. */
const LATER_MS = 500;
/** How long the store of a job that cannot start stays, to tell why to ranks that have not come yet. */
const INFORM_MS = 2000;

/**
 * Join the job, connect to all its ranks, and make the backend of its world.
 * @throws the errors of `joinJob`
 */
export async function connectGrpc(init: BackendInit, lookup: Lookup = lookupAll): Promise<GrpcBackend> {
  const { mesh, ...options } = await joinJob(init, 'grpc', lookup);
  return GrpcBackend.over(mesh, { ...options, deterministic: init.deterministic });
}

/**
 * The same for a backend whose data travels elsewhere.
 * @param backend its name, for messages
 * @throws the errors of `joinJob`
 */
export async function connectControlPlane(init: BackendInit, backend: string): Promise<GrpcControlPlane> {
  const { mesh, ...options } = await joinJob(init, backend, lookupAll);
  return GrpcControlPlane.over(mesh, options);
}

/** A rank's ends of what connects it to the job. */
interface Joined extends RootGroupOptions {
  /** When it closes, so does everything that was opened with it. */
  readonly mesh: Mesh;
  readonly timeoutMs: number;
}

/**
 * Join the job, and connect to all its ranks.
 *
 * [Note: lifetime of the store] Ranks need the store to find each other, and for what a program keeps in it; collectives
 * never use it. Rank 0 serves it, from before it joins until it closes its world, and closing lets answers under way
 * leave first. If it is lost while the job runs, only calls on the store itself fail.
 *
 * @throws the errors of startStore, connectStore, join and startTogether; nothing stays open then
 */
async function joinJob(init: BackendInit, backend: string, lookup: Lookup): Promise<Joined> {
  const { rank, worldSize, generation = 0, token, tls, dataPlane = 'auto', logger = stderrLogger } = init;
  const identity: JobIdentity = { rank, worldSize, generation, token, tls };
  const timeoutMs = checkTimeout(init.timeoutMs, DEFAULT_TIMEOUT_MS);
  const deadline = new Deadline(checkTimeout(init.joinTimeoutMs, timeoutMs));
  const opened: (() => Promise<void>)[] = [];
  let endpoint: Endpoint | undefined;
  // Side by side: a peer that is stopped holds up each of them for a second.
  const closeEverything = async (): Promise<void> => {
    await Promise.all([endpoint?.close(), closeAll(opened)]);
  };
  try {
    const address = await serveStore(init, identity, { backend, deadline, logger, lookup, opened });
    const connection = await connectStore(identity, address, deadline, logger, lookup);
    opened.push(() => connection.close());
    const bindAddress = await localAddressTowards(connection.address, address.port);
    const own = (endpoint = await openEndpoint(identity, { dataPlane, bindAddress, logger }));
    const peers = await join(connection, own.address, wholeMs(deadline));
    const timeLeftMs = wholeMs(deadline);
    const mesh = await startTogether(
      connection,
      (signal) => own.connect(peers, timeLeftMs, signal),
      timeLeftMs + LATER_MS,
    );
    const store = new StoreClient(connection, { rank, generation, timeoutMs });
    return { mesh: new JobMesh(mesh, closeEverything), timeoutMs, logger, store, callSites: init.callSites };
  } catch (error) {
    await closeEverything();
    throw error;
  }
}

/** What the steps of a start share. */
interface Start {
  /** Name of the backend. */
  readonly backend: string;
  readonly deadline: Deadline;
  readonly logger: Logger;
  readonly lookup: Lookup;
  /** Closes what is open so far, the last first. */
  readonly opened: (() => Promise<void>)[];
}

/** Where the store is; on rank 0 it is there from now on, unless another process serves it. */
async function serveStore(
  { masterAddr, masterPort, store = 'rank0' }: BackendInit,
  { rank, worldSize, generation, token, tls }: JobIdentity,
  { backend, deadline, logger, lookup, opened }: Start,
): Promise<StoreAddress> {
  // Alone, a rank needs no meeting place that others know.
  const host = masterAddr ?? (worldSize === 1 ? '127.0.0.1' : undefined);
  const port = masterPort ?? (worldSize === 1 ? 0 : undefined);
  if (host === undefined) throw missing(backend, 'masterAddr', 'MASTER_ADDR', 'the address of the machine of rank 0');
  if (port === undefined) throw missing(backend, 'masterPort', 'MASTER_PORT', 'a port that is free there');
  if (rank !== 0 || store === 'external') return { host, port };
  const server = await startStore({
    host,
    port,
    worldSize,
    generation,
    token,
    tls,
    logger,
    lookup,
    resolveUntil: deadline,
    mayForward: true,
  });
  opened.push(async () => {
    // Ranks that are about to come would only find that nobody is here.
    await server.informAll(Math.min(INFORM_MS, deadline.remainingMs));
    await server.close();
  });
  return { host, port: server.port };
}

/** What remains, for messages too; a moment even when nothing does, so that the waiting call itself says what is missing. */
function wholeMs(deadline: Deadline): number {
  return Math.max(1, Math.ceil(deadline.remainingMs));
}

async function closeAll(opened: (() => Promise<void>)[]): Promise<void> {
  for (const close of opened.splice(0).reverse()) await close();
}

function missing(backend: string, option: string, variable: string, what: string): InvalidArgumentError {
  return new InvalidArgumentError(
    `World.init: the backend '${backend}' needs ${what}, the same on all ranks. Set environment variable ${variable} or options.${option}, or start the ranks with 'lockstep run'.`,
  );
}
