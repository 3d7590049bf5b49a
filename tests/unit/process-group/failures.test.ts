import { inspect } from 'node:util';
import { ReduceOp } from '../../../src/core/reduce-op';
import { firstFailureIn } from '../../../src/process-group/group-channel';
import { ProcessGroup } from '../../../src/process-group/process-group';
import { noGrad } from '../../../src/tensor/gradient-mode';
import { Tensor } from '../../../src/tensor/tensor';
import { onRanks, rejectionOf, rejectionsOn } from './worlds';

describe('bad input rejects, names group and rank, sends nothing, and the group lives on', () => {
  const cases: readonly (readonly [string, (group: ProcessGroup) => PromiseLike<unknown>, RegExp])[] = [
    [
      'an unknown root',
      (group) => group.broadcast(Tensor.zeros([3, 2]), 2),
      /broadcast on rank 1 of group world: src.*0 to 1, got 2/,
    ],
    ['a root that is no number', (group) => group.reduce(Tensor.zeros([3, 2]), NaN), /reduce.*rank 1.*dst.*NaN/s],
    ['an unknown peer', (group) => group.send(Tensor.zeros([3, 2]), 77), /send.*rank 1.*dst.*0 to 1, got 77/s],
    ['itself as peer', (group) => group.recv(Tensor.zeros([3, 2]), group.rank), /recv.*rank 1.*itself/s],
    [
      'rows that do not divide',
      (group) => group.reduceScatter(Tensor.zeros([5, 2])),
      /reduceScatter on rank 1 of group world: dimension 0 of shape \[5, 2\] has size 5, .* 2 equal parts.*Pad it to 6/s,
    ],
    ['rows that do not divide (allToAll)', (group) => group.allToAll(Tensor.zeros([3])), /allToAll.*size 3.*2 equal/s],
    [
      'no dimension to divide',
      (group) => group.reduceScatter(Tensor.from(1)),
      /reduceScatter on rank 1 of group world: shape \[\] has no dimension 0/,
    ],
    [
      'a bit op on floats',
      (group) => group.allReduce(Tensor.zeros([3, 2]), ReduceOp.BitXor),
      /allReduce.*rank 1.*BitXor takes integers only, got float32/s,
    ],
    [
      'an unknown reduce op',
      (group) => group.allReduce(Tensor.zeros([3, 2]), 'sum' as ReduceOp),
      /expected one of Sum.*got sum/s,
    ],
    [
      'an array instead of a tensor',
      (group) => group.allReduce([1, 2] as unknown as Tensor),
      /allReduce on rank 1 of group world: expected a Tensor, got Array.*Tensor.from/,
    ],
    [
      'nothing',
      (group) => group.allGather(undefined as unknown as Tensor),
      /allGather.*expected a Tensor, got undefined/,
    ],
    [
      'an option that does not exist',
      (group) => group.barrier({ timeout: 5 } as object),
      /barrier.*unknown key 'timeout'/s,
    ],
    ['a timeout of 0', (group) => group.allGather(Tensor.zeros([3, 2]), { timeoutMs: 0 }), /timeoutMs.*above 0, got 0/],
    [
      'a part of a batch that is none',
      (group) => group.batch([undefined as never]),
      /batch on rank 1 of group world: ops\[0\]/,
    ],
    ['a batch that is no list', (group) => group.batch({} as never), /batch/],
  ];

  test.each(cases)('%s', async (_name, call, message) => {
    const errors = await onRanks(2, async (group) => {
      const error = await rejectionOf(call(group));
      const tensor = Tensor.from([group.rank]);
      await group.allReduce(tensor); // the group lives on
      expect(tensor.item()).toBe(1);
      return error;
    });
    expect(errors[1]).toMatchObject({ name: 'InvalidArgumentError', code: 'LOCKSTEP_INVALID_ARGUMENT' });
    expect((errors[1] as Error).message).toMatch(message);
  });

  test('no backend', () => {
    expect(() => new ProcessGroup(undefined as never)).toThrow('new ProcessGroup: expected a backend, got undefined');
  });

  test('a scatter that its source cannot make rejects on every rank', async () => {
    const errors = await onRanks(3, async (group) => {
      const error = await rejectionOf(group.scatter(group.rank === 1 ? Tensor.zeros([4]) : undefined, 1));
      await group.barrier();
      return error.message;
    });
    const reason =
      'scatter on rank 1 of group world: dimension 0 of shape [4] has size 4, which does not divide into 3 equal parts, one per rank. Pad it to 6.';
    expect(errors[1]).toBe(reason);
    for (const rank of [0, 2]) {
      expect(errors[rank]).toBe(
        `scatter on rank ${rank} of group world: the source, rank 1, has nothing to scatter: ${reason}`,
      );
    }
  });

  test('a scatter without a tensor on its source', async () => {
    const [first] = await rejectionsOn(2, (group) => group.scatter(undefined, 0));
    expect(first?.message).toContain('scatter on rank 0 of group world: expected a Tensor, got undefined');
  });

  test('a tensor that requires grad is refused outside noGrad, and taken inside', async () => {
    await onRanks(2, async (group) => {
      const leaf = Tensor.from([1, 2], [2], { requiresGrad: true });
      const calls: ((tensor: Tensor) => PromiseLike<unknown>)[] = [
        (tensor) => group.allReduce(tensor),
        (tensor) => group.broadcast(tensor, 0),
        (tensor) => group.reduce(tensor, 0),
        (tensor) => group.allGather(tensor),
        (tensor) => group.reduceScatter(tensor),
        (tensor) => group.gather(tensor, 0),
        (tensor) => group.scatter(tensor, 0),
        (tensor) => group.allToAll(tensor),
        (tensor) => (group.rank === 0 ? group.send(tensor, 1) : group.recv(tensor, 0)),
      ];
      for (const call of calls) {
        const error = await rejectionOf(call(leaf));
        expect(error).toMatchObject({ name: 'InvalidArgumentError' });
        expect(error.message).toMatch(/requires grad.*noGrad\(\)/);
      }
      for (const call of calls) await noGrad(() => call(leaf));
      const gathered = await noGrad(() => group.allGather(leaf));
      expect(gathered.requiresGrad).toBe(false);
    });
  });
});

describe('ranks that disagree', () => {
  test('sizes: the error names what each called', async () => {
    const errors = await rejectionsOn(2, (group) => group.allReduce(Tensor.zeros([group.rank + 3])));
    for (const error of errors) {
      expect(error).toMatchObject({ name: 'CollectiveMismatchError' });
      expect(error.message).toMatch(
        /group world.*rank 0: allReduce\(float32\[3\], Sum\).*rank 1: allReduce\(float32\[4\], Sum\)/s,
      );
    }
  });

  test('later calls on the group say what ended it', async () => {
    await onRanks(2, async (group) => {
      await rejectionOf(group.rank === 0 ? group.barrier() : group.allReduce(Tensor.zeros([1])));
      const error = await rejectionOf(group.allGather(Tensor.zeros([1])));
      expect(error).toMatchObject({ name: 'ClosedError', cause: { name: 'CollectiveMismatchError' } });
      expect(inspect(group)).toContain('ended by CollectiveMismatchError');
    });
  });
});

describe('abort and close', () => {
  test('abort fails the pending calls of every rank, with the reason as the cause', async () => {
    const errors = await onRanks(3, async (group) => {
      if (group.rank === 2) group.abort(new Error('loss is NaN'));
      return rejectionOf(group.allReduce(Tensor.zeros([1])));
    });
    for (const error of errors) {
      expect(error).toMatchObject({ name: 'ClosedError' });
      expect(firstFailureIn(error)?.message).toBe('loss is NaN');
    }
  });

  test('close is idempotent, and every call after it rejects with ClosedError', async () => {
    const group = ProcessGroup.mock();
    await Promise.all([group.close(), group.close()]);
    await group.close();
    const calls: readonly (() => PromiseLike<unknown>)[] = [
      () => group.allReduce(Tensor.zeros([1])),
      () => group.broadcast(Tensor.zeros([1]), 0),
      () => group.allGather(Tensor.zeros([1])),
      () => group.reduceScatter(Tensor.zeros([1])),
      () => group.scatter(Tensor.zeros([1]), 0),
      () => group.barrier(),
      () => group.monitoredBarrier(),
      () => group.broadcastObject('x'),
      () => group.allGatherObjects('x'),
      () => group.newGroup([0]),
      () => group.split(0),
    ];
    for (const call of calls) {
      const error = await rejectionOf(call());
      expect(error).toMatchObject({ name: 'ClosedError' });
      expect(error.message).toMatch(/world/);
    }
    expect(inspect(group)).toContain('closed');
  });

  test('close of a group closes those made from it; the other way round does not', async () => {
    await onRanks(2, async (group) => {
      const outer = await group.newGroup([0, 1]);
      const inner = await outer.newGroup([0, 1]);
      const other = await group.newGroup([0, 1]);
      await outer.barrier();
      await outer.close();
      expect(await rejectionOf(inner.barrier())).toMatchObject({ name: 'ClosedError' });
      await other.barrier();
      await group.barrier();
    });
  });

  test('asyncDispose closes', async () => {
    const group = ProcessGroup.mock();
    await group[Symbol.asyncDispose]();
    expect(await rejectionOf(group.barrier())).toMatchObject({ name: 'ClosedError' });
  });
});
