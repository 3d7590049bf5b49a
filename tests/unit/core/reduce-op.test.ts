import { DTYPES, isFloatDType } from '../../../src/core/dtype';
import { InvalidArgumentError } from '../../../src/core/errors';
import { checkReduceOp, isBitOp, isReduceOp, ReduceOp } from '../../../src/core/reduce-op';

const names = ['Sum', 'Product', 'Min', 'Max', 'Average', 'BitAnd', 'BitOr', 'BitXor'];

test('the reduce ops are string literals, each its own name', () => {
  expect(ReduceOp).toEqual(Object.fromEntries(names.map((name) => [name, name])));
  expect(names.every(isReduceOp)).toBe(true);
  expect(names.filter((name) => isBitOp(name as ReduceOp))).toEqual(['BitAnd', 'BitOr', 'BitXor']);
});

test.each([['sum'], ['toString'], ['constructor'], [''], [undefined], [null], [0], [{}]])(
  '%p is not a reduce op, and the message lists those that are',
  (value: unknown) => {
    expect(isReduceOp(value)).toBe(false);
    expect(() => checkReduceOp(value, 'float32')).toThrow(InvalidArgumentError);
    expect(() => checkReduceOp(value, 'float32')).toThrow(`expected one of ${names.join(', ')}`);
  },
);

test.each(DTYPES)('%s takes bit operations exactly if it is an integer', (dtype) => {
  for (const name of names as ReduceOp[]) {
    if (!isBitOp(name) || !isFloatDType(dtype)) {
      expect(checkReduceOp(name, dtype)).toBe(name);
    } else {
      expect(() => checkReduceOp(name, dtype)).toThrow(InvalidArgumentError);
      expect(() => checkReduceOp(name, dtype)).toThrow(`${name} takes integers only, got ${dtype}`);
    }
  }
});
