/** A rank's way into a world on GPUs: control plane, device, communicator, backend. */
import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { z } from 'zod';
import { systemClock, type Timer } from '../../core/clock';
import { DEFAULT_TIMEOUT_MS, Deadline, checkTimeout } from '../../core/deadline';
import { environmentVariable } from '../../core/environment';
import { fromWire, toWire, type WireError } from '../../core/error-wire';
import { BackendUnavailableError, InvalidArgumentError, asError, isLockstepError } from '../../core/errors';
import { stderrLogger, type Logger } from '../../core/logger';
import type { BackendInit } from '../backend-init';
import type { ControlPlane } from '../control-plane';
import type { Communicator } from './addon';
import { chooseDevice } from './choose-device';
import { loadNccl, ncclVersionText, type NcclLoad } from './load-nccl';
import { describeFailure, EXPLANATION_MS, isNativeFailure, isOfAnotherRank, nativeError } from './native-failure';
import { NcclBackend } from './nccl-backend';
import type { NcclChecks } from './nccl-group';
import { OpenDevice } from './open-device';
import { decodeReport, encodeReport, findProblem, versionWarning, type RankReport } from './rank-report';

/** Joins the job; the gRPC backend's. */
export type ConnectControlPlane = (init: BackendInit) => Promise<ControlPlane>;

/** What this process has to do with NCCL. */
export interface NcclSetup {
  readonly load: () => NcclLoad;
  /** Text of the kernels' module. */
  readonly readKernels: () => string;
}

const ofThisMachine: NcclSetup = { load: loadNccl, readKernels: readPackagedKernels };

/**
 * Join the job, open this rank's device, and make the communicator of all ranks. A rank that cannot is named to all of them:
 * so the control plane comes first.
 *
 * @throws BackendUnavailableError, the same on all ranks, naming each rank that cannot use a GPU and why
 * @throws InvalidArgumentError where two ranks were given the same device
 * @throws NativeError where NCCL could not connect the ranks
 * @throws what `connectControlPlane` does; nothing stays open then
 */
export async function connectNccl(
  init: BackendInit,
  connectControlPlane: ConnectControlPlane,
  setup: NcclSetup = ofThisMachine,
): Promise<NcclBackend> {
  const { rank, worldSize, deterministic, logger = stderrLogger } = init;
  const checks = readChecks();
  const timeoutMs = checkTimeout(init.timeoutMs, DEFAULT_TIMEOUT_MS);
  const deadline = new Deadline(checkTimeout(init.joinTimeoutMs, timeoutMs));
  const control = await connectControlPlane(init);
  let device: OpenDevice | undefined;
  try {
    warnOfVariables(rank, logger);
    const own = await openOwnDevice(init, setup);
    device = own.device;
    const reports = (await control.exchange(encodeReport(own.report), leftOf(deadline))).map(decodeReport);
    const problem = findProblem(reports);
    if (problem !== undefined) throw problem;
    const warning = rank === 0 ? versionWarning(reports) : undefined;
    if (warning !== undefined) logger.warn(warning);
    if (device === undefined) throw new BackendUnavailableError('a rank without a device has said that it has none');
    logger.info(`rank ${rank}: ${own.description}`);
    const id = await shareUniqueId(control, device, deadline);
    const options = { size: worldSize, rank, id, timeoutMs: leftOf(deadline), name: control.root.id };
    const communicator = await joinCommunicator(control, device, options);
    return NcclBackend.over({ control, communicator, device, checks, logger, timeoutMs, deterministic });
  } catch (error) {
    await closeAll(device, control, logger);
    throw error;
  }
}

interface OwnDevice {
  readonly report: RankReport;
  readonly device?: OpenDevice;
  /** For the log. */
  readonly description?: string;
}

/** Never throws: what is wrong stands in the report. */
async function openOwnDevice(init: BackendInit, { load, readKernels }: NcclSetup): Promise<OwnDevice> {
  const host = hostname();
  const mayShareDevice = environmentVariable('NCCL_MULTI_RANK_GPU_ENABLE') === '1';
  const failed = (problem: string): OwnDevice => ({ report: { host, problem, mayShareDevice } });
  const loaded = load();
  if ('reason' in loaded) return failed(loaded.reason);
  const { addon, probe } = loaded;
  const { deviceCount, cuda, nccl } = probe;
  const visibleDevices = environmentVariable('CUDA_VISIBLE_DEVICES');
  const choice = chooseDevice({ localRank: init.localRank ?? init.rank, deviceCount, visibleDevices });
  if ('reason' in choice) return failed(choice.reason);
  try {
    const { name, uuid } = addon.deviceInfo(choice.index);
    const device = await OpenDevice.open(addon, choice.index, readKernels());
    const { version: ncclVersion = 0, path = 'an unknown path' } = nccl;
    return {
      report: {
        host,
        device: { index: choice.index, name, uuid },
        ncclVersion,
        driverVersion: cuda.version,
        mayShareDevice,
      },
      device,
      description: `device ${choice.index} of ${deviceCount}, ${name} (uuid ${uuid}), NCCL ${ncclVersionText(ncclVersion)} from ${path}`,
    };
  } catch (thrown) {
    const why = isNativeFailure(thrown) ? describeFailure(thrown) : asError(thrown).message;
    return failed(`device ${choice.index} of ${deviceCount} cannot be opened: ${why}`);
  }
}

/** Rank 0 makes it; where it cannot, all ranks get its error. */
async function shareUniqueId(control: ControlPlane, device: OpenDevice, deadline: Deadline): Promise<Uint8Array> {
  const own = control.rank === 0 ? makeUniqueId(device) : {};
  const [bytes] = await control.exchange(Buffer.from(JSON.stringify(own)), leftOf(deadline));
  const { id, error } = sharedIdSchema.parse(JSON.parse(Buffer.from(bytes ?? []).toString()));
  if (id !== undefined) return Buffer.from(id, 'base64');
  throw fromWire({ ...(error as WireError), rank: control.rank });
}

const sharedIdSchema = z.object({ id: z.string().optional(), error: z.unknown().optional() });

function makeUniqueId(device: OpenDevice): z.infer<typeof sharedIdSchema> {
  try {
    return { id: Buffer.from(device.addon.uniqueId()).toString('base64') };
  } catch (thrown) {
    const what = 'World.init: NCCL could not open its meeting place, on rank 0';
    return { error: toWire(nativeError(thrown, what, device, { rank: 0 })) };
  }
}

type InitOptions = Parameters<OpenDevice['addon']['commInit']>[1];

/** A rank that cannot join tells the others, who would wait for it until the deadline. */
async function joinCommunicator(
  control: ControlPlane,
  device: OpenDevice,
  options: InitOptions,
): Promise<Communicator> {
  let isJoined = false;
  let isGivenUp = false;
  const failedElsewhere = new Promise<never>((_resolve, reject) => {
    control.root.onFailed((failure) => {
      // Later the group's own listeners tell of a failure. Asking for an error here would count as having told the program.
      if (isJoined) return;
      isGivenUp = true;
      reject(failure.errorFor({ op: 'World.init', sequence: undefined, dueMs: Infinity }));
    });
  });
  failedElsewhere.catch(() => undefined); // where both fail
  const joined = device.addon.commInit(device.handle, options).then((communicator) => {
    if (isGivenUp) device.abort(communicator, 'the world was given up');
    isJoined = true;
    return communicator;
  });
  try {
    return await Promise.race([joined, failedElsewhere]);
  } catch (thrown) {
    joined.catch(() => undefined); // its failure is a consequence
    if (isLockstepError(thrown)) throw thrown;
    if (isOfAnotherRank(thrown)) await atMost(EXPLANATION_MS, failedElsewhere);
    const { rank, size } = options;
    const error = nativeError(thrown, `World.init: NCCL could not connect rank ${rank} of ${size}`, device, { rank });
    control.root.fail(error);
    throw error;
  }
}

/** Settles with `promise`, or after `ms`. */
async function atMost(ms: number, promise: Promise<void>): Promise<void> {
  let timer: Timer | undefined;
  const elapsed = new Promise<void>((resolve) => (timer = systemClock.schedule(resolve, ms, true)));
  try {
    await Promise.race([promise, elapsed]);
  } finally {
    timer?.cancel();
  }
}

async function closeAll(device: OpenDevice | undefined, control: ControlPlane, logger: Logger): Promise<void> {
  try {
    await device?.close();
  } catch (thrown) {
    logger.info(`${device?.name ?? 'the device'} could not be closed: ${asError(thrown).message}`);
  } finally {
    await control.close();
  }
}

/** A moment even when nothing remains, so that the waiting call itself says what is missing. */
function leftOf(deadline: Deadline): number {
  return Math.max(1, Math.ceil(deadline.remainingMs));
}

function readChecks(): NcclChecks {
  const text = environmentVariable('LOCKSTEP_NCCL_CHECKS') ?? 'beside';
  if (text === 'beside' || text === 'before') return text;
  throw new InvalidArgumentError(
    `World.init: environment variable LOCKSTEP_NCCL_CHECKS is '${text}', expected beside or before.`,
  );
}

/** Of variables that change what this backend relies on. */
function warnOfVariables(rank: number, logger: Logger): void {
  if (environmentVariable('NCCL_COMM_BLOCKING') === '1') {
    logger.warn(
      `rank ${rank}: NCCL_COMM_BLOCKING=1 makes NCCL wait inside its calls, where no deadline and no abort can reach it. Unset it.`,
    );
  }
  if (environmentVariable('CUDA_LAUNCH_BLOCKING') === '1') {
    logger.warn(
      `rank ${rank}: CUDA_LAUNCH_BLOCKING=1 makes every launch wait for its end; collectives of several groups can then wait for each other for ever. Unset it.`,
    );
  }
}

function readPackagedKernels(): string {
  return readFileSync(require.resolve('lockstep-nccl/kernels/kernels.ptx'), 'utf8');
}
