import { collectiveMismatchError, messageMismatchError, type CalledByRank } from '../../../src/backend/mismatch';
import { GroupRanks } from '../../../src/core/group-ranks';

const ranks = new GroupRanks([0, 2, 5]);
const calling = (...descriptions: (string | undefined)[]): (CalledByRank | undefined)[] =>
  descriptions.map((description) => (description === undefined ? undefined : { description }));

test('a mismatch lists what each rank called, and where, by its number in the group and in the world', () => {
  const calls = [{ description: 'barrier()', sourceLine: 'a.ts:1:2' }, undefined, { description: 'split([0])' }];
  const error = collectiveMismatchError({ group: 'world/0', ranks, sequence: 7, calls });
  expect(error.message.split('\n').slice(0, 4)).toEqual([
    'the ranks of group world/0 disagree about collective 7:',
    '  rank 0: barrier() at a.ts:1:2',
    '  rank 1 (global rank 2): not called yet',
    '  rank 2 (global rank 5): split([0])',
  ]);
});

test.each<[string, (string | undefined)[], number[]]>([
  ['the one that called something else', ['a', 'b', 'a'], [1]],
  ['all that called, where there is no majority', ['a', 'b'], [0, 1]],
  ['not the rank that has not called', ['a', 'b', undefined], [0, 1]],
  ['all that called, where the words do not show the difference', ['a', 'a', undefined], [0, 1]],
])('the ranks to look at are %s', (_what, called, blamed) => {
  const error = collectiveMismatchError({ group: 'world/0', ranks, sequence: 0, calls: calling(...called) });
  expect(error.context.ranks).toEqual(blamed);
  expect(error.context.globalRanks).toEqual(blamed.map((rank) => ranks.globalRanks[rank]));
});

test('of an all-to-all they are the pair that disagrees', () => {
  const pair = { sender: 0, receiver: 2 };
  const error = collectiveMismatchError({
    group: 'world/0',
    ranks,
    sequence: 0,
    calls: calling('a', 'b', 'c'),
    pair,
  });
  expect(error.message).toContain(
    '(what rank 0 sends to rank 2 (global rank 5) is not what rank 2 receives from rank 0):',
  );
  expect(error.context).toMatchObject({ ranks: [0, 2], globalRanks: [0, 5] });
});

test('a message that does not fit its receive names both sides', () => {
  const call = { dtype: 'int8', count: 3, tag: 0 } as const;
  const error = messageMismatchError({ group: 'world/0', ranks }, [
    { rank: 1, call: { ...call, op: 'send', peer: 2 } },
    { rank: 2, call: { ...call, op: 'recv', peer: 1, count: 4 }, sourceLine: 'a.ts:1:2' },
  ]);
  expect(error.message.split('\n').slice(1, 3)).toEqual([
    '  rank 1 (global rank 2): send(int8[3], to rank 2, tag 0)',
    '  rank 2 (global rank 5): recv(int8[4], from rank 1, tag 0) at a.ts:1:2',
  ]);
  expect(error.context).toMatchObject({ ranks: [1, 2], globalRanks: [2, 5] });
});
