import { toWire } from '../../../src/core/error-wire';
import { ClosedError, PeerLostError } from '../../../src/core/errors';
import { GroupRanks } from '../../../src/core/group-ranks';
import { failedEarlier, failureOf, lostRankError } from '../../../src/backend/grpc/group-failure';
import { endedEarly, exitCodeOf, firstFailure, type RankExit } from '../../../src/launcher/rank-report';

const exit = (rank: number, rest: Partial<RankExit> = {}): RankExit => ({
  rank,
  processId: 100 + rank,
  code: 1,
  signal: null,
  afterMs: rank,
  wasStopped: false,
  error: undefined,
  lastLines: [],
  ...rest,
});
const killed = { code: null, signal: 'SIGKILL' } as const;
const lost = new PeerLostError('rank 9 is gone');
const threw = (error: Error): Partial<RankExit> => ({ error: toWire(error) });

test.each<[string, RankExit[], number | undefined]>([
  ['nobody, if all went well', [exit(0, { code: 0 }), exit(1, { code: 0 })], undefined],
  ['nobody, if all were stopped', [exit(0, { wasStopped: true }), exit(1, { ...killed, wasStopped: true })], undefined],
  ['the first in time, of equals', [exit(2), exit(0), exit(1)], 2],
  ['who failed, not who was stopped', [exit(0, { wasStopped: true }), exit(1)], 1],
  ['who was killed, before who lost it', [exit(0, threw(lost)), exit(1, killed)], 1],
  ['who was killed, before who left a code', [exit(0), exit(1, killed)], 1],
  ['who threw, before who left a code', [exit(0), exit(1, threw(new Error('no')))], 1],
  [
    'who left a code, before who printed that it lost it',
    [exit(0, { lastLines: ['PeerLostError: gone'] }), exit(1)],
    1,
  ],
  [
    'who left a code, before who threw what it lost',
    [exit(0, threw(new ClosedError('', { cause: lost }))), exit(1)],
    1,
  ],
  [
    'who aborted the world, before whose calls that ended',
    [exit(0, threw(new ClosedError('', { cause: new Error('no data') }))), exit(1, threw(new Error('no data')))],
    1,
  ],
  ['who lost a rank of another machine, if there is nobody else', [exit(0, threw(lost)), exit(1, threw(lost))], 0],
])('the first failure is %s', (_what, exits, rank) => {
  expect(firstFailure(exits)?.rank).toBe(rank);
});

const WORLD = { id: 'world', ranks: new GroupRanks([0, 1, 2]) };
const place = { rank: 0, group: 'world', members: WORLD.ranks, op: 'allReduce' };
const ended = new PeerLostError('rank 1 is lost: its process ended.', { ranks: [1] });
const loss = { how: ended.message, cause: ended };
const lostInWorld = lostRankError(WORLD, 1, loss);
const lostInGroup = lostRankError({ id: 'world/0', ranks: new GroupRanks([1, 2]) }, 0, loss);

test.each([
  ['a link', ended.message],
  ['a group', lostInWorld.message],
  ['a group that had failed', failedEarlier(failureOf(new Error('no data')), place).message],
  ['a member', 'rank 1 has closed group world, and allReduce #3 on rank 0 needs it. Close a group when all are done.'],
  ['an abort', 'group world was aborted by rank 1: no data'],
  ['the store', "the store at 127.0.0.1:4, which rank 0 or 'lockstep store' serves, is gone: no answer."],
  ['the rendezvous', 'rendezvous: rank 1 ended before all 3 ranks had joined (missing: rank 2). See what it says.'],
])('who printed the bare message of %s is not the first failure', (_who, message) => {
  expect(firstFailure([exit(0, { lastLines: ['', message] }), exit(1)])?.rank).toBe(1);
});

test('who printed something that merely sounds like it is', () => {
  expect(firstFailure([exit(0, { lastLines: ['the file of rank 1 is lost'] }), exit(1)])?.rank).toBe(0);
});

const done = exit(1, { code: 0 });
test.each<[string, RankExit[], number | undefined]>([
  ['whom a thrown error names', [done, exit(0, threw(lostInWorld))], 1],
  ['whom a printed error names', [done, exit(0, { lastLines: [lostInWorld.message] })], 1],
  ['whom a printed error of a smaller group names', [done, exit(0, { lastLines: [lostInGroup.message] })], 1],
  ['with its number in the job, not in a group', [exit(0, { code: 0 }), done, exit(2, threw(lostInGroup))], 1],
  ['nobody, if another rank failed by itself', [done, exit(0, threw(lostInWorld)), exit(2)], undefined],
  ['nobody, if it was not lost', [done, exit(0, threw(lost))], undefined],
  ['nobody, if it was stopped', [exit(1, { code: 0, wasStopped: true }), exit(0, threw(lostInWorld))], undefined],
  ['nobody, if all went well', [done, exit(0, { code: 0 })], undefined],
])('the rank that ended early is the one %s', (_what, exits, rank) => {
  expect(endedEarly(exits)?.rank).toBe(rank);
});

test("an exit code is the process's, or 128 and the signal's number, as a shell has it", () => {
  expect(exitCodeOf({ code: 7, signal: null })).toBe(7);
  expect(exitCodeOf({ code: null, signal: 'SIGKILL' })).toBe(137);
  expect(exitCodeOf({ code: null, signal: null })).toBe(1);
});
