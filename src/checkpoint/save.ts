/** Saving, step by step; the same steps whether training waits for them or not. */
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { fromWire, toWire } from '../core/error-wire';
import { asError, CheckpointError, InvalidArgumentError, isLockstepError } from '../core/errors';
import type { Logger } from '../core/logger';
import type { ProcessGroup } from '../process-group/process-group';
import type { TensorPart } from '../strategy/state-parts';
import { assertNoPendingCall, markPendingCall } from '../tensor/pending-calls';
import type { Tensor } from '../tensor/tensor';
import { removeIfPossible } from './durable-file';
import { FORMAT, problemOf, VERSION, type CheckpointIndex, type Values } from './index-file';
import { earlierFailure } from './pending-save';
import { writeRankFile, type NamedPiece, type RankFile } from './rank-file';
import { errorOfRank, onAllRanks, outcomeOf, type RankOutcome } from './rank-outcomes';
import { digestOf, requireSameReplicas, requireSameValues, type ReplicaDigest } from './replica-check';
import { SaveFolder } from './save-folder';
import type { SaveEnd, SaveMeeting } from './save-meeting';
import { ownValues, sharedValues } from './small-state';
import { rankFileName } from './step-folder';
import { holdersOf, type CheckpointState, type StateHolders } from './training-state';

export interface SaveRequest {
  readonly op: string;
  readonly directory: string;
  readonly group: ProcessGroup;
  readonly step: number | undefined;
  readonly keep: number | undefined;
  /** Make sure that what every rank holds is the same on all. */
  readonly checkReplicas: boolean;
  readonly logger: Logger;
}

/** A save for which everything is known, and nothing written. */
export interface BegunSave extends SaveRequest {
  readonly step: number;
  /** Where the checkpoint will be. */
  readonly path: string;
  /** The folder's path while it is written. */
  readonly temporary: string;
  /** Until it is called, step() and backward() of the state are refused. */
  readonly unlock: () => void;
  /** On rank 0 only. */
  readonly folder: SaveFolder | undefined;
  /** What this rank writes. */
  readonly parts: readonly TensorPart[];
  readonly values: Values;
  /** By rank. */
  readonly ranks: readonly Values[];
}

/** What every rank tells before anything is asked of the model and the optimizer. */
interface Opening {
  readonly step: number | undefined;
  readonly checkReplicas: boolean;
  readonly shared: Values;
  readonly own: Values;
}

/**
 * Ask the state for its parts, and make the temporary folder. Collective.
 * @param parse checks the request; what it throws, every rank rejects with
 */
export async function beginSave(
  group: ProcessGroup,
  op: string,
  state: CheckpointState,
  parse: () => SaveRequest,
): Promise<BegunSave> {
  const failure = await earlierFailure(group);
  let request: SaveRequest | undefined;
  let holders: StateHolders | undefined;
  const openings = await onAllRanks(group, op, async (): Promise<Opening> => {
    if (failure !== undefined)
      throw new CheckpointError(`an earlier save in the background failed: ${failure.message}`, { cause: failure });
    request = parse();
    holders = holdersOf(state, group);
    for (const parameter of unlockedParameters(state, op)) assertNoPendingCall(parameter, op);
    const { step = state.step, checkReplicas } = request;
    return { step, checkReplicas, shared: await sharedValues(state), own: await ownValues(state) };
  });
  const step = agreedStep(openings, op);
  const checkReplicas = group.size > 1 && openings.every((opening) => opening.checkReplicas);
  if (checkReplicas) {
    requireSameValues(
      openings.map(({ shared }) => shared),
      group,
      op,
    );
  }
  let unlock = (): void => undefined;
  const collected = await outcomeOf(async () => {
    const whole = await collectParts(holders as StateHolders);
    unlock = markPendingCall(unlockedParameters(state, op), `${op}()`);
    return whole;
  });
  let folder;
  try {
    folder = await makeFolder({ ...(request as SaveRequest), checkReplicas }, step, collected);
  } catch (error) {
    unlock();
    throw error;
  }
  const { parts, values } = collected.value as CollectedParts;
  return {
    ...(request as SaveRequest),
    ...folder,
    unlock,
    parts,
    values: { ...values, ...(openings[0] as Opening).shared },
    ranks: openings.map(({ own }) => own),
  };
}

/** In a mock world ranks may share a model, of which each writes its part: then one of them locks it. */
function unlockedParameters({ model }: CheckpointState, op: string): Tensor[] {
  return model.parameters().filter(({ leaf }) => leaf.pendingCall !== `${op}()`);
}

interface CollectedParts {
  readonly parts: readonly TensorPart[];
  /** Held by every rank. */
  readonly replicas: readonly TensorPart[];
  readonly values: Values;
}

/** In one order on all ranks, since holders may communicate. */
async function collectParts({ model, optimizer }: StateHolders): Promise<CollectedParts> {
  const parts: TensorPart[] = [];
  const replicas: TensorPart[] = [];
  const values: Record<string, Values> = {};
  for (const [name, holder] of Object.entries({ model, optimizer })) {
    const held = await holder?.stateParts();
    if (held === undefined) continue;
    values[name] = held.values;
    const named = (part: TensorPart): TensorPart => ({ ...part, name: `${name}/${part.name}` });
    parts.push(...held.tensors.map(named));
    replicas.push(...(held.replicas ?? []).map(named));
  }
  return { parts, replicas, values };
}

function agreedStep(openings: readonly Opening[], op: string): number | undefined {
  const step = openings[0]?.step;
  const other = openings.findIndex((opening) => opening.step !== step);
  if (other < 0) return step;
  throw new InvalidArgumentError(
    `${op}: rank ${other} saves step ${openings[other]?.step}, and rank 0 saves step ${step}. Pass the same step on every rank.`,
    { op, ranks: [other] },
  );
}

/** Rank 0 makes the folder, once every rank has its parts; the ranks compare what they hold alike. */
async function makeFolder(
  { group, op, directory, checkReplicas, logger }: SaveRequest,
  wantedStep: number | undefined,
  collected: RankOutcome<CollectedParts>,
): Promise<Pick<BegunSave, 'step' | 'path' | 'temporary' | 'folder'>> {
  let folder: SaveFolder | undefined;
  let digest: ReplicaDigest = { names: [], checksums: [] };
  try {
    const answers = await onAllRanks(group, op, async () => {
      if (collected.error !== undefined) throw fromWire(collected.error);
      const { replicas, values } = collected.value;
      if (checkReplicas) digest = await digestOf({ tensors: replicas, values });
      if (group.rank === 0) folder = await SaveFolder.create(directory, wantedStep, logger);
      return { checksums: digest.checksums, step: folder?.step, name: folder?.temporaryName };
    });
    requireSameReplicas(
      digest,
      answers.map(({ checksums }) => checksums),
      group,
      op,
    );
    const { step, name } = answers[0] as { readonly step: number; readonly name: string };
    return { step, path: join(directory, `step-${step}`), temporary: join(directory, name), folder };
  } catch (error) {
    await folder?.discard();
    throw error;
  }
}

/**
 * Write everything and make it a complete checkpoint. The parts' memory is read until the promise settles.
 * @returns its path
 * @throws CheckpointError on every rank if it failed on one, naming that rank; nothing of it is left
 */
export async function finishSave(save: BegunSave, meeting: SaveMeeting): Promise<string> {
  const { group, op, folder } = save;
  try {
    const reports = await meeting.reports(await outcomeOf(() => writeOwnFile(save)));
    const end = await meeting.end(folder === undefined ? undefined : await complete(save, folder, reports, meeting));
    if (end.failure !== undefined) throw errorOfRank(end.failure, end.rank, group, op);
    return save.path;
  } catch (error) {
    if (meeting.files.length === 0) await folder?.discard();
    else folder?.leave();
    if (isLockstepError(error)) throw error;
    const context = { rank: group.rank, group: group.name, op, cause: error };
    throw new CheckpointError(`${op}: rank ${group.rank} of ${group.name}: ${asError(error).message}`, context);
  }
}

async function writeOwnFile(save: BegunSave): Promise<RankFile> {
  const { temporary, group } = save;
  await requireVisible(save);
  try {
    return await writeRankFile(temporary, group.rank, save.parts);
  } catch (error) {
    // on a full disk this makes room for the report
    await removeIfPossible(join(temporary, rankFileName(group.rank)));
    throw new CheckpointError(`could not write ${temporary}: ${asError(error).message}`, { cause: error });
  }
}

/** A folder of the same name on another machine is not the same folder. */
async function requireVisible({ directory, temporary, group }: BegunSave): Promise<void> {
  try {
    await stat(temporary);
  } catch (error) {
    throw new CheckpointError(
      `${temporary}, which rank 0 has made, cannot be seen on rank ${group.rank} (${asError(error).message}). ` +
        `All ranks must see ${directory} as one shared folder.`,
      { cause: error },
    );
  }
}

/** Rank 0: the index, the marker, and then the removal of what is not needed any more. */
async function complete(
  save: BegunSave,
  folder: SaveFolder,
  reports: readonly RankOutcome<RankFile>[],
  { files }: SaveMeeting,
): Promise<SaveEnd> {
  const failed = reports.findIndex(({ error }) => error !== undefined);
  const report = reports[failed];
  if (report?.error !== undefined) return { failure: report.error, rank: failed };
  try {
    await folder.complete(
      indexOf(
        save,
        reports.map(({ value }) => value as RankFile),
      ),
      { ...save, obsolete: files },
    );
    return {};
  } catch (error) {
    return { failure: toWire(error), rank: 0 };
  }
}

/** @throws CheckpointError if what the ranks have written is not the whole state */
function indexOf({ step, values, ranks }: BegunSave, written: readonly RankFile[]): CheckpointIndex {
  const byName = new Map<string, NamedPiece[]>();
  for (const piece of written.flatMap(({ pieces }) => pieces)) {
    const pieces = byName.get(piece.name);
    if (pieces === undefined) byName.set(piece.name, [piece]);
    else pieces.push(piece);
  }
  const tensors = [...byName].map(([name, pieces]) => {
    const { shape, dtype } = pieces[0] as NamedPiece;
    const places = pieces
      .filter(({ length }) => length > 0)
      .sort((a, b) => a.start - b.start)
      .map(({ file, offset, start, length, checksums }) => ({ file, offset, start, length, checksums }));
    return [name, { shape, dtype, pieces: places }] as const;
  });
  const files = written.map(({ file }) => file);
  const index = {
    format: FORMAT,
    version: VERSION,
    step,
    files,
    tensors: Object.fromEntries(tensors),
    values,
    ranks,
  } as const;
  const problem = problemOf(index);
  if (problem === undefined) return index;
  throw new CheckpointError(`the parts that the ranks hold do not make up the state: ${problem}.`);
}
