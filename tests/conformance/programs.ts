/** All programs by name, so that a process of its own can load them and be told which to run. */
import { failurePrograms } from './programs/failures';
import { groupPrograms } from './programs/groups';
import { inFlightPrograms } from './programs/in-flight';
import { mistakePrograms } from './programs/mistakes';
import { movementPrograms } from './programs/movement';
import { pointToPointPrograms } from './programs/point-to-point';
import { reductionPrograms } from './programs/reductions';

export const programs = {
  ...reductionPrograms,
  ...movementPrograms,
  ...pointToPointPrograms,
  ...groupPrograms,
  ...inFlightPrograms,
  ...mistakePrograms,
  ...failurePrograms,
};

type Programs = typeof programs;

export type ProgramName = keyof Programs;
/** What a program takes; undefined for one that takes nothing. */
export type ArgsOf<Name extends ProgramName> = Parameters<Programs[Name]>[1];
export type ResultOf<Name extends ProgramName> = Awaited<ReturnType<Programs[Name]>>;
