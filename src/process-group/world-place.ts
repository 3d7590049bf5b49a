/** Which rank of which world this process is, by the variables that launchers set. */
import { environmentVariable } from '../core/environment';
import { InvalidArgumentError } from '../core/errors';

/** A process's place in its world. */
export interface WorldPlace {
  readonly rank: number;
  readonly worldSize: number;
  /** Position among the ranks of this machine. */
  readonly localRank: number;
}

/** What a caller said instead of the environment; each value that is given wins over its variable. */
export interface GivenPlace {
  readonly rank?: number | undefined;
  readonly worldSize?: number | undefined;
  readonly localRank?: number | undefined;
}

/** The variables of one launcher. */
interface Variables {
  readonly rank: string;
  readonly worldSize: string;
  readonly localRank: string;
}

/** Ours, and torchrun's. They come first: a launcher that was started inside a Slurm job means its own ranks. */
const OWN: Variables = { rank: 'RANK', worldSize: 'WORLD_SIZE', localRank: 'LOCAL_RANK' };

const SLURM: Variables = { rank: 'SLURM_PROCID', worldSize: 'SLURM_NTASKS', localRank: 'SLURM_LOCALID' };

const OPEN_MPI: Variables = {
  rank: 'OMPI_COMM_WORLD_RANK',
  worldSize: 'OMPI_COMM_WORLD_SIZE',
  localRank: 'OMPI_COMM_WORLD_LOCAL_RANK',
};

/**
 * This process's place. With nothing given and no variables set: rank 0 of a world of one.
 *
 * @throws InvalidArgumentError that names the variable or option that is missing or wrong
 */
export function readWorldPlace(given: GivenPlace): WorldPlace {
  const variables = findVariables();
  const worldSize = choose('worldSize', given.worldSize, variables.worldSize, 1);
  const rank = choose('rank', given.rank, variables.rank, 0);
  if (worldSize === undefined && rank === undefined) return { rank: 0, worldSize: 1, localRank: given.localRank ?? 0 };
  if (worldSize === undefined) throw missing('worldSize', variables.worldSize, rank);
  if (rank === undefined) throw missing('rank', variables.rank, worldSize);
  if (rank.value >= worldSize.value) {
    throw new InvalidArgumentError(
      `World.init: ${rank.source} is ${rank.value} and ${worldSize.source} is ${worldSize.value}; expected a rank from 0 to ${worldSize.value - 1}.`,
    );
  }
  // Without a launcher's word all ranks are taken to be on this machine.
  const localRank = choose('localRank', given.localRank, variables.localRank, 0)?.value ?? rank.value;
  return { rank: rank.value, worldSize: worldSize.value, localRank };
}

/** The names that count: of ours one is enough, so that the absence of the other is noticed. */
function findVariables(): Variables {
  const isSet = (name: string): boolean => environmentVariable(name) !== undefined;
  if (isSet(OWN.rank) || isSet(OWN.worldSize)) return OWN;
  // Slurm sets SLURM_NTASKS in an interactive shell too, where no rank runs.
  return [SLURM, OPEN_MPI].find((names) => isSet(names.rank) && isSet(names.worldSize)) ?? OWN;
}

interface Found {
  readonly value: number;
  /** The option or variable that it comes from, for messages. */
  readonly source: string;
}

function choose(option: string, given: number | undefined, variable: string, least: number): Found | undefined {
  if (given !== undefined) return { value: given, source: `options.${option}` };
  const text = environmentVariable(variable);
  if (text === undefined) return undefined;
  const value = /^\d+$/.test(text) ? Number(text) : NaN;
  if (!Number.isSafeInteger(value) || value < least) {
    throw new InvalidArgumentError(
      `World.init: environment variable ${variable} is '${text}', expected a whole number from ${least}. Launchers set it; unset it, and its companions, for a world of one.`,
    );
  }
  return { value, source: variable };
}

function missing(option: string, variable: string, other: Found | undefined): InvalidArgumentError {
  return new InvalidArgumentError(
    `World.init: ${other?.source} is ${other?.value}, but neither environment variable ${variable} nor options.${option} is given. Set both, or neither for a world of one.`,
  );
}
