import { withFullStop, withoutFullStop } from '../../../src/core/full-stop';

test('a message in the middle of a sentence loses its full stop, and no other dot', () => {
  expect(['gone.', 'gone', 'wait...', 'a. b.'].map(withoutFullStop)).toEqual(['gone', 'gone', 'wait...', 'a. b']);
});

test('a message before another sentence has one full stop', () => {
  expect(['gone.', 'gone', 'gone!', 'wait...'].map(withFullStop)).toEqual(['gone.', 'gone.', 'gone!', 'wait...']);
});
