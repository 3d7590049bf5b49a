/**
 * The backends by name. The only file that names them all; what is not needed is not loaded.
 */
import { DEFAULT_TIMEOUT_MS } from '../core/deadline';
import { BackendUnavailableError, InvalidArgumentError } from '../core/errors';
import type { Backend } from './backend';
import type { BackendInit } from './backend-init';
import type * as grpc from './grpc/connect';
import { MockBackend } from './mock/mock-backend';
import type { MockOptions } from './mock/mock-options';
import type * as availability from './nccl/availability';
import type * as nccl from './nccl/connect';

/** Connects this rank to the others; rejects with BackendUnavailableError where it cannot. */
export type BackendFactory = (init: BackendInit) => Backend | Promise<Backend>;

const factories = new Map<string, BackendFactory>([
  ['mock', connectMock],
  ['grpc', (init) => loadGrpc().connectGrpc(init)],
  ['nccl', (init) => loadNccl().connectNccl(init, (each) => loadGrpc().connectControlPlane(each, 'nccl'))],
]);

/**
 * Add a backend of your own, for `World.init({ backend: name })` and LOCKSTEP_BACKEND.
 *
 * @returns removes it again
 * @throws InvalidArgumentError if the name is taken
 */
export function registerBackend(name: string, factory: BackendFactory): () => void {
  if (typeof name !== 'string' || name === '') {
    throw new InvalidArgumentError(`registerBackend: expected a name, got ${JSON.stringify(name)}.`);
  }
  if (factories.has(name)) {
    throw new InvalidArgumentError(`registerBackend: there is a backend '${name}' already. Choose another name.`);
  }
  factories.set(name, factory);
  return () => {
    if (factories.get(name) === factory) factories.delete(name);
  };
}

/** Names that `createBackend` takes. */
export function backendNames(): string[] {
  return [...factories.keys()];
}

/**
 * This rank's end of a new world.
 *
 * @throws InvalidArgumentError for an unknown name
 * @throws BackendUnavailableError if the backend cannot run here; the message says why
 */
export async function createBackend(name: string, init: BackendInit): Promise<Backend> {
  const factory = factories.get(name);
  if (factory !== undefined) return factory(init);
  throw new InvalidArgumentError(
    `backend: there is no backend '${name}'. Known backends: ${backendNames().join(', ')}. Add your own with registerBackend(name, factory).`,
  );
}

/**
 * Whether `World.init({ backend: 'nccl' })` can run here: the package lockstep-nccl, the CUDA driver, NCCL 2.24.3 or newer,
 * and a device are there. Loads the libraries on the first call; never throws.
 */
export function isNcclAvailable(): boolean {
  return loadAvailability().isNcclAvailable();
}

/** What is missing for `isNcclAvailable()`, where it was looked for, and what to install; undefined if nothing is. */
export function ncclUnavailableReason(): string | undefined {
  return loadAvailability().ncclUnavailableReason();
}

function connectMock(init: BackendInit): Backend {
  if (init.worldSize === 1)
    // No bare rank of a test ([Note: bare ranks]): a program waits in its store as long as on any other backend.
    return MockBackend.single({
      timeoutMs: init.timeoutMs ?? DEFAULT_TIMEOUT_MS,
      sourceLines: init.callSites,
      deterministic: init.deterministic,
      ...(init.options as MockOptions | undefined),
    });
  throw new BackendUnavailableError(
    `backend 'mock' holds all ranks in one process, so it cannot join a job of ${init.worldSize} processes. Use MockBackend.createWorld(${init.worldSize}) or runWorld in a test.`,
  );
}

/** By require: a dynamic import() would pass by the module registry of Jest, where users' tests run. */
function loadGrpc(): typeof grpc {
  // eslint-disable-next-line @typescript-eslint/no-require-imports -- see above
  return require('./grpc/connect') as typeof grpc;
}

function loadAvailability(): typeof availability {
  // eslint-disable-next-line @typescript-eslint/no-require-imports -- see above
  return require('./nccl/availability') as typeof availability;
}

function loadNccl(): typeof nccl {
  // eslint-disable-next-line @typescript-eslint/no-require-imports -- see above
  return require('./nccl/connect') as typeof nccl;
}

export { MockBackend };
export type { BackendInit, DataPlane, TlsOptions } from './backend-init';
export type { MockOptions } from './mock/mock-options';
