// What a user's strict project sees: package.test.ts compiles this file against the packed tarball, under several
// versions of TypeScript, with the declaration files checked too.
import * as lockstep from 'lockstep';
import * as testing from 'lockstep/testing';

export const entryPoints: readonly object[] = [lockstep, testing];
