import fc from 'fast-check';
import { COLLECTIVE_OPS, isSameCollective, type CollectiveCall } from '../../../src/backend/call';
import { CallHistory } from '../../../src/backend/grpc/call-history';
import {
  fingerprintOf,
  groupKey,
  groupWordsOf,
  messageDType,
  messageFingerprint,
} from '../../../src/backend/grpc/fingerprint';
import { DTYPES } from '../../../src/core/dtype';
import { ReduceOp } from '../../../src/core/reduce-op';
import { holds } from '../../helpers/property';

const optional = <T>(arbitrary: fc.Arbitrary<T>): fc.Arbitrary<T | undefined> =>
  fc.option(arbitrary, { nil: undefined });
const smallList = fc.array(fc.nat(3), { maxLength: 3 });

/** From few values, so that equal calls come up. */
const anyCall: fc.Arbitrary<CollectiveCall> = fc.record({
  op: fc.constantFrom(...COLLECTIVE_OPS),
  reduceOp: optional(fc.constantFrom(...Object.values(ReduceOp))),
  dtype: optional(fc.constantFrom(...DTYPES)),
  counts: optional(fc.oneof(fc.nat(3), smallList, fc.constantFrom(2 ** 32, 2 ** 32 + 1))),
  shape: optional(smallList),
  label: optional(fc.constantFrom('', 'a', 'ab')),
  deterministic: optional(fc.constant(false as const)),
  root: optional(fc.nat(2)),
  ranks: optional(smallList),
});

test('fingerprints agree exactly where the calls match', () => {
  holds(
    'fingerprints',
    fc.property(anyCall, anyCall, (a, b) => {
      for (const other of [
        b,
        { ...a },
        { ...a, root: b.root },
        { ...a, shape: b.shape },
        { ...a, label: b.label },
        { ...a, deterministic: b.deterministic },
      ]) {
        expect(JSON.stringify(fingerprintOf(a)) === JSON.stringify(fingerprintOf(other))).toBe(
          isSameCollective(a, other),
        );
      }
    }),
    { short: 1000, long: 20_000 },
  );
});

test('what belongs to one rank alone is not in the fingerprint', () => {
  const call = { op: 'allToAll', dtype: 'float32' } as const;
  expect(fingerprintOf({ ...call, sendCounts: [1, 2], recvCounts: [1, 0] })).toEqual(fingerprintOf(call));
});

test('groups have different keys, which are exact numbers', () => {
  const keys = new Set<number>();
  for (let outer = 0; outer < 100; outer++) {
    for (let inner = 0; inner < 100; inner++) {
      const { high, low } = groupWordsOf(`world/${outer}/${inner}`);
      const key = groupKey(high, low);
      expect(Number.isSafeInteger(key)).toBe(true);
      keys.add(key);
    }
  }
  expect(keys.size).toBe(10_000);
});

test('a message says its dtype', () => {
  for (const dtype of DTYPES) expect(messageDType(messageFingerprint(dtype))).toBe(dtype);
  expect(messageDType(0)).toBeUndefined();
});

test('the history describes the last calls, and says which are over and which have not come', () => {
  const history = new CallHistory();
  const [barrier, split] = [{ op: 'barrier' } as const, { op: 'split', ranks: [0] } as const];
  for (let i = 0; i < 300; i++) history.add(i === 299 ? split : barrier, fingerprintOf(i === 299 ? split : barrier));
  expect(history.describe(299)).toEqual({ description: 'split([0])' });
  expect(history.describe(298)).toEqual({ description: 'barrier()' });
  expect(history.describe(0)?.description).toMatch(/long ago/);
  expect(history.describe(300)).toBeNull();
  expect(history.isOther(299, fingerprintOf(barrier))).toBe(true);
  expect(history.isOther(299, fingerprintOf(split))).toBe(false);
  expect(history.isOther(0, fingerprintOf(split))).toBe(false);
});
