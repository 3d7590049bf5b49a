import { type MockBackend } from '../../src/backend/mock/mock-backend';
import type { Fault, MockOptions } from '../../src/backend/mock/mock-options';
import { isLockstepError, type WorldError } from '../../src/core/errors';
import type { ProcessGroup } from '../../src/process-group/process-group';
import { runWorld } from '../../src/testing/index';
import { count } from '../helpers/counts';
import { failureOf, failures, floats, names, outcomes, results } from '../unit/backend/mock-worlds';

const SIZES = [2, 3, 4, 7];

async function threeRounds(backend: MockBackend): Promise<number[]> {
  const sums: number[] = [];
  for (let round = 0; round < 3; round++) {
    const data = floats(backend.rank + round);
    await backend.allReduce(data, 'Sum');
    await backend.barrier();
    sums.push(data[0] as number);
  }
  return sums;
}

function faulty(fault: Fault, options: MockOptions = {}): MockOptions {
  return { clock: 'virtual', timeoutMs: 1000, faults: [fault], ...options };
}

describe.each(SIZES)('on %i ranks', (size) => {
  const victim = size - 1;

  test('a crash rejects the call that it strikes, and the others learn whose it was', async () => {
    const errors = await failures(size, threeRounds, faulty({ kind: 'crash', rank: victim, call: 2 }));
    expect(errors[victim]?.name).toBe('InjectedFaultError');
    expect(errors[victim]?.message).toMatch(
      new RegExp(
        `^injected crash of rank ${victim} in allReduce\\(float32\\[1\\], Sum\\), collective 2 of group world`,
      ),
    );
    for (const error of errors.slice(0, victim)) {
      expect(error).toMatchObject({
        name: 'PeerLostError',
        context: { ranks: [victim] },
        cause: { name: 'InjectedFaultError' },
      });
      expect(error?.message).toMatch(
        new RegExp(`^rank ${victim} of group world was lost: injected crash of rank ${victim}`),
      );
    }
  });

  test('a hang ends in a timeout on every rank, that names the rank that did not arrive', async () => {
    const errors = await failures(size, threeRounds, faulty({ kind: 'hang', rank: victim, call: 1, op: 'barrier' }));
    expect(names(errors)).toEqual(new Array(size).fill('CollectiveTimeoutError'));
    for (const error of errors) {
      expect(error?.message).toMatch(
        new RegExp(
          `barrier\\(\\), collective 3 of group world.*not finished within 1000 ms\\. Rank ${victim} did not arrive`,
        ),
      );
      expect(error?.context).toMatchObject({ op: 'barrier', sequence: 3, ranks: [victim] });
    }
  });

  test('a delay shorter than the deadline changes no result, only the time', async () => {
    const expected = await results(size, threeRounds);
    const [ends] = [
      await results(
        size,
        async (backend) => [await threeRounds(backend), backend.clock.now()] as const,
        faulty({ kind: 'delay', rank: victim, call: 3, delayMs: 900 }),
      ),
    ];
    expect(ends.map(([sums]) => sums)).toEqual(expected);
    expect(ends.map(([, nowMs]) => nowMs)).toEqual(new Array(size).fill(900));
  });

  test('a delay longer than the deadline is a timeout', async () => {
    const errors = await failures(size, threeRounds, faulty({ kind: 'delay', rank: victim, call: 3, delayMs: 1100 }));
    expect(names(errors)).toEqual(new Array(size).fill('CollectiveTimeoutError'));
  });

  test('corruption flips a bit of what one rank contributes: the same wrong result everywhere, in every run', async () => {
    const program = async (backend: MockBackend): Promise<number[]> => {
      const data = new Int32Array(16).fill(1);
      await backend.allReduce(data, 'Sum');
      return [...data];
    };
    const options = faulty({ kind: 'corrupt', rank: victim, call: 0 }, { seed: 3 });
    const [first, ...others] = await results(size, program, options);
    const wrong = first?.filter((value) => value !== size) ?? [];
    expect(wrong).toHaveLength(1);
    expect(Math.log2(Math.abs((wrong[0] as number) - size)) % 1).toBe(0); // one bit, of weight a power of two
    for (const other of [...others, ...(await results(size, program, options))]) expect(other).toEqual(first);
  });
});

test('a corrupted message arrives with one bit flipped, and its sender’s buffer stays as it is', async () => {
  const bytes = await results(
    2,
    async (backend) => {
      const data = new Uint8Array(8);
      await (backend.rank === 0 ? backend.send(data, 1) : backend.recv(data, 0));
      return [...data].filter((byte) => byte !== 0);
    },
    { faults: [{ kind: 'corrupt', rank: 0, call: 0 }] },
  );
  expect(bytes[0]).toEqual([]);
  expect(bytes[1]).toHaveLength(1);
});

test('the same fault strikes at the same call under any schedule', async () => {
  for (let seed = 0; seed < 20; seed++) {
    const options = faulty({ kind: 'crash', rank: 1, call: 1, op: 'allReduce' }, { schedule: 'random', seed });
    const errors = await failures(3, threeRounds, options);
    expect(names(errors)).toEqual(['PeerLostError', 'InjectedFaultError', 'PeerLostError']);
    expect(errors[1]?.message).toMatch(/collective 2 of group world/);
  }
});

test('calls are counted in all groups of the rank together', async () => {
  const errors = await failures(
    2,
    async (backend) => {
      const group = (await backend.split([0, 1])) as MockBackend;
      try {
        await group.barrier();
        await backend.barrier();
      } finally {
        await group.close();
      }
    },
    { faults: [{ kind: 'crash', rank: 0, call: 2 }] },
  );
  expect(errors[0]?.message).toMatch(/injected crash of rank 0 in barrier\(\), collective 1 of group world,/);
});

test('after a crash the rank can call no more, and its groups without it go on', async () => {
  const settled = await outcomes(
    3,
    async (backend) => {
      const others = await backend.split([0, 2]);
      const first = await failureOf(backend.barrier());
      const second = await failureOf(backend.barrier());
      const data = floats(1);
      await others?.allReduce(data, 'Sum');
      await others?.close();
      return [first.name, second.name, data[0]];
    },
    {
      faults: [
        { kind: 'crash', rank: 1, call: 1, op: 'barrier' },
        { kind: 'crash', rank: 1, call: 0, op: 'barrier' },
      ],
    },
  );
  expect(settled.map((outcome) => (outcome.status === 'fulfilled' ? outcome.value : outcome.reason))).toEqual([
    ['PeerLostError', 'ClosedError', 2],
    ['InjectedFaultError', 'ClosedError', 1],
    ['PeerLostError', 'ClosedError', 2],
  ]);
});

test('a hang on the real clock ends at the deadline too', async () => {
  const start = performance.now();
  const errors = await failures(2, (backend) => backend.barrier(), {
    timeoutMs: 60,
    faults: [{ kind: 'hang', rank: 0, call: 0 }],
  });
  expect(names(errors)).toEqual(['CollectiveTimeoutError', 'CollectiveTimeoutError']);
  expect(performance.now() - start).toBeGreaterThan(55);
});

test('a fault that no call comes to fails the test that ordered it', async () => {
  const faults = [{ kind: 'crash', rank: 1, call: 7 }] as const;
  await expect(runWorld(2, (world) => world.barrier(), { faults })).rejects.toThrow(
    'runWorld: a fault never happened: faults[0] (crash on rank 1 at call 7): the rank made 1. Count calls from 0.',
  );
});

const OBJECT = { text: 'abc', list: [1, 2, { deep: true }], map: new Map([[1, 2]]) };

const DAMAGED: Readonly<Record<string, (group: ProcessGroup) => Promise<unknown>>> = {
  broadcastObject: (group) => group.broadcastObject(OBJECT, 0),
  allGatherObjects: (group) => group.allGatherObjects(OBJECT),
  gatherObjects: (group) => group.gatherObjects(OBJECT, 1),
  scatterObjects: (group) => group.scatterObjects(group.rank === 0 ? [OBJECT, OBJECT, OBJECT] : undefined, 0),
  split: async (group) => (await group.split(group.rank % 2, group.rank)).close(),
};

test.each(Object.entries(DAMAGED))(
  'a damaged %s is a typed error, or a wrong value, and never a hang',
  async (op, fn) => {
    const messages: string[] = [];
    for (let seed = 0; seed < count('damaged objects', 30, 300); seed++) {
      for (const call of [0, 1]) {
        const faults: Fault[] = [{ kind: 'corrupt', rank: 0, call }];
        const world = runWorld(3, async ({ group }) => void (await fn(group)), { seed, faults });
        const error = await world.then(
          () => undefined,
          (thrown: WorldError) => thrown,
        );
        for (const each of error?.errors ?? []) {
          if (each === undefined) continue;
          expect(isLockstepError(each)).toBe(true);
          messages.push(each.message);
        }
      }
    }
    const told = new RegExp(`^${op} on rank \\d of group world: what rank 0 sent arrived damaged`);
    expect(messages.some((message) => told.test(message))).toBe(true);
  },
);
