/** Rank 0's part of a save: the temporary folder, and its way to a complete checkpoint. See [Note: how a checkpoint becomes complete]. */
import { mkdir, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { asError } from '../core/errors';
import type { Logger } from '../core/logger';
import { makeDurableFolder, removeIfPossible, syncFolder, writeNewFile } from './durable-file';
import { encodeIndex, type CheckpointIndex } from './index-file';
import { claimOwnerTag, isAbandoned, releaseOwnerTag } from './owner-tag';
import {
  hiddenName,
  INDEX_NAME,
  isMarked,
  listNames,
  listStepFolders,
  MARKER_NAME,
  markerText,
  OWNER_NAME,
  parseHiddenName,
  readPart,
  stepFolderName,
} from './step-folder';

export interface SaveFolderOptions {
  /** Complete checkpoints to leave, the new one among them; all if undefined. */
  readonly keep: number | undefined;
  readonly logger: Logger;
  /** Files in the folder that nobody needs once the checkpoint is complete. */
  readonly obsolete: readonly string[];
}

export class SaveFolder {
  readonly step: number;
  readonly #directory: string;
  readonly #owner: string;

  private constructor(directory: string, step: number, owner: string) {
    this.#directory = directory;
    this.step = step;
    this.#owner = owner;
  }

  /**
   * Make the temporary folder, and clear away those that dead processes have left.
   * @param step default: one more than that of the newest checkpoint, 0 for the first
   */
  static async create(directory: string, step: number | undefined, logger: Logger): Promise<SaveFolder> {
    await makeDurableFolder(directory);
    const chosen = step ?? ((await listStepFolders(directory))[0]?.step ?? -1) + 1;
    const folder = new SaveFolder(directory, chosen, claimOwnerTag());
    try {
      await mkdir(join(directory, folder.temporaryName));
    } catch (error) {
      releaseOwnerTag(folder.#owner);
      throw error;
    }
    await tryTo('clear away what an earlier save left', () => folder.#clearAbandoned(), logger);
    return folder;
  }

  get temporaryName(): string {
    return hiddenName('saving', this.step, this.#owner);
  }

  /** The folder of the complete checkpoint. */
  get path(): string {
    return join(this.#directory, stepFolderName(this.step));
  }

  /** All files are there: add the index, and make it a complete checkpoint. Then remove what it replaces. */
  async complete(index: CheckpointIndex, { keep, logger, obsolete }: SaveFolderOptions): Promise<void> {
    const temporary = join(this.#directory, this.temporaryName);
    const bytes = encodeIndex(index);
    await writeNewFile(join(temporary, INDEX_NAME), (file) => file.writeFile(bytes));
    await writeNewFile(join(temporary, OWNER_NAME), (file) => file.writeFile(this.#owner));
    await syncFolder(temporary);
    await this.#moveAside();
    await rename(temporary, this.path);
    await syncFolder(this.#directory);
    await writeNewFile(join(this.path, MARKER_NAME), (file) => file.writeFile(markerText(this.step, bytes)));
    await syncFolder(this.path);
    releaseOwnerTag(this.#owner);
    await tryTo('remove what is not needed any more', () => this.#tidyUp(keep, obsolete), logger);
  }

  /** Give up; what is there is cleared away at the next save. */
  leave(): void {
    releaseOwnerTag(this.#owner);
  }

  /** Give up: nothing of this save stays. Does not fail. */
  async discard(): Promise<void> {
    await removeIfPossible(join(this.#directory, this.temporaryName));
    releaseOwnerTag(this.#owner); // what could not be removed now is removed at the next save
  }

  /** A checkpoint of the same step, whole or not, makes room; it counts until the new one is complete. */
  async #moveAside(): Promise<void> {
    try {
      await rename(this.path, join(this.#directory, hiddenName('replaced', this.step, this.#owner)));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
    }
  }

  async #clearAbandoned(): Promise<void> {
    const directory = this.#directory;
    const own = join(directory, this.temporaryName);
    const remove = (name: string): Promise<void> => rm(join(directory, name), { recursive: true, force: true });
    for (const name of await listNames(directory)) {
      const folder = parseHiddenName(name);
      if (folder === undefined || folder.purpose === 'replaced') continue;
      if (folder.purpose === 'removing' || (await isAbandoned(join(directory, name), folder.owner, own)))
        await remove(name);
    }
    for (const folder of await listStepFolders(directory)) {
      // it had its name when its save died, but not its marker
      const path = join(directory, folder.name);
      const owner = (await readPart(path, OWNER_NAME))?.toString('latin1');
      if (owner === undefined || (await isMarked(directory, folder))) continue;
      if (await isAbandoned(path, owner, own)) await remove(folder.name);
    }
  }

  async #tidyUp(keep: number | undefined, obsolete: readonly string[]): Promise<void> {
    const directory = this.#directory;
    for (const name of [OWNER_NAME, ...obsolete]) await rm(join(this.path, name), { force: true });
    const complete = [];
    for (const { step, name } of await listStepFolders(directory)) {
      const inPlace = { step, name: stepFolderName(step) };
      if (name !== inPlace.name && (await isMarked(directory, inPlace))) await this.#remove(name, step);
      else if (step !== this.step && (await isMarked(directory, { step, name }))) complete.push({ step, name });
    }
    if (keep === undefined) return;
    for (const { step, name } of complete.slice(keep - 1)) await this.#remove(name, step);
  }

  /** Under another name first, so that nobody takes a part of it for a checkpoint. */
  async #remove(name: string, step: number): Promise<void> {
    const removing = join(this.#directory, hiddenName('removing', step, this.#owner));
    await rename(join(this.#directory, name), removing);
    await rm(removing, { recursive: true, force: true });
  }
}

/** Work that a save does not depend on: a failure is a warning. */
async function tryTo(purpose: string, work: () => Promise<void>, logger: Logger): Promise<void> {
  try {
    await work();
  } catch (error) {
    logger.warn(`saveCheckpoint: could not ${purpose}: ${asError(error).message}`);
  }
}
