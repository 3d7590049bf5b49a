/** Loading, step by step: find, read and check everything on all ranks, and only then change anything. */
import { join } from 'node:path';
import { CheckpointError, InvalidArgumentError } from '../core/errors';
import type { Logger } from '../core/logger';
import type { ProcessGroup } from '../process-group/process-group';
import { assertNoPendingCall } from '../tensor/pending-calls';
import { CheckpointFiles } from './checkpoint-files';
import { earlierSaveOver } from './pending-save';
import { exchangeOutcomes, onAllRanks, outcomeOf, valuesOf, type RankOutcome } from './rank-outcomes';
import { plannedChanges, type StateChange } from './small-state';
import { ModelReader, OptimizerReader } from './state-reader';
import { listStepFolders, readIndex, stepFolderName, type StepFolder } from './step-folder';
import { holdersOf, type CheckpointState, type StateHolders } from './training-state';

export interface LoadRequest {
  readonly op: string;
  readonly directory: string;
  readonly group: ProcessGroup;
  readonly step: number | undefined;
  readonly logger: Logger;
}

/** A checkpoint that was not good, and why. */
interface Refusal {
  readonly folder: StepFolder;
  readonly reason: string;
}

/** All ranks call it together. @param parse checks the request; what it throws, every rank rejects with */
export async function load(
  group: ProcessGroup,
  op: string,
  state: CheckpointState,
  parse: () => LoadRequest,
): Promise<StepFolder> {
  await earlierSaveOver(group); // it may be making the newest one
  let request: LoadRequest | undefined;
  let holders: StateHolders | undefined;
  const found = await onAllRanks(group, op, async () => {
    request = parse();
    holders = holdersOf(state, group);
    for (const [, parameter] of state.model.namedParameters()) assertNoPendingCall(parameter, op);
    return group.rank === 0 ? listStepFolders(request.directory) : [];
  });
  const attempt = new LoadAttempt(request as LoadRequest, state, holders as StateHolders);
  return attempt.loadBest(found[0] ?? []);
}

class LoadAttempt {
  readonly #request: LoadRequest;
  readonly #state: CheckpointState;
  readonly #holders: StateHolders;

  constructor(request: LoadRequest, state: CheckpointState, holders: StateHolders) {
    this.#request = request;
    this.#state = state;
    this.#holders = holders;
  }

  /** Load the first of `folders` that is good, or of those of the wanted step. */
  async loadBest(folders: readonly StepFolder[]): Promise<StepFolder> {
    const { step, op, group, logger } = this.#request;
    const wanted = step === undefined ? folders : folders.filter((folder) => folder.step === step);
    const refusals: Refusal[] = [];
    for (const folder of wanted) {
      const reason = await this.#load(folder);
      if (reason !== undefined) {
        refusals.push({ folder, reason });
        continue;
      }
      if (refusals.length > 0 && group.rank === 0) {
        logger.warn(`${op}: loaded ${folder.name}, the newest good checkpoint. Passed over: ${describe(refusals)}`);
      }
      return folder;
    }
    throw await this.#nothingLoaded(folders, refusals);
  }

  /**
   * Load one checkpoint.
   * @returns why it is not good; undefined if it was loaded
   * @throws InvalidArgumentError if it is good, but of another state
   */
  async #load(folder: StepFolder): Promise<string | undefined> {
    return this.#withFiles(folder, async (files) => {
      const { group, op } = this.#request;
      const { model, optimizer } = this.#holders;
      const damage: Error[] = [];
      const prepared = await outcomeOf(async () => {
        requireOptimizerState(files, optimizer !== undefined);
        const changeModel = await model.prepareStateParts(new ModelReader(files, damage));
        const changeOptimizer = await optimizer?.prepareStateParts(new OptimizerReader(files, damage));
        return { changeModel, changeOptimizer, small: await plannedChanges(this.#state, files.index, group.rank) };
      });
      const reason = await this.#checkAll(files, damage);
      if (reason !== undefined) return reason;
      const misfit = prepared.error === undefined ? { value: undefined } : { error: prepared.error };
      valuesOf(await exchangeOutcomes(misfit, group), group, `${op}: ${files.path}`);
      const { changeModel, changeOptimizer, small } = prepared.value as NonNullable<typeof prepared.value>;
      await this.#applySmall(small, files.path);
      changeModel();
      changeOptimizer?.();
      return undefined;
    });
  }

  /** Check this rank's share of what nobody has read. @returns the damage that any rank has found */
  async #checkAll(files: CheckpointFiles, damage: readonly Error[]): Promise<string | undefined> {
    const { group } = this.#request;
    const checked = await outcomeOf(async () => {
      if (damage[0] !== undefined) throw damage[0];
      await files.checkRest(group.rank, group.size);
    });
    const outcomes = await exchangeOutcomes(checked, group);
    return outcomes.find(({ error }) => error !== undefined)?.error?.message;
  }

  /** Small objects check their state when they load it, so this is tried first, and undone if it fails on any rank. */
  async #applySmall(changes: readonly StateChange[], path: string): Promise<void> {
    const { group, op } = this.#request;
    const done: StateChange[] = [];
    const outcome = await outcomeOf(async () => {
      for (const change of changes) {
        done.push(change); // before it is made: one that fails half way is undone, too
        await change.apply();
      }
    });
    const outcomes = await exchangeOutcomes(outcome, group);
    if (outcomes.some(({ error }) => error !== undefined))
      for (const change of done.reverse()) await this.#undo(change);
    valuesOf(outcomes, group, `${op}: ${path}`);
  }

  /** That one object does not take its own state back must not keep the others from it. */
  async #undo(change: StateChange): Promise<void> {
    const { op, logger } = this.#request;
    const { error } = await outcomeOf(() => change.undo());
    if (error !== undefined) logger.warn(`${op}: a state could not be put back after the failure: ${error.message}`);
  }

  /** Run `work` on the open files of a checkpoint. @returns what it returns, or why they cannot be opened */
  async #withFiles(
    folder: StepFolder,
    work: (files: CheckpointFiles) => Promise<string | undefined>,
  ): Promise<string | undefined> {
    const { directory, group } = this.#request;
    let files: CheckpointFiles | undefined;
    try {
      const opened = await outcomeOf(async () => {
        const { index, marker } = await readIndex(directory, folder);
        files = await CheckpointFiles.open(join(directory, folder.name), index);
        return marker;
      });
      const reason = reasonNotOpen(await exchangeOutcomes(opened, group));
      return reason ?? (await work(files as unknown as CheckpointFiles));
    } finally {
      await files?.close();
    }
  }

  /** The error when no wanted checkpoint is good; it names the newest good one of all. */
  async #nothingLoaded(folders: readonly StepFolder[], refusals: readonly Refusal[]): Promise<CheckpointError> {
    const { step, op, directory } = this.#request;
    if (folders.length === 0) {
      return new CheckpointError(`${op}: there is no checkpoint in ${directory}.`, { op });
    }
    if (step === undefined) {
      return new CheckpointError(`${op}: there is no good checkpoint in ${directory}. ${describe(refusals)}`, { op });
    }
    const problem = refusals.length === 0 ? `there is no ${stepFolderName(step)} in ${directory}.` : describe(refusals);
    const good = await this.#newestGood(folders.filter((folder) => folder.step !== step));
    const advice =
      good === undefined ? 'There is no good one.' : `The newest good one is ${join(directory, good.name)}.`;
    return new CheckpointError(`${op}: ${problem} ${advice}`, { op });
  }

  async #newestGood(folders: readonly StepFolder[]): Promise<StepFolder | undefined> {
    for (const folder of folders) {
      const reason = await this.#withFiles(folder, (files) => this.#checkAll(files, []));
      if (reason === undefined) return folder;
    }
    return undefined;
  }
}

function requireOptimizerState({ index }: CheckpointFiles, isWanted: boolean): void {
  if (!isWanted || index.values.optimizer !== undefined) return;
  throw new InvalidArgumentError(
    'the checkpoint has no optimizer state. Leave `optimizer` out of the state to load the model alone, or save it together with the model.',
  );
}

/** Why the checkpoint is not open on every rank, as the same one; undefined if it is. */
function reasonNotOpen(outcomes: readonly RankOutcome<string>[]): string | undefined {
  const failed = outcomes.findIndex(({ error }) => error !== undefined);
  const other = outcomes.findIndex(({ value }) => value !== outcomes[0]?.value);
  const problem = outcomes[failed]?.error?.message;
  if (problem !== undefined && outcomes.every(({ error }) => error !== undefined)) return problem;
  const advice = 'All ranks must see one shared folder.';
  if (problem !== undefined) return `rank ${failed} of ${outcomes.length} only: ${problem} ${advice}`;
  return other < 0 ? undefined : `rank ${other} sees another checkpoint under this name than rank 0. ${advice}`;
}

function describe(refusals: readonly Refusal[]): string {
  return refusals.map(({ reason }) => reason).join(' ');
}
