/** The suite is run on backends that break one rule each, and must notice; a suite that cannot fail proves nothing. */
import type { Backend } from '../../src/backend/backend';
import type { MockBackend } from '../../src/backend/mock/mock-backend';
import { bytesOf, type HostBuffer } from '../../src/core/dtype';
import { Work } from '../../src/core/work';
import { checkWithGaps, suite, unknownGaps } from './backend-suite';
import { mockFactory } from './mock-factory';
import { type Property, Worlds } from './property';

const properties = Object.values(suite).flat();

function property(title: string): Property {
  const found = properties.find((candidate) => candidate.title.startsWith(title));
  if (found === undefined) throw new Error(`there is no property '${title}'`);
  return found;
}

/** A backend like the real one but for some methods, in the groups that it splits too. */
type Twist = (real: MockBackend) => Partial<Backend>;

function twisted(real: MockBackend, twist: Twist): Backend {
  const changes: Partial<Backend> = {
    split: async (ranks, options) => {
      const group = await real.split(ranks, options);
      return group && twisted(group, twist);
    },
    ...twist(real),
  };
  return new Proxy<Backend>(real, {
    get(target, key) {
      if (Object.hasOwn(changes, key)) return changes[key as keyof Backend];
      const value: unknown = Reflect.get(target, key, target);
      return typeof value === 'function' ? (value.bind(target) as unknown) : value;
    },
  });
}

function worldsOf(twist: Twist): Worlds {
  return new Worlds(mockFactory({ checks: 'order' }, { wrap: (backend) => twisted(backend, twist) }));
}

/** A Work that does `after` once the other one is done. */
function then(work: Work, after: () => void): Work {
  const { work: changed, complete, fail } = Work.create(work.info);
  work.then(
    () => {
      after();
      complete();
    },
    (error: unknown) => fail(error as Error),
  );
  return changed;
}

const done = (op: string): Work => {
  const { work, complete } = Work.create({ op });
  complete();
  return work;
};

/** Counts calls across the rounds of one world. */
const calls = new WeakMap<MockBackend, number>();
function nthCall(backend: MockBackend): number {
  const n = (calls.get(backend) ?? 0) + 1;
  calls.set(backend, n);
  return n;
}

const faults: readonly {
  readonly what: string;
  readonly title: string;
  readonly says: RegExp;
  readonly twist: Twist;
}[] = [
  {
    what: 'reduces nothing (the mock of the peer, but for its last caller)',
    title: 'allReduce gives every rank the same bits',
    says: /rank 1 does not hold the bits of rank 0/,
    twist: () => ({ allReduce: () => done('allReduce') }),
  },
  {
    what: 'gives one rank other bits',
    title: 'allReduce gives every rank the same bits',
    says: /rank 1 does not hold the bits of rank 0/,
    twist: (real) => ({
      allReduce: (data, op, options) =>
        then(real.allReduce(data, op, options), () => {
          const host = data as HostBuffer;
          if (real.rank === 1 && host.length > 20) host[20] = typeof host[20] === 'bigint' ? 77n : 77;
        }),
    }),
  },
  {
    what: 'loses a round now and then',
    title: 'many rounds',
    says: /round 49: sum/,
    twist: (real) => ({
      allReduce: (data, op, options) => {
        const isLost = nthCall(real) === 50 && real.rank === 0;
        const before = (data as Uint8Array).slice();
        return then(real.allReduce(data, op, options), () => {
          if (isLost) (data as Uint8Array).set(before);
        });
      },
    }),
  },
  {
    what: 'broadcasts from rank 0 whatever the source is',
    title: 'broadcast gives every rank',
    says: /from 1 of 2, rank 0: element 0 of 1 is 0, expected 1/,
    twist: (real) => ({ broadcast: (data, _src, options) => real.broadcast(data, 0, options) }),
  },
  {
    what: 'writes gathered parts over what was sent',
    title: 'allGather gives every rank',
    says: /rank 0: element 1 of 2 is 0, expected 1/,
    twist: (real) => ({
      allGather: (send, recv, options) =>
        then(real.allGather(send, recv, options), () => void bytesOf(send as HostBuffer).fill(0)),
    }),
  },
  {
    what: 'lets ranks through a barrier at once',
    title: 'nobody leaves a barrier',
    says: /ranks through on 2 ranks/,
    twist: () => ({ barrier: () => done('barrier') }),
  },
  {
    what: 'sends eagerly',
    title: 'send is a rendezvous',
    says: /completed before, after: got \[true,true\]/,
    twist: (real) => ({
      send: (data, dst, tag, options) => {
        void real.send(data, dst, tag, options).catch(() => undefined);
        return done('send');
      },
    }),
  },
  {
    what: 'mixes tags',
    title: 'tags are taken apart',
    says: /got \[70,80,71,81,1\], expected \[1,80,70,81,71\]/,
    twist: (real) => ({
      send: (data, dst, _tag, options) => real.send(data, dst, 0, options),
      recv: (data, src, _tag, options) => real.recv(data, src, 0, options),
    }),
  },
  {
    what: 'sorts the ranks of a group',
    title: 'split: the ranks keep the order given',
    says: /group \[1,0\] on rank 0/,
    twist: (real) => ({
      split: (ranks, options) =>
        real.split(
          [...ranks].sort((a, b) => a - b),
          options,
        ),
    }),
  },
  {
    what: 'gives the world for every group',
    title: 'split: groups that cover the world',
    says: /different identities: got 1, expected 3/,
    twist: (real) => ({ split: () => Promise.resolve(real) }),
  },
  {
    what: 'lets a root outside the group pass',
    title: 'broadcast: every bad argument',
    says: /it was accepted/,
    twist: (real) => ({
      broadcast: (data, src, options) =>
        src === real.worldSize ? done('broadcast') : real.broadcast(data, src, options),
    }),
  },
  {
    what: 'takes any reduce op for a sum',
    title: 'ranks that disagree by another reduce op all',
    says: /the call succeeded, expected LOCKSTEP_MISMATCH/,
    twist: (real) => ({ allReduce: (data, _op, options) => real.allReduce(data, 'Sum', options) }),
  },
  {
    what: 'has no deadline',
    title: 'the deadline of the world holds',
    says: /the call succeeded, expected LOCKSTEP_TIMEOUT/,
    twist: (real) => ({ allReduce: (data, op) => real.allReduce(data, op, { timeoutMs: 400 }) }),
  },
  {
    what: 'goes on after close',
    title: 'every call after close is refused',
    says: /barrier on 1 ranks: the call succeeded/,
    twist: () => ({ barrier: () => done('barrier') }),
  },
];

describe('the suite notices a backend that', () => {
  test.each(faults)('$what', async ({ title, says, twist }) => {
    await expect(property(title).check(worldsOf(twist))).rejects.toThrow(says);
  });

  test('is only wrapped: the wrapping breaks nothing by itself', async () => {
    for (const { title } of faults) await property(title).check(worldsOf(() => ({})));
  });
});

describe('gaps', () => {
  const worlds = worldsOf(() => ({ barrier: () => done('barrier') }));
  const broken = property('nobody leaves a barrier');
  const kept = property('a Work may be awaited several times');
  const gapOf = ({ title }: Property): { test: string; reason: string } => ({ test: title, reason: 'to see' });

  test('a property that is listed and does not hold passes', async () => {
    await checkWithGaps(broken, worlds, [gapOf(broken)]);
  });

  test('a property that is listed but holds fails: the gap is stale', async () => {
    await expect(checkWithGaps(kept, worlds, [gapOf(kept)])).rejects.toThrow(/stale.*awaited several times.*to see/);
  });

  test('a property that is not listed must hold', async () => {
    await expect(checkWithGaps(broken, worlds, [gapOf(kept)])).rejects.toThrow('ranks through');
  });

  test('a gap that names no property is found', () => {
    expect(unknownGaps(properties, [gapOf(kept), { test: 'of another day', reason: '' }])).toEqual(['of another day']);
  });

  test('no two properties have the same title', () => {
    expect(new Set(properties.map(({ title }) => title)).size).toBe(properties.length);
  });
});
