/**
 * Checkpoints: a training state on disk that is whole or not there, and loads into any number of ranks.
 *
 * [Note: form of a checkpoint] `step-N/` holds one safetensors file a rank, each with pieces of tensors; `index.json`, which
 * says for every tensor, by name, its shape, its dtype and where its pieces are; and the marker `COMPLETE`. No flat layout is
 * written down, so whoever loads asks for the elements that it holds, whatever the ranks were that saved them.
 */
import { join } from 'node:path';
import { z } from 'zod';
import { checkGroup } from '../comm/group-argument';
import { checkTimeout, DEFAULT_TIMEOUT_MS } from '../core/deadline';
import { InvalidArgumentError, NotInGroupError } from '../core/errors';
import { stderrLogger, type Logger } from '../core/logger';
import { parseOptions } from '../core/options';
import type { ProcessGroup } from '../process-group/process-group';
import { requireLittleEndian } from './durable-file';
import { inTurn } from './group-turns';
import { load, type LoadRequest } from './load';
import { BackgroundSave, type PendingCheckpoint } from './pending-save';
import { beginSave, finishSave, type BegunSave, type SaveRequest } from './save';
import { FolderMeeting, GroupMeeting } from './save-meeting';
import { takeSnapshot } from './snapshot';
import type { CheckpointState } from './training-state';

export interface SaveCheckpointOptions {
  /** The number of the checkpoint. Default: `state.step`, or else one more than that of the newest one there. */
  readonly step?: number | undefined;
  /** Complete checkpoints to leave in the directory, the new one among them; default: all. */
  readonly keep?: number | undefined;
  /** How long a rank waits for the others to finish their files; default: what the group has, 10 minutes in the background. */
  readonly timeoutMs?: number | undefined;
  /**
   * Compare over the ranks what each of them holds whole, and refuse to save where it differs: each rank would write a part of
   * another model. Default: true. It reads all of the state once on every rank.
   */
  readonly checkReplicas?: boolean | undefined;
  /** Gets what went wrong beside a save that succeeded; default: stderr, as LOCKSTEP_LOG says. */
  readonly logger?: Logger | undefined;
}

export interface LoadCheckpointOptions {
  /** Load this one and no other; default: the newest good one. */
  readonly step?: number | undefined;
  /** Gets a warning if newer ones had to be passed over; default: stderr, as LOCKSTEP_LOG says. */
  readonly logger?: Logger | undefined;
}

/** What was loaded. */
export interface LoadedCheckpoint {
  readonly step: number;
  readonly path: string;
}

const stepSchema = z.int().min(0).max(999_999_999_999_999);
const saveSchema = z.strictObject({
  step: stepSchema.optional(),
  keep: z.int().min(1).optional(),
  timeoutMs: z.number().optional(),
  checkReplicas: z.boolean().default(true),
});
const loadSchema = z.strictObject({ step: stepSchema.optional() });

/**
 * Save a training state as `directory/step-N`, and wait until it is durable. Every rank of the group calls it.
 *
 * All ranks must see `directory` as the same folder: on several machines, one on a shared file system. The new checkpoint is
 * complete or not there at all, whenever a process or a machine dies; older ones beyond `keep` are removed after that.
 * Each rank writes the parts that it holds; of what all ranks hold whole, an equal share each. Leave the state alone until the
 * promise settles: `step()` and `backward()` refuse meanwhile. Saves and loads of one group take turns, in the order of the
 * calls, which must be the same on every rank; see [Note: turns].
 *
 * @returns the path of the checkpoint, on every rank
 * @throws CheckpointError, on every rank, if one of them could not write its part, naming that rank; nothing is left of it
 * @throws InvalidArgumentError, on every rank, for a state or option that does not fit, different steps, or replicas that
 *   differ between ranks
 */
export async function saveCheckpoint(
  directory: string,
  state: CheckpointState,
  group: ProcessGroup,
  options?: SaveCheckpointOptions,
): Promise<string> {
  const op = 'saveCheckpoint';
  requireMember(group, op);
  return inTurn(group, async () => {
    const save = await begin(op, directory, state, group, options);
    try {
      return await finishSave(save, new GroupMeeting(group, { timeoutMs: options?.timeoutMs }));
    } finally {
      save.unlock();
    }
  });
}

/**
 * Take a snapshot of a training state, and save it while training goes on. Every rank of the group calls it.
 *
 * When the promise settles, the snapshot is taken (this rank's parts, counted as 'other' in the memory account) and the state
 * may change; `done` of the result settles when the checkpoint is complete. What runs in between makes no collectives: its
 * ranks meet through files in `directory`. The next save of the group waits for it.
 *
 * @throws as saveCheckpoint does, for all that is found before anything is written
 */
export async function saveCheckpointAsync(
  directory: string,
  state: CheckpointState,
  group: ProcessGroup,
  options?: SaveCheckpointOptions,
): Promise<PendingCheckpoint> {
  const op = 'saveCheckpointAsync';
  requireMember(group, op);
  return inTurn(group, async () => {
    const save = await begin(op, directory, state, group, options);
    const snapshot = takeSnapshot(save.parts);
    save.unlock(); // training may change the state from here on
    const { temporary, path: final, logger } = save;
    const timeoutMs = checkTimeout(options?.timeoutMs, DEFAULT_TIMEOUT_MS);
    const meeting = new FolderMeeting(group, { temporary, final, timeoutMs, logger });
    const done = finishSave({ ...save, parts: snapshot.parts }, meeting).finally(() => {
      snapshot.release();
      meeting.close();
    });
    return new BackgroundSave(group, final, done);
  });
}

/**
 * Load the newest good checkpoint of `directory`, or the one of `step`. Every rank of the group calls it.
 *
 * The state may have been saved by any number of ranks, at any ZeRO stage, or by a plain module. Floating point values are
 * converted to the dtype that they have here; a float32 parameter takes the optimizer's float32 copy of one that was saved
 * in 16 bits. What the checkpoint has beyond `state` is left out. All of it is read and checked, on all ranks, before
 * anything changes, so a rejection leaves the state as it was.
 *
 * Each rank gets its own random state; ranks that were not there when it was saved get different ones, made from rank 0's.
 * @throws CheckpointError, on every rank, if there is no good one; or the one of `step` is not good: then with the reason, and
 *   the newest good one is named
 * @throws InvalidArgumentError, on every rank, if the checkpoint is good but of another model, optimizer or state
 */
export async function loadCheckpoint(
  directory: string,
  state: CheckpointState,
  group: ProcessGroup,
  options: LoadCheckpointOptions = {},
): Promise<LoadedCheckpoint> {
  const op = 'loadCheckpoint';
  requireMember(group, op);
  const { logger = stderrLogger, ...settings } = options;
  const parse = (): LoadRequest => {
    const { step } = parseOptions(loadSchema, settings, op);
    return { op, group, directory: checkDirectory(directory), step, logger };
  };
  const folder = await inTurn(group, () => load(group, op, state, parse));
  return { step: folder.step, path: join(directory, folder.name) };
}

function begin(
  op: string,
  directory: string,
  state: CheckpointState,
  group: ProcessGroup,
  options: SaveCheckpointOptions = {},
): Promise<BegunSave> {
  const { logger = stderrLogger, ...settings } = options;
  return beginSave(group, op, state, (): SaveRequest => {
    const { step, keep, timeoutMs, checkReplicas } = parseOptions(saveSchema, settings, op);
    checkTimeout(timeoutMs, DEFAULT_TIMEOUT_MS);
    if (step === undefined && state.step !== undefined) parseOptions(loadSchema, { step: state.step }, `${op}: state`);
    return { op, group, directory: checkDirectory(directory), step, keep, checkReplicas, logger };
  });
}

function checkDirectory(directory: unknown): string {
  requireLittleEndian('a checkpoint');
  if (typeof directory === 'string' && directory !== '') return directory;
  throw new InvalidArgumentError(
    `expected the path of a directory, got ${directory === '' ? "''" : typeof directory}.`,
  );
}

/** A group of one is not asked for a collective, so a rank outside of the group is found here. */
function requireMember(group: ProcessGroup, op: string): void {
  checkGroup(group, op);
  if (group.isMember) return;
  throw new NotInGroupError(
    `${op}: this rank is not a member of the group (ranks ${group.ranks.join(', ')}). Call it only where group.isMember is true.`,
    { op },
  );
}
