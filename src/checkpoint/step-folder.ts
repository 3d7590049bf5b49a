/**
 * The folders of a checkpoint directory, and what tells a complete one.
 *
 * [Note: how a checkpoint becomes complete] All files are written into `.saving-step-N-<nonce>` and made durable, with
 * their names. The folder is renamed to `step-N`, that name is made durable, and then the marker `COMPLETE` is written
 * into it, which holds the checksum of the index. A process that is killed anywhere before leaves no marker. A
 * checkpoint of the same step is renamed to `.replaced-step-N-<nonce>` before, and counts until the new one is complete.
 */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { CheckpointError } from '../core/errors';
import { checksum } from './checksum';
import { decodeIndex, FORMAT, VERSION, type CheckpointIndex } from './index-file';

export const INDEX_NAME = 'index.json';
export const MARKER_NAME = 'COMPLETE';
/** Holds the owner of a folder that has its name, until the marker is there. */
export const OWNER_NAME = 'SAVING';

export interface StepFolder {
  readonly step: number;
  readonly name: string;
}

export function stepFolderName(step: number): string {
  return `step-${step}`;
}

export function rankFileName(rank: number): string {
  return `rank-${rank}.safetensors`;
}

/** What becomes of a folder, as the front of its name says. */
export type Purpose = 'saving' | 'replaced' | 'removing';

/** @param owner whose it is, see owner-tag.ts */
export function hiddenName(purpose: Purpose, step: number, owner: string): string {
  return `.${purpose}-step-${step}-${owner}`;
}

const STEP_NAME = /^step-(\d{1,15})$/;
const HIDDEN_NAME = /^\.(saving|replaced|removing)-step-(\d{1,15})-([0-9a-f-]+)$/;

export interface HiddenFolder extends StepFolder {
  readonly purpose: Purpose;
  readonly owner: string;
}

/** What is in a name that `hiddenName` made; undefined for another. */
export function parseHiddenName(name: string): HiddenFolder | undefined {
  const [, purpose, step, owner] = HIDDEN_NAME.exec(name) ?? [];
  if (purpose === undefined || owner === undefined) return undefined;
  return { purpose: purpose as Purpose, step: Number(step), owner, name };
}

/** Names in `directory`; none if it does not exist. */
export async function listNames(directory: string): Promise<string[]> {
  try {
    return await readdir(directory);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
}

/** Folders that may hold a checkpoint, the newest step first; of one step the one in its place before one replaced. */
export async function listStepFolders(directory: string): Promise<StepFolder[]> {
  const folders = (await listNames(directory)).flatMap((name) => {
    const [, step] = STEP_NAME.exec(name) ?? [];
    if (step !== undefined && name === stepFolderName(Number(step))) return [{ step: Number(step), name, place: 0 }];
    const hidden = parseHiddenName(name);
    return hidden?.purpose === 'replaced' ? [{ step: hidden.step, name, place: 1 }] : [];
  });
  folders.sort((a, b) => b.step - a.step || a.place - b.place);
  return folders.map(({ step, name }) => ({ step, name }));
}

/** What `COMPLETE` says, all of it: whatever else it holds is damage. */
export function markerText(step: number, index: Uint8Array): string {
  return `${FORMAT} ${VERSION} step ${step} index ${checksum(index)}\n`;
}

/** Whether a folder has the marker that belongs to its index. */
export async function isMarked(directory: string, { name, step }: StepFolder): Promise<boolean> {
  const path = join(directory, name);
  const [marker, index] = await Promise.all([readPart(path, MARKER_NAME), readPart(path, INDEX_NAME)]);
  return marker !== undefined && index !== undefined && marker.toString('latin1') === markerText(step, index);
}

/**
 * The index of a complete checkpoint, and its marker, which no other checkpoint of the step has.
 * @throws CheckpointError with the reason why it is none
 */
export async function readIndex(
  directory: string,
  folder: StepFolder,
): Promise<{ readonly index: CheckpointIndex; readonly marker: string }> {
  const path = join(directory, folder.name);
  const [marker, bytes] = await Promise.all([readPart(path, MARKER_NAME), readPart(path, INDEX_NAME)]);
  if (marker === undefined) {
    throw unusable(
      path,
      bytes === undefined ? 'it is not a checkpoint of Lockstep' : `it is incomplete: it has no ${MARKER_NAME}`,
    );
  }
  if (bytes === undefined) throw unusable(path, `${INDEX_NAME} is missing`);
  const text = marker.toString('latin1');
  if (text !== markerText(folder.step, bytes)) throw unusable(path, markerProblem(text));
  try {
    return { index: decodeIndex(bytes), marker: text };
  } catch (error) {
    throw unusable(path, `${INDEX_NAME} is not valid: ${(error as Error).message}`, error);
  }
}

function markerProblem(text: string): string {
  const [, version] = /^lockstep-checkpoint (\d+) step/.exec(text) ?? [];
  if (version === undefined) return `${MARKER_NAME} is damaged, or not one of Lockstep`;
  if (Number(version) !== VERSION)
    return `it is of version ${version} of the format, and this release reads version ${VERSION}`;
  return `${MARKER_NAME} does not match ${INDEX_NAME}: one of them is damaged, or the folder was renamed`;
}

/** The bytes of a file in a folder; undefined if there is none. */
export async function readPart(path: string, name: string): Promise<Buffer | undefined> {
  try {
    return await readFile(join(path, name));
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ENOTDIR') return undefined;
    throw unusable(path, `${name} cannot be read: ${(error as Error).message}`, error);
  }
}

/** The error for a checkpoint that is not good. */
export function unusable(path: string, reason: string, cause?: unknown): CheckpointError {
  return new CheckpointError(`${path}: ${reason}.`, { op: 'loadCheckpoint', cause });
}
