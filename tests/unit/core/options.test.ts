import { z } from 'zod';
import { InvalidArgumentError } from '../../../src/core/errors';
import { parseOptions } from '../../../src/core/options';

const schema = z.strictObject({
  bucketCapMb: z.number().positive().default(25),
  name: z.string().optional(),
  inner: z.strictObject({ seed: z.number().int().optional() }).optional(),
});

function messageFor(value: unknown): string {
  try {
    parseOptions(schema, value, 'new Thing');
  } catch (error) {
    expect(error).toBeInstanceOf(InvalidArgumentError);
    return (error as Error).message;
  }
  throw new Error('it was accepted');
}

test('defaults are filled in, whether no options or some are given', () => {
  expect(parseOptions(schema, undefined, 'new Thing')).toEqual({ bucketCapMb: 25 });
  expect(parseOptions(schema, { name: 'a', inner: { seed: 1 } }, 'new Thing')).toEqual({
    bucketCapMb: 25,
    name: 'a',
    inner: { seed: 1 },
  });
});

test('an option that is given as undefined is not given', () => {
  expect(parseOptions(schema, { bucketCapMb: undefined, name: undefined }, 'new Thing')).toMatchObject({
    bucketCapMb: 25,
  });
});

test('an unknown key is named, with the call and the options that exist', () => {
  const message = messageFor({ bucketCapMB: 25 });
  expect(message).toMatch(/^new Thing: options: unknown key 'bucketCapMB'\./);
  expect(message).toContain('Known options: bucketCapMb, name, inner.');
});

test('several unknown keys are all named', () => {
  expect(messageFor({ a: 1, b: 2 })).toContain("unknown keys 'a', 'b'");
});

test('a wrong value is named by its path, with what was expected', () => {
  expect(messageFor({ bucketCapMb: 'big' })).toContain("options.bucketCapMb: expected number, got 'big'");
  expect(messageFor({ inner: { seed: 1.5 } })).toMatch(/options\.inner\.seed: /);
  expect(messageFor({ inner: { sead: 1 } })).toContain("options.inner: unknown key 'sead'");
});

test('all problems are listed, not only the first', () => {
  const message = messageFor({ bucketCapMb: -1, name: 3, other: true });
  expect(message).toContain('options.bucketCapMb: ');
  expect(message).toContain('options.name: ');
  expect(message).toContain("unknown key 'other'");
});

test.each([
  ['a string', 'fast'],
  ['a number', 3],
  ['an array', [1]],
])('%s instead of options is refused', (_what, value) => {
  expect(messageFor(value)).toMatch(/^new Thing: options: .*expected object/);
});

test('a call that takes no options says so', () => {
  expect(() => parseOptions(z.strictObject({}), { a: 1 }, 'close')).toThrow('It takes no options.');
});
