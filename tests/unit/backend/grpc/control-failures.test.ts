/** What ranks learn of each other’s failures where the data of their calls travels elsewhere. */
import { setTimeout as sleepMs } from 'node:timers/promises';
import type { ControlFailure } from '../../../../src/backend/control-plane';
import type { GrpcControlGroup } from '../../../../src/backend/grpc/control-group';
import { NativeError } from '../../../../src/core/errors';
import type { Work } from '../../../../src/core/work';
import { withControlPlanes } from '../../../helpers/control-planes';
import { failureOf } from '../mock-worlds';
import { allReduce, barrier, failuresOf, floats, recv, rootsOf, send, split, type Two } from './control-calls';

describe('a failure of the data’s path', () => {
  const broken = (): NativeError => new NativeError('rank 1: the device fell off the bus', 'process');

  test('reaches all ranks at once: calls in flight with their own places, later ones as the cause', async () => {
    await withControlPlanes(3, async (ranks) => {
      const [a, b, c] = rootsOf(ranks) as [GrpcControlGroup, GrpcControlGroup, GrpcControlGroup];
      const works = [allReduce(a), recv(c, floats(1), 0)];
      b.fail(broken());
      const errors = await failuresOf(works);
      expect(errors[0]).toMatchObject({ code: 'LOCKSTEP_NATIVE', context: { op: 'allReduce', rank: 0, sequence: 0 } });
      expect(errors[1]).toMatchObject({ code: 'LOCKSTEP_NATIVE', context: { op: 'recv', rank: 2 } });
      for (const group of [a, b, c]) {
        const error = await failureOf(barrier(group));
        expect(error).toMatchObject({ code: 'LOCKSTEP_CLOSED', cause: { code: 'LOCKSTEP_NATIVE' } });
        expect(error.message).toContain('the device fell off the bus');
      }
    });
  });

  test('that broke one process broke only the group for the others', async () => {
    await withControlPlanes(2, async (ranks) => {
      const [a, b] = rootsOf(ranks) as unknown as Two;
      const works = [allReduce(a), recv(b, floats(1), 0)];
      b.fail(broken());
      expect((await failuresOf(works)).map(({ scope }) => scope)).toEqual(['group', 'process']);
      const causes = (await failuresOf([barrier(a), barrier(b)])).map(({ cause }) => cause as NativeError);
      expect(causes.map(({ scope }) => scope)).toEqual(['group', 'process']);
    });
  });

  test('that the program made itself is ClosedError with its reason', async () => {
    await withControlPlanes(2, async (ranks) => {
      const [a, b] = rootsOf(ranks) as unknown as Two;
      const waiting = failureOf(allReduce(a));
      b.abort(new RangeError('enough'));
      expect(await waiting).toMatchObject({ code: 'LOCKSTEP_CLOSED', cause: { name: 'RangeError' } });
      expect((await waiting).message).toBe('group world was aborted by rank 1: enough');
    });
  });
});

describe('onFailed', () => {
  const failureAt = (group: GrpcControlGroup): Promise<ControlFailure> =>
    new Promise((resolve) => group.onFailed(resolve));
  const inFlight = { op: 'allReduce', sequence: 0, dueMs: Infinity };

  test('gives a call whose announcement was complete the error of a call in flight, and that tells the rank', async () => {
    await withControlPlanes(2, async (ranks) => {
      const [a, b] = rootsOf(ranks) as unknown as Two;
      const failed = failureAt(a);
      await Promise.all([allReduce(a), allReduce(b)]);
      ranks[1]?.mesh.destroy(new Error('connection reset'));
      const { cause, errorFor } = await failed;
      for (const error of [cause, errorFor(inFlight)]) {
        expect(error).toMatchObject({ code: 'LOCKSTEP_PEER_LOST', context: { ranks: [1] } });
      }
      expect(errorFor(inFlight)).toMatchObject({ context: { op: 'allReduce', rank: 0, sequence: 0 } });
      expect((await failureOf(barrier(a))).code).toBe('LOCKSTEP_CLOSED');
    });
  });

  test('where no call was in flight at all, the next one tells of the loss', async () => {
    await withControlPlanes(2, async (ranks) => {
      const [a] = rootsOf(ranks) as unknown as Two;
      const failed = failureAt(a);
      ranks[1]?.mesh.destroy(new Error('connection reset'));
      await failed;
      expect((await failureOf(barrier(a))).code).toBe('LOCKSTEP_PEER_LOST');
      expect((await failureOf(barrier(a))).code).toBe('LOCKSTEP_CLOSED');
    });
  });

  test('a call after the one that failed is refused like any later one', async () => {
    await withControlPlanes(2, async (ranks) => {
      const [a, b] = rootsOf(ranks) as unknown as Two;
      const failed = failureAt(a);
      await failuresOf([allReduce(a), barrier(b)]);
      const { errorFor } = await failed;
      expect(errorFor(inFlight)).toMatchObject({ code: 'LOCKSTEP_MISMATCH' });
      expect(errorFor({ ...inFlight, sequence: 1 })).toMatchObject({
        code: 'LOCKSTEP_CLOSED',
        cause: { code: 'LOCKSTEP_MISMATCH' },
      });
    });
  });

  test('tells every listener once, one that comes later too, and nobody of a close', async () => {
    await withControlPlanes(2, async (ranks) => {
      const [a, b] = rootsOf(ranks) as unknown as Two;
      const heard: string[] = [];
      for (const name of ['first', 'second']) a.onFailed(() => heard.push(name));
      b.onFailed(() => heard.push('closed'));
      b.close();
      a.fail(new NativeError('broken'));
      a.fail(new NativeError('broken again'));
      a.onFailed(({ cause }) => heard.push(cause.message));
      await sleepMs(5);
      expect(heard).toEqual(['first', 'second', 'broken']);
    });
  });
});

describe('close', () => {
  test('fails what is in flight here, and on ranks that need this one; twice is once', async () => {
    await withControlPlanes(3, async (ranks) => {
      const [a, b, c] = rootsOf(ranks) as [GrpcControlGroup, GrpcControlGroup, GrpcControlGroup];
      const works = [allReduce(a), send(b, floats(1), 2), allReduce(c)];
      c.close();
      c.close();
      const [ofA, ofB, ofC] = await failuresOf(works);
      for (const error of [ofA, ofB]) {
        expect(error).toMatchObject({ code: 'LOCKSTEP_PEER_LOST', context: { ranks: [2] } });
      }
      expect(ofA?.message).toMatch(/^rank 2 has closed group world, and (allReduce|send)\(/);
      expect(ofC).toMatchObject({ code: 'LOCKSTEP_CLOSED', context: { op: 'allReduce', rank: 2 } });
      expect(c.isClosed).toBe(true);
      expect(await failureOf(barrier(c))).toMatchObject({ code: 'LOCKSTEP_CLOSED' });
    });
  });

  test('of a plane is idempotent, and closes all groups', async () => {
    await withControlPlanes(2, async (ranks) => {
      const [a, b] = rootsOf(ranks) as unknown as Two;
      const splits = [split(a, [0, 1]), split(b, [0, 1])];
      await Promise.all(splits);
      const child = a.child(splits[0] as Work);
      await Promise.all([ranks[0]?.plane.close(), ranks[0]?.plane.close()]);
      expect([a.isClosed, child?.isClosed]).toEqual([true, true]);
    });
  });
});

describe('a lost peer', () => {
  test('is named to all that wait for it, at once', async () => {
    await withControlPlanes(3, async (ranks) => {
      const [a, b] = rootsOf(ranks) as unknown as Two;
      const works = [allReduce(a), recv(b, floats(1), 2)];
      await sleepMs(3);
      ranks[2]?.mesh.destroy(new Error('connection reset'));
      for (const error of await failuresOf(works)) {
        expect(error).toMatchObject({ code: 'LOCKSTEP_PEER_LOST', context: { ranks: [2] } });
        expect(error.message).toContain('connection reset');
      }
    });
  });

  test('says why, where it can', async () => {
    await withControlPlanes(2, async (ranks) => {
      const [a] = rootsOf(ranks) as unknown as Two;
      const waiting = failureOf(allReduce(a));
      ranks[1]?.plane.announceLoss(new NativeError('out of memory', 'process'));
      const error = await waiting;
      expect(error.message).toBe('rank 1 of group world was lost: it threw NativeError: out of memory');
      expect(error.cause).toMatchObject({ code: 'LOCKSTEP_NATIVE', scope: 'group' });
    });
  });
});
