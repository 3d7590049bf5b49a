/** Errors in a group whose ranks have other numbers in the world: the same words on the mock and on processes. */
import { setTimeout as sleepMs } from 'node:timers/promises';
import type { Backend } from '../../../src/backend/backend';
import type { GrpcBackend } from '../../../src/backend/grpc/grpc-backend';
import { MockBackend } from '../../../src/backend/mock/mock-backend';
import { asError, isLockstepError, type LockstepError } from '../../../src/core/errors';
import { withGrpcWorld } from '../../helpers/grpc-worlds';
import { failureOf } from './mock-worlds';

const WORLD_SIZE = 4;
/** In the world; in the group they are 0 and 1. */
const MEMBERS = [1, 3];

type Program = (group: Backend) => Promise<unknown>;

interface Told {
  readonly name: string;
  readonly message: string;
  readonly blamed: readonly (readonly number[] | undefined)[];
}

const scenarios: Readonly<Record<string, { readonly program: Program; readonly says: readonly RegExp[] }>> = {
  'a mismatch': {
    program: (group) => Promise.resolve(group.rank === 0 ? group.barrier() : group.allReduce(floats(), 'Sum')),
    says: [
      /^the ranks of group world\/0 disagree about collective 0:\n {2}rank 0 \(global rank 1\): barrier\(\)\n {2}rank 1 \(global rank 3\): allReduce\(float32\[1\], Sum\)\n/,
    ],
  },
  'an all-to-all that does not fit': {
    program: (group) =>
      Promise.resolve(group.allToAll(floats(2), floats(2), group.rank === 0 ? { sendCounts: [1, 0] } : {})),
    says: [
      /\(what rank 0 \(global rank 1\) sends to rank 1 \(global rank 3\) is not what rank 1 receives from rank 0\):/,
    ],
  },
  'a message that does not fit': {
    program: (group) => Promise.resolve(group.rank === 0 ? group.send(floats(), 1) : group.recv(floats(2), 0)),
    says: [/\n {2}rank 0 \(global rank 1\): send\(.*\n {2}rank 1 \(global rank 3\): recv\(/],
  },
  'a deadline': {
    program: (group) => (group.rank === 0 ? Promise.resolve(group.barrier({ timeoutMs: 60 })) : sleepMs(300)),
    says: [
      /^barrier\(\), collective 0 of group world\/0, on rank 0 \(global rank 1\): not finished within 60 ms\. Rank 1 \(global rank 3\) did not arrive\. If/,
    ],
  },
  'a rank that closes the group': {
    program: async (group) => {
      if (group.rank === 0) return group.barrier();
      await sleepMs(10);
      return group.close();
    },
    says: [
      /^rank 1 \(global rank 3\) has closed group world\/0, and barrier\(\).* on rank 0 \(global rank 1\) needs it/,
    ],
  },
  'a rank that throws': {
    program: async (group) => {
      if (group.rank === 0) return group.barrier();
      await sleepMs(10);
      throw new RangeError('no data');
    },
    says: [/^rank 1 \(global rank 3\) of group world\/0 was lost: it threw RangeError: no data$/],
  },
  'an abort': {
    program: async (group) => {
      if (group.rank === 0) return group.barrier();
      await sleepMs(10);
      group.abort(new Error('no data'));
      return undefined;
    },
    says: [/^group world\/0 was aborted by rank 1 \(global rank 3\): no data$/],
  },
  'a call after the failure': {
    program: async (group) => {
      await failureOf(group.rank === 0 ? group.barrier() : group.allReduce(floats(), 'Sum'));
      return group.rank === 0 ? group.barrier() : undefined;
    },
    says: [
      /^barrier on rank 0 \(global rank 1\): group world\/0 has failed.*first failure: the ranks of group world\/0/,
    ],
  },
  'a call of a rank that has closed the group': {
    program: async (group) => {
      await group.close();
      return group.rank === 0 ? group.barrier() : undefined;
    },
    says: [/^barrier on rank 0 \(global rank 1\): this rank has closed group world\/0/],
  },
  'a wrong argument': {
    program: (group) => (group.rank === 0 ? Promise.resolve(group.broadcast(floats(), 7)) : Promise.resolve()),
    says: [/^broadcast on rank 0 \(global rank 1\) of group world\/0: src: expected a rank/],
  },
};

function floats(length = 1): Float32Array {
  return new Float32Array(length);
}

function told(error: LockstepError): Told {
  const { ranks, globalRanks } = error.context;
  return { name: error.name, message: error.message, blamed: [ranks, globalRanks] };
}

/** What the program of one rank rejected with. */
async function outcome(backend: Backend, program: Program): Promise<Told | undefined> {
  const group = await backend.split(MEMBERS);
  if (group === undefined) return undefined;
  try {
    await program(group);
    return undefined;
  } catch (error) {
    if (isLockstepError(error)) return told(error);
    throw error;
  }
}

async function onMock(program: Program): Promise<(Told | undefined)[]> {
  const world = MockBackend.createWorld(WORLD_SIZE, { checks: 'order', sourceLines: false });
  const ends = await Promise.allSettled(world.map((each) => each.run((backend) => outcome(backend, program))));
  await Promise.all(world.map((backend) => backend.close()));
  return ends.map((end) => (end.status === 'fulfilled' ? end.value : undefined));
}

async function onProcesses(program: Program): Promise<(Told | undefined)[]> {
  let outcomes: (Told | undefined)[] = [];
  await withGrpcWorld(WORLD_SIZE, async (ranks) => {
    const run = async (backend: GrpcBackend): Promise<Told | undefined> => {
      try {
        return await outcome(backend, program);
      } catch (thrown) {
        backend.announceLoss(asError(thrown));
        return undefined;
      }
    };
    outcomes = await Promise.all(ranks.map(({ backend }) => run(backend)));
  });
  return outcomes;
}

test.each(Object.entries(scenarios))('%s', async (_what, { program, says }) => {
  const [mock, processes] = await Promise.all([onMock(program), onProcesses(program)]);
  expect(processes).toEqual(mock);
  const error = mock[MEMBERS[0] as number] as Told;
  for (const pattern of says) expect(error.message).toMatch(pattern);
  const [ranks, globalRanks] = error.blamed;
  expect(globalRanks).toEqual(ranks?.map((rank) => MEMBERS[rank]));
});

test('a deadlock names its ranks by both numbers, and counts those outside the group by that in the world', async () => {
  const world = MockBackend.createWorld(3, { sourceLines: false });
  const ends = await Promise.allSettled(
    world.map((each) =>
      each.run(async (backend) => {
        const group = await backend.split([1, 2]);
        if (backend.rank === 1) await group?.barrier();
        if (backend.rank === 2) await backend.recv(floats(), 1);
        await group?.close();
      }),
    ),
  );
  await Promise.all(world.map((backend) => backend.close()));
  const error = (ends[1] as PromiseRejectedResult).reason as LockstepError;
  expect(error.message.split('\n').slice(0, 3)).toEqual([
    'deadlock: global ranks 1, 2 wait for each other:',
    '  rank 0 (global rank 1) waits in barrier(), collective 0 of group world/0, for rank 1 (global rank 2)',
    '  rank 2 waits in recv(float32[1], from rank 1, tag 0), group world, for rank 1',
  ]);
  expect(error.context).toMatchObject({ group: 'world/0', rank: 0, ranks: [0, 1], globalRanks: [1, 2] });
});
