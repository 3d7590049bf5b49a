import { environmentVariable } from '../../../src/core/environment';

test('a variable is read when asked for; unset and empty are both undefined', () => {
  const name = 'LOCKSTEP_TEST_VARIABLE';
  expect(environmentVariable(name)).toBeUndefined();
  process.env[name] = '';
  expect(environmentVariable(name)).toBeUndefined();
  process.env[name] = 'value';
  expect(environmentVariable(name)).toBe('value');
  delete process.env[name];
  expect(environmentVariable(name)).toBeUndefined();
});
