import { fromWire, toWire, type WireError } from '../../../src/core/error-wire';
import {
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

/** What a process boundary leaves of an error. */
function crossing(error: unknown): Error {
  return fromWire(JSON.parse(JSON.stringify(toWire(error))) as WireError);
}

const context = { rank: 1, group: 'world/2', op: 'reduceScatter', sequence: 0, ranks: [0, 3], globalRanks: [1, 7] };

describe('an error that crosses a process boundary', () => {
  test.each<LockstepError>([
    new InvalidArgumentError('m', context),
    new NotInGroupError('m', context),
    new UnsupportedError('m', context),
    new BackendUnavailableError('m', context),
    new ClosedError('m', context),
    new CheckpointError('m', context),
    new CollectiveMismatchError('m', context),
    new CollectiveTimeoutError('m', context),
    new DeadlockError('m', context),
    new PeerLostError('m', context),
    new WorldError('m', [], context),
    new NativeError('m', 'group', context),
    new NativeError('m', 'process', context),
    new InternalError('m', context),
  ])('%s keeps class, message, code, scope, context and stack', (error) => {
    const back = crossing(error);
    expect(back.constructor).toBe(error.constructor);
    expect(isLockstepError(back, error.code)).toBe(true);
    const { name, message, code, scope, stack } = back as LockstepError;
    expect({ name, message, code, scope, stack }).toEqual({
      name: error.name,
      message: error.message,
      code: error.code,
      scope: error.scope,
      stack: error.stack,
    });
    expect((back as LockstepError).context).toEqual({ ...context, cause: undefined });
  });

  test('keeps a chain of causes, of our classes and others', () => {
    const root = new TypeError('rank 2 has no data');
    const lost = new PeerLostError('rank 2 was lost', { ranks: [2], cause: root });
    const back = crossing(new ClosedError('the group is closed', { rank: 0, cause: lost }));
    const middle = back.cause as PeerLostError;
    expect(middle).toBeInstanceOf(PeerLostError);
    expect(middle.context.ranks).toEqual([2]);
    expect(middle.cause).toBeInstanceOf(Error);
    expect(middle.cause).toMatchObject({ name: 'TypeError', message: 'rank 2 has no data', stack: root.stack });
  });

  test('keeps the errors of a world by rank, and which ranks had none', () => {
    const errors = [undefined, new TypeError('of rank 1'), new PeerLostError('of rank 2')];
    const back = crossing(new WorldError('rank 1 failed', errors, { cause: errors[1] })) as WorldError;
    expect(back.errors).toHaveLength(3);
    expect(back.errors[0]).toBeUndefined();
    expect(back.errors[1]).toMatchObject({ name: 'TypeError', message: 'of rank 1' });
    expect(back.errors[2]).toBeInstanceOf(PeerLostError);
  });

  test('keeps the errors of a world that another copy of the package threw', () => {
    const copy = secondCopy(() => jest.requireActual<typeof ErrorsModule>('../../../src/core/errors'));
    const Foreign = copy.WorldError;
    const back = crossing(new Foreign('rank 0 failed', [new Error('of rank 0')])) as WorldError;
    expect(back).toBeInstanceOf(WorldError);
    expect(back.errors[0]?.message).toBe('of rank 0');
  });

  test('an error of the user is a plain Error with its name', () => {
    const back = crossing(new RangeError('out of cheese'));
    expect(back).toBeInstanceOf(Error);
    expect(isLockstepError(back)).toBe(false);
    expect(back.name).toBe('RangeError');
  });

  test('a thrown value that is no Error arrives as one that says so', () => {
    expect(crossing('out of cheese').message).toContain('out of cheese');
    expect(crossing(undefined).message).toContain('undefined');
  });

  test('a chain of causes that bites its tail is cut', () => {
    const error = new Error('tail');
    error.cause = new Error('head', { cause: error });
    expect(crossing(error).message).toBe('tail');
  });

  test('a code of a newer version arrives as an InternalError that names the code', () => {
    const wire = { ...toWire(new ClosedError('m')), code: 'LOCKSTEP_NEWER' } as unknown as WireError;
    expect(fromWire(wire)).toBeInstanceOf(InternalError);
    expect(fromWire(wire).message).toContain('LOCKSTEP_NEWER');
  });
});
