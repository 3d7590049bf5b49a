import { runInNewContext } from 'node:vm';
import {
  asError,
  BackendUnavailableError,
  CheckpointError,
  ClosedError,
  CollectiveMismatchError,
  CollectiveTimeoutError,
  DeadlockError,
  InternalError,
  InvalidArgumentError,
  isLockstepError,
  type LockstepError,
  NativeError,
  NotInGroupError,
  PeerLostError,
  UnsupportedError,
  WorldError,
} from '../../../src/core/errors';
import type * as ErrorsModule from '../../../src/core/errors';
import { secondCopy } from '../../helpers/second-copy';
import { invariant } from '../../../src/core/invariant';

const table: readonly [LockstepError, string, string, string][] = [
  [new InvalidArgumentError('m'), 'InvalidArgumentError', 'LOCKSTEP_INVALID_ARGUMENT', 'call'],
  [new NotInGroupError('m'), 'NotInGroupError', 'LOCKSTEP_NOT_IN_GROUP', 'call'],
  [new UnsupportedError('m'), 'UnsupportedError', 'LOCKSTEP_UNSUPPORTED', 'call'],
  [new BackendUnavailableError('m'), 'BackendUnavailableError', 'LOCKSTEP_UNAVAILABLE', 'call'],
  [new ClosedError('m'), 'ClosedError', 'LOCKSTEP_CLOSED', 'call'],
  [new CheckpointError('m'), 'CheckpointError', 'LOCKSTEP_CHECKPOINT', 'call'],
  [new CollectiveMismatchError('m'), 'CollectiveMismatchError', 'LOCKSTEP_MISMATCH', 'group'],
  [new CollectiveTimeoutError('m'), 'CollectiveTimeoutError', 'LOCKSTEP_TIMEOUT', 'group'],
  [new DeadlockError('m'), 'DeadlockError', 'LOCKSTEP_DEADLOCK', 'group'],
  [new PeerLostError('m'), 'PeerLostError', 'LOCKSTEP_PEER_LOST', 'group'],
  [new WorldError('m', []), 'WorldError', 'LOCKSTEP_WORLD', 'group'],
  [new NativeError('m', 'group'), 'NativeError', 'LOCKSTEP_NATIVE', 'group'],
  [new NativeError('m', 'process'), 'NativeError', 'LOCKSTEP_NATIVE', 'process'],
  [new InternalError('m'), 'InternalError', 'LOCKSTEP_INTERNAL', 'process'],
];

describe('every error class', () => {
  test.each(table)('%s has its literal name, its code and what is still usable', (error, name, code, scope) => {
    expect(error).toBeInstanceOf(Error);
    expect({ name: error.name, code: error.code, scope: error.scope }).toEqual({ name, code, scope });
    expect(error.message).toBe('m');
    expect(isLockstepError(error)).toBe(true);
    expect(isLockstepError(error, error.code)).toBe(true);
    expect(error.stack).toContain('errors.test.ts');
  });

  test('codes do not repeat, but for the two scopes of NativeError', () => {
    const codes = new Set(table.map(([error]) => error.code));
    expect(codes.size).toBe(table.length - 1);
  });
});

test('the context says where it happened, and its cause is the cause of the error', () => {
  const cause = new Error('first');
  const context = { rank: 2, group: 'world/1', op: 'allReduce', sequence: 7, ranks: [0, 1], cause };
  const error = new PeerLostError('gone', context);
  expect(error.context).toEqual(context);
  expect(error.cause).toBe(cause);
});

test('without a group, ranks are those of the world', () => {
  expect(new PeerLostError('gone', { ranks: [2] }).context.globalRanks).toEqual([2]);
  expect(new PeerLostError('gone', { group: 'world/0', ranks: [2] }).context.globalRanks).toBeUndefined();
});

test('an error without a cause has no property that says so', () => {
  expect('cause' in new ClosedError('closed')).toBe(false);
  expect(new ClosedError('closed').context).toEqual({});
});

describe('isLockstepError', () => {
  test('knows an error of another copy of the package, though its class is another', () => {
    const copy = secondCopy(() => jest.requireActual<typeof ErrorsModule>('../../../src/core/errors'));
    const foreign: unknown = new copy.DeadlockError('stuck');
    expect(foreign).not.toBeInstanceOf(DeadlockError);
    expect(isLockstepError(foreign)).toBe(true);
    expect(isLockstepError(foreign, 'LOCKSTEP_DEADLOCK')).toBe(true);
    expect(isLockstepError(foreign, 'LOCKSTEP_CLOSED')).toBe(false);
  });

  test.each([
    ['an Error', new Error('m')],
    ['an object with a code alone', { code: 'LOCKSTEP_CLOSED' }],
    ['undefined', undefined],
    ['null', null],
    ['a string', 'LOCKSTEP_CLOSED'],
    ['a function', () => undefined],
  ])('refuses %s', (_what, value) => {
    expect(isLockstepError(value)).toBe(false);
    expect(isLockstepError(value, 'LOCKSTEP_CLOSED')).toBe(false);
  });
});

describe('asError', () => {
  test('returns errors as they are, those of another realm too', () => {
    const own = new TypeError('own');
    const foreign: unknown = runInNewContext("new RangeError('foreign')");
    expect(asError(own)).toBe(own);
    expect(asError(foreign)).toBe(foreign);
  });

  test('returns the reason of an aborted AbortSignal, a DOMException, as it is', () => {
    const controller = new AbortController();
    controller.abort();
    const reason: unknown = controller.signal.reason;
    expect(asError(reason)).toBe(reason);
  });

  test.each([
    ['a string', 'broken', 'broken'],
    ['undefined', undefined, 'undefined'],
    ['a symbol', Symbol('why'), 'Symbol(why)'],
    ['an object that cannot become a string', Object.create(null), 'null prototype'],
  ])('wraps %s and keeps it as the cause', (_what, thrown: unknown, text) => {
    const error = asError(thrown);
    expect(error.message).toContain('not an Error');
    expect(error.message).toContain(text);
    expect(error.cause).toBe(thrown);
  });
});

test('a broken invariant is an InternalError that asks for a report', () => {
  expect(() => invariant(true, 'one is one')).not.toThrow();
  expect(() => invariant(false, 'one is two')).toThrow(InternalError);
  expect(() => invariant(false, 'one is two')).toThrow(/one is two\. Please report/);
});

test('a NativeError made without a scope, as plain JavaScript may, is of the group', () => {
  expect(new NativeError('m').scope).toBe('group');
});
