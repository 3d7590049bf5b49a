/**
 * How the ranks of a save meet: once when every rank has written its file, once when rank 0 has finished.
 *
 * [Note: meeting in the folder] A save in the background must not make collectives, which would come between those of the
 * training loop, in another order on each rank. Its ranks meet through files in the temporary folder instead: each leaves a
 * report, rank 0 waits for all of them, and the others wait until the marker is there, or a note that says why it never
 * will be.
 */
import { access, readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { CallOptions } from '../backend/backend';
import { systemClock } from '../core/clock';
import { Deadline } from '../core/deadline';
import { toWire, type WireError } from '../core/error-wire';
import { asError, CheckpointError } from '../core/errors';
import type { Logger } from '../core/logger';
import type { Poisoned } from '../process-group/events';
import type { ProcessGroup } from '../process-group/process-group';
import type { RankFile } from './rank-file';
import { exchangeOutcomes, outcomeOf, type RankOutcome } from './rank-outcomes';
import { MARKER_NAME } from './step-folder';

/** How a save ended: well, or by the failure of a rank. */
export type SaveEnd = { readonly failure?: undefined } | { readonly failure: WireError; readonly rank: number };

export interface SaveMeeting {
  /** Files that it leaves in the folder. */
  readonly files: readonly string[];
  /** Every rank brings what it has written. Rank 0 gets all of them, by rank, and before that no rank goes on to `end`. */
  reports(mine: RankOutcome<RankFile>): Promise<readonly RankOutcome<RankFile>[]>;
  /** Rank 0 tells how the save ended; the others pass undefined. All ranks get it. */
  end(own: SaveEnd | undefined): Promise<SaveEnd>;
}

/** In collectives of the group, while everybody waits for the save. */
export class GroupMeeting implements SaveMeeting {
  readonly files = [];
  readonly #group: ProcessGroup;
  readonly #options: CallOptions;

  constructor(group: ProcessGroup, options: CallOptions) {
    this.#group = group;
    this.#options = options;
  }

  reports(mine: RankOutcome<RankFile>): Promise<readonly RankOutcome<RankFile>[]> {
    return exchangeOutcomes(mine, this.#group, this.#options);
  }

  async end(own: SaveEnd | undefined): Promise<SaveEnd> {
    return this.#group.size === 1 ? (own as SaveEnd) : this.#group.broadcastObject(own, 0, this.#options);
  }
}

export interface FolderMeetingOptions {
  /** The path of the folder while it is written. */
  readonly temporary: string;
  /** Its path once it is complete. */
  readonly final: string;
  /** How long a rank waits for the others. */
  readonly timeoutMs: number;
  readonly logger: Logger;
}

/** See [Note: meeting in the folder]. */
export class FolderMeeting implements SaveMeeting {
  readonly files: readonly string[];
  readonly #group: ProcessGroup;
  readonly #temporary: string;
  readonly #final: string;
  readonly #timeoutMs: number;
  readonly #logger: Logger;
  #groupFailure: Error | undefined;
  /** This rank could not even report, so the save has failed. */
  #unreported: SaveEnd | undefined;
  readonly #onFailure = ({ error }: Poisoned): void => {
    this.#groupFailure = error;
  };

  constructor(group: ProcessGroup, { temporary, final, timeoutMs, logger }: FolderMeetingOptions) {
    const others = group.ranks.slice(1);
    this.files = others.length === 0 ? [] : [...others.map((_global, i) => reportName(i + 1)), FAILURE_NAME];
    this.#group = group;
    this.#temporary = temporary;
    this.#final = final;
    this.#timeoutMs = timeoutMs;
    this.#logger = logger;
    group.on('poisoned', this.#onFailure);
  }

  /** Stop listening to the group. */
  close(): void {
    this.#group.off('poisoned', this.#onFailure);
  }

  async reports(mine: RankOutcome<RankFile>): Promise<readonly RankOutcome<RankFile>[]> {
    const { rank, size } = this.#group;
    if (rank !== 0) {
      await this.#report(mine);
      return [];
    }
    if (mine.error !== undefined) return [mine]; // that decides it
    const deadline = new Deadline(this.#timeoutMs);
    const all: RankOutcome<RankFile>[] = [mine];
    for (let from = 1; from < size; from++) {
      const report = await outcomeOf(() => this.#reportOf(from, deadline));
      all.push(report.error === undefined ? report.value : report);
    }
    return all;
  }

  /** Where a full disk takes no report, it often takes an empty file: rank 0 then need not wait until its time is over. */
  async #report(mine: RankOutcome<RankFile>): Promise<void> {
    const { rank } = this.#group;
    const name = reportName(rank);
    const { error } = await outcomeOf(() => this.#leave(name, mine));
    if (error === undefined) return;
    this.#unreported = { failure: mine.error ?? error, rank };
    await outcomeOf(() => writeFile(join(this.#temporary, name), ''));
  }

  /** What a rank has left. @throws CheckpointError if that will not come any more */
  async #reportOf(rank: number, deadline: Deadline): Promise<RankOutcome<RankFile>> {
    const report = await this.#wait(async () => {
      const found = await this.#find<RankOutcome<RankFile>>(reportName(rank));
      if (found !== undefined || (await isThere(this.#temporary))) return found;
      throw new CheckpointError(`${this.#temporary} is gone, in which it was to leave a report`);
    }, deadline);
    if (report === undefined) throw this.#missing('it gave no report');
    return report;
  }

  async end(own: SaveEnd | undefined): Promise<SaveEnd> {
    if (this.#unreported !== undefined) return this.#unreported;
    if (own !== undefined) {
      if (own.failure !== undefined && this.files.length > 0) await this.#tell(own);
      return own;
    }
    let lost: Deadline | undefined;
    const look = async (): Promise<SaveEnd | undefined> => {
      const failed = await this.#find<SaveEnd>(FAILURE_NAME);
      if (failed !== undefined) return failed;
      // the folder keeps this rank's report until it is complete, so the marker is not that of an older checkpoint
      const isRenamed = !(await isThere(join(this.#temporary, reportName(this.#group.rank))));
      if (isRenamed && (await isThere(join(this.#final, MARKER_NAME)))) return {};
      if ((await isThere(this.#temporary)) || (await isThere(this.#final))) lost = undefined;
      else lost ??= new Deadline(Math.min(this.#timeoutMs, VISIBLE_MS));
      if (lost?.isPast === true) throw new CheckpointError(`${this.#temporary} is gone`);
      return undefined;
    };
    const waited = await outcomeOf(() => this.#wait(look, new Deadline(2 * this.#timeoutMs))); // as rank 0 waits, too
    if (waited.error !== undefined) return { failure: waited.error, rank: this.#group.rank };
    return waited.value ?? { failure: toWire(this.#missing('it did not finish')), rank: 0 };
  }

  /** Where even that cannot be written, the others wait until their time is over. */
  async #tell(failure: SaveEnd): Promise<void> {
    try {
      await this.#leave(FAILURE_NAME, failure);
    } catch (error) {
      this.#logger.warn(`saveCheckpointAsync: could not tell the other ranks of a failure: ${asError(error).message}`);
    }
  }

  /** Leave something for the others to find, whole or not at all. */
  async #leave(name: string, value: object): Promise<void> {
    const path = join(this.#temporary, name);
    await writeFile(`${path}.part`, JSON.stringify(value));
    await rename(`${path}.part`, path);
  }

  async #find<T>(name: string): Promise<T | undefined> {
    const path = join(this.#temporary, name);
    if (!(await isThere(path))) return undefined;
    const text = await readFile(path, 'utf8');
    if (text === '') throw new CheckpointError(`it could not write ${path}`);
    return JSON.parse(text) as T;
  }

  /** Look again and again, more and more seldom. @returns undefined if there is nothing in time, or the group fails */
  async #wait<T>(look: () => Promise<T | undefined>, deadline: Deadline): Promise<T | undefined> {
    for (let pauseMs = 2; ; pauseMs = Math.min(200, pauseMs * 1.5)) {
      const found = await look();
      if (found !== undefined || this.#groupFailure !== undefined || deadline.isPast) return found;
      await new Promise<void>((resolve) => systemClock.schedule(resolve, pauseMs, true));
    }
  }

  #missing(what: string): CheckpointError {
    const failure = this.#groupFailure;
    const when = failure === undefined ? `within ${this.#timeoutMs} ms` : 'before the group failed';
    return new CheckpointError(`${what} ${when}`, { cause: failure });
  }
}

/** After so long a folder that another machine has renamed is seen under its new name; NFS keeps what it knows for a minute. */
const VISIBLE_MS = 60_000;

const FAILURE_NAME = 'failure.json';

/** Where a rank leaves its report. */
function reportName(rank: number): string {
  return `report-${rank}.json`;
}

async function isThere(path: string): Promise<boolean> {
  try {
    await access(path);
    return true;
  } catch {
    return false; // not there, or not yet visible on this machine
  }
}
