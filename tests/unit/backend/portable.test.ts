import type { MockBackend } from '../../../src/backend/mock/mock-backend';
import { failures, floats, names, results, type Program } from './mock-worlds';

const portable = { portable: true, timeoutMs: 10_000 } as const;
const DEADLOCK = 'DeadlockError';

/** Programs that run on the mock as it is, and on NCCL would hang or mix up data. */
const NOT_PORTABLE: Readonly<Record<string, readonly [number, Program, string, RegExp]>> = {
  'an exchange outside a batch': [
    2,
    async (b) => {
      const other = 1 - b.rank;
      await Promise.all([b.send(floats(b.rank), other), b.recv(floats(0), other)]);
    },
    DEADLOCK,
    /deadlock in portable mode: ranks 0, 1 would hang on NCCL, which runs each rank's calls one by one.*rank 0 waits in recv\(.*behind send\(.*of rank 0\n.*into one batch\(\)/s,
  ],
  'a ring outside a batch': [
    3,
    async (b) => {
      await Promise.all([b.send(floats(b.rank), (b.rank + 1) % 3), b.recv(floats(0), (b.rank + 2) % 3)]);
    },
    DEADLOCK,
    /ranks 0, 1, 2 would hang on NCCL/,
  ],
  'tags out of order': [
    2,
    async (b) => {
      const call = (tag: number) => (b.rank === 0 ? b.send(floats(tag), 1, tag) : b.recv(floats(0), 0, tag));
      const tags = b.rank === 0 ? [1, 2] : [2, 1];
      await Promise.all(tags.map(call));
    },
    'CollectiveMismatchError',
    /^not portable: messages of group world are received out of the order in which they are sent\. NCCL ignores tags.*rank 0: send\(float32\[1\], to rank 1, tag 1\) at .*rank 1: recv\(float32\[1\], from rank 0, tag 2\)/s,
  ],
  'tags out of order in a batch': [
    2,
    (b) =>
      b.batch(
        (b.rank === 0 ? [1, 2] : [2, 1]).map((tag) => ({
          op: b.rank === 0 ? 'send' : 'recv',
          data: floats(tag),
          peer: 1 - b.rank,
          tag,
        })),
      ),
    'CollectiveMismatchError',
    /not portable/,
  ],
  'groups used in different orders': [
    2,
    inTwoGroups(async (groups, b) => {
      const order = b.rank === 0 ? groups : [...groups].reverse();
      await Promise.all(order.map((group) => group.allReduce(floats(1), 'Sum')));
    }),
    DEADLOCK,
    /would hang on NCCL.*calls of different groups in the same order on all ranks/s,
  ],
  'a message that overtakes a collective': [
    2,
    async (b) => {
      const launch = [
        () => b.allReduce(floats(1), 'Sum'),
        () => (b.rank === 0 ? b.send(floats(1), 1) : b.recv(floats(0), 0)),
      ];
      if (b.rank === 1) launch.reverse();
      await Promise.all(launch.map((call) => call()));
    },
    DEADLOCK,
    /would hang on NCCL/,
  ],
};

/** Programs like those, put right: they run in either mode, with the same results. */
const PORTABLE: Readonly<Record<string, readonly [number, Program]>> = {
  'an exchange in a batch': [
    2,
    async (b) => {
      const received = floats(0);
      await b.batch([
        { op: 'send', data: floats(b.rank), peer: 1 - b.rank },
        { op: 'recv', data: received, peer: 1 - b.rank },
      ]);
      return received[0];
    },
  ],
  'an exchange in turns': [
    2,
    async (b) => {
      const received = floats(0);
      const steps = [() => b.send(floats(b.rank), 1 - b.rank), () => b.recv(received, 1 - b.rank)];
      if (b.rank === 1) steps.reverse();
      await Promise.all(steps.map((step) => step()));
      return received[0];
    },
  ],
  'messages with tags in the order of sending': [
    2,
    async (b) => {
      const data = [5, 3, 5].map((tag) => [tag, floats(10 * tag)] as const);
      await Promise.all(data.map(([tag, buffer]) => (b.rank === 0 ? b.send(buffer, 1, tag) : b.recv(buffer, 0, tag))));
      return data.map(([, buffer]) => buffer[0]);
    },
  ],
  'many collectives in flight': [
    4,
    async (b) => {
      const buffers = Array.from({ length: 50 }, (_unused, i) => floats(b.rank + i));
      await Promise.all(buffers.map((buffer) => b.allReduce(buffer, 'Sum')));
      return buffers.map((buffer) => buffer[0]);
    },
  ],
  'groups used in the same order, awaited in any': [
    3,
    inTwoGroups(async (groups, b) => {
      const data = groups.map(() => floats(b.rank));
      const works = groups.map((group, i) => group.allReduce(data[i] as Float32Array, 'Sum'));
      for (const work of works.reverse()) await work;
      return data.map((buffer) => buffer[0]);
    }),
  ],
  'overlapping groups, where a rank outside goes on': [
    3,
    async (b) => {
      const left = await b.split([0, 1]);
      const right = await b.split([1, 2]);
      const data = [floats(b.rank), floats(b.rank)] as const;
      await Promise.all([left?.allReduce(data[0], 'Sum'), right?.allReduce(data[1], 'Sum')]);
      await left?.close();
      await right?.close();
      return data.map((buffer) => buffer[0]);
    },
  ],
  'a batch met by single calls': [
    3,
    async (b) => {
      if (b.rank > 0) return b.send(floats(b.rank), 0);
      const parts = [2, 1].map((peer) => ({ op: 'recv' as const, data: floats(0), peer }));
      await b.batch(parts);
      return parts.map(({ data }) => data[0]);
    },
  ],
  'an empty batch': [1, (b) => b.batch([])],
};

function inTwoGroups(program: (groups: MockBackend[], backend: MockBackend) => Promise<unknown>): Program {
  return async (backend) => {
    const everyone = Array.from({ length: backend.worldSize }, (_unused, rank) => rank);
    const groups = [await backend.split(everyone), await backend.split(everyone)] as MockBackend[];
    try {
      return await program(groups, backend);
    } finally {
      for (const group of groups) await group.close();
    }
  };
}

test.each(Object.entries(NOT_PORTABLE))(
  '%s: runs on the mock, and portable mode says why it is not portable',
  async (_what, [size, program, name, message]) => {
    expect(await failures(size, program)).toEqual(new Array(size).fill(undefined));
    const errors = await failures(size, program, portable);
    expect(names(errors)).toEqual(new Array(size).fill(name));
    expect(errors[0]?.message).toMatch(message);
  },
);

test.each(Object.entries(PORTABLE))('%s: portable, with the same result', async (_what, [size, program]) => {
  const expected = await results(size, program);
  expect(await results(size, program, portable)).toEqual(expected);
  for (let seed = 0; seed < 10; seed++) {
    expect(await results(size, program, { ...portable, schedule: 'random', seed })).toEqual(expected);
  }
});

test('a long line of calls does not overflow the stack when it moves on', async () => {
  const [first] = await results(
    2,
    async (b) => {
      if (b.rank === 1) await new Promise(setImmediate);
      const works = Array.from({ length: 3000 }, () => b.barrier());
      for (const work of works) await work;
      return works.length;
    },
    { ...portable, checks: 'order', sourceLines: false },
  );
  expect(first).toBe(3000);
});
