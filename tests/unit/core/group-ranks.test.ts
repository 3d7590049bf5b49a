import { GroupRanks } from '../../../src/core/group-ranks';

const renumbered = new GroupRanks([0, 2, 5]);

test('a rank is named by its number in the group, and by that in the world where it is another', () => {
  expect([0, 1].map((rank) => renumbered.name(rank))).toEqual(['rank 0', 'rank 1 (global rank 2)']);
  expect(renumbered.names([0])).toBe('rank 0');
  expect(renumbered.names([0, 2])).toBe('ranks 0, 2 (global ranks 0, 5)');
  expect(renumbered.namesAtStart([1])).toBe('Rank 1 (global rank 2)');
});

test('a group whose ranks keep their numbers names them once', () => {
  const same = new GroupRanks([0, 1]);
  expect([same.isRenumbered, renumbered.isRenumbered]).toEqual([false, true]);
  expect([same.name(1), same.names([0, 1]), same.namesAtStart([0, 1])]).toEqual(['rank 1', 'ranks 0, 1', 'Ranks 0, 1']);
});

test('who is to blame is told in both numbers', () => {
  expect(renumbered.blame([2, 0])).toEqual({ ranks: [2, 0], globalRanks: [5, 0] });
});
