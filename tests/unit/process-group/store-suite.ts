/** What a world's store does, whatever backend is behind it. */
import { setTimeout as sleepMs } from 'node:timers/promises';
import type { World } from '../../../src/process-group/world';
import { rejectionOf } from './worlds';

/** Run a function once for each rank of a new world, and close the worlds when all have ended; results by rank. */
export type RunRanks = <T>(
  size: number,
  body: (world: World) => Promise<T>,
  options?: { readonly timeoutMs?: number },
) => Promise<T[]>;

const MIB = 1024 * 1024;

export const textOf = (value: Uint8Array | undefined): string | undefined =>
  value === undefined ? undefined : Buffer.from(value).toString();

export function describeStore(name: string, runRanks: RunRanks): void {
  describe(`the store of ${name}`, () => {
    test('what one rank sets all ranks get: text as UTF-8, bytes as they are, nothing, a MiB', async () => {
      const values = await runRanks(3, async ({ rank, store }) => {
        if (rank === 1) {
          await store.set('text', 'schön');
          await store.set('empty', '');
          await store.set('', Uint8Array.of(0, 255, 10));
          await store.set('large', new Uint8Array(MIB).fill(7));
        }
        const values = [await store.get('text'), await store.get('empty'), await store.get('')];
        return [...values.map((value) => [...value]), (await store.get('large')).every((byte) => byte === 7)];
      });
      const expected = [[...Buffer.from('schön')], [], [0, 255, 10], true];
      expect(values).toEqual([expected, expected, expected]);
    });

    test('values are copies, and plain Uint8Arrays on every rank', async () => {
      await runRanks(2, async ({ rank, store }) => {
        if (rank === 1) {
          const bytes = Uint8Array.of(1, 2, 3);
          const isSet = store.set('k', bytes);
          bytes.fill(9);
          await isSet;
        }
        const value = await store.get('k');
        expect(Object.getPrototypeOf(value)).toBe(Uint8Array.prototype);
        expect([...value]).toEqual([1, 2, 3]);
        value.fill(9);
        const { value: seen } = await store.compareAndSet('k', 'other', '');
        seen?.fill(9);
        expect([...(await store.get('k'))]).toEqual([1, 2, 3]);
      });
    });

    test('get and wait settle when another rank has set the keys', async () => {
      const got = await runRanks(2, async ({ rank, store }) => {
        if (rank === 0) {
          const all = store.wait(['x', 'y']).then(() => store.numKeys());
          return [textOf(await store.get('x')), await all];
        }
        await sleepMs(20);
        await store.set('x', 'here');
        await store.set('y', '');
        await store.wait([]);
        return [];
      });
      expect(got).toEqual([['here', 2], []]);
    });

    test('calls of a rank take effect in the order in which they are made, awaited or not', async () => {
      await runRanks(2, async ({ rank, store }) => {
        const mine = store.prefix(`${rank}`);
        const calls = [1, 2, 3, 4].map((value) => mine.set('k', `${value}`));
        const sum = mine.add('k', 10);
        expect(textOf(await mine.get('k'))).toBe('14');
        await Promise.all([...calls, sum]);
      });
    });

    test('no addition is lost, and each has its own sum', async () => {
      const sums = await runRanks(4, ({ store }) => Promise.all(Array.from({ length: 8 }, () => store.add('n', 1))));
      expect(sums.flat().sort((a, b) => a - b)).toEqual(Array.from({ length: 32 }, (_unused, i) => i + 1));
    });

    test('add counts from 0 or from decimal text, down too', async () => {
      await runRanks(1, async ({ store }) => {
        expect([await store.add('n', 5), await store.add('n', -7)]).toEqual([5, -2]);
        expect(textOf(await store.get('n'))).toBe('-2');
        await store.set('m', '40');
        expect(await store.add('m', 2)).toBe(42);
      });
    });

    test('an addition that is none fails for its caller alone, and changes nothing', async () => {
      await runRanks(2, async ({ rank, store }) => {
        const mine = store.prefix(`${rank}`);
        await mine.set('k', 'text');
        const error = await rejectionOf(mine.add('k', 1));
        expect(error).toMatchObject({ code: 'LOCKSTEP_INVALID_ARGUMENT', scope: 'call', context: { rank } });
        expect(error.message).toMatch(
          new RegExp(`^store.add on rank ${rank}: "${rank}/k" holds "text", which is not a whole number`),
        );
        expect((await rejectionOf(mine.add('n', 0.5))).message).toMatch(
          /whole number as the amount for ".*n", got 0.5/,
        );
        await mine.add('n', Number.MAX_SAFE_INTEGER);
        expect((await rejectionOf(mine.add('n', 1))).message).toMatch(/range of exact whole numbers/);
        expect([textOf(await mine.get('k')), await mine.add('n', 0)]).toEqual(['text', Number.MAX_SAFE_INTEGER]);
      });
    });

    test('of many compareAndSet with one expectation one wins, and all learn the value', async () => {
      const results = await runRanks(4, async ({ rank, store }) => {
        const { isSet, value } = await store.compareAndSet('leader', undefined, `${rank}`);
        return { isSet, leader: textOf(value) };
      });
      expect(results.filter(({ isSet }) => isSet)).toHaveLength(1);
      expect(new Set(results.map(({ leader }) => leader)).size).toBe(1);
    });

    test('compareAndSet tells no value from an empty one', async () => {
      await runRanks(1, async ({ store }) => {
        const attempt = async (expected: string | undefined, desired: string): Promise<unknown[]> => {
          const { isSet, value } = await store.compareAndSet('k', expected, desired);
          return [isSet, textOf(value)];
        };
        expect(await attempt('', 'new')).toEqual([false, undefined]);
        expect(await store.numKeys()).toBe(0);
        expect(await attempt(undefined, '')).toEqual([true, '']);
        expect(await attempt(undefined, 'new')).toEqual([false, '']);
        expect(await attempt('', 'new')).toEqual([true, 'new']);
        expect(await attempt('old', 'newer')).toEqual([false, 'new']);
      });
    });

    test('prefixes nest, count their own keys, and delete tells whether there was something', async () => {
      await runRanks(1, async ({ store }) => {
        await store.prefix('a').prefix('b').set('k', '1');
        await store.prefix('a').set('k', '2');
        await store.set('a', '3');
        expect(textOf(await store.get('a/b/k'))).toBe('1');
        expect(textOf(await store.prefix('a/b').get('k'))).toBe('1');
        const counts = [store, store.prefix('a'), store.prefix('a/b'), store.prefix('c')];
        expect(await Promise.all(counts.map((each) => each.numKeys()))).toEqual([3, 2, 1, 0]);
        expect([await store.delete('a/k'), await store.prefix('a').delete('k')]).toEqual([true, false]);
        expect(await store.numKeys()).toBe(2);
        expect(() => store.prefix('')).toThrow(/expected a name, got ""/);
      });
    });

    test('every wait has a deadline, of the call or the world; the message names the keys and the rank', async () => {
      const run = async ({ rank, store }: World): Promise<void> => {
        if (rank === 1) return sleepMs(250);
        await store.set('there', '');
        const error = await rejectionOf(store.wait(['there', 'missing', 'nor "this"']));
        expect(error).toMatchObject({ code: 'LOCKSTEP_TIMEOUT', context: { rank: 0, op: 'store.wait' } });
        expect(error.message).toMatch(
          /^store.wait on rank 0: no value for "missing", "nor \\"this\\"" within 100 ms\./,
        );
        const own = await rejectionOf(store.prefix('a').get('k', { timeoutMs: 30 }));
        expect(own.message).toMatch(/^store.get on rank 0: no value for "a\/k" within 30 ms/);
        await store.set('a/k', 'later'); // what timed out left nothing behind
        expect(textOf(await store.get('a/k'))).toBe('later');
      };
      await runRanks(2, run, { timeoutMs: 100 });
    });

    test('mistakes and what is too large are refused, name the rank, and leave the store as it was', async () => {
      await runRanks(2, async (world) => {
        const { rank, store } = world;
        const tooLong = 'ä'.repeat(512) + 'x';
        const detached = new Uint8Array(8);
        structuredClone(detached, { transfer: [detached.buffer] });
        const calls: readonly (readonly [() => PromiseLike<unknown>, RegExp])[] = [
          [() => store.set(tooLong, ''), /store.set .*a key of 1025 bytes; at most 1024/],
          [() => store.prefix('x'.repeat(1021)).get('key'), /store.get .*a key of 1025 bytes/],
          [async () => store.prefix('x'.repeat(6 * MIB)), /store.prefix .*a key of 6291457 bytes; at most 1024/],
          [async () => store.prefix('\ud800').numKeys(), /store.prefix .*half a surrogate pair/],
          [() => store.wait(['k', tooLong]), /store.wait .*1025 bytes/],
          [() => store.wait(Array.from({ length: 1001 }, (_unused, i) => `${i}`)), /1001 keys; at most 1000/],
          [() => store.set('k', new Uint8Array(MIB + 1)), /the value for "k" has 1048577 bytes; at most 1048576/],
          [() => store.set('k', new Uint8Array(6 * MIB)), /at most 1048576/],
          [() => store.compareAndSet('k', new Uint8Array(5 * MIB), 'v'), /store.compareAndSet .*at most 1048576/],
          [() => store.compareAndSet('k', 'v', new Uint8Array(5 * MIB)), /at most 1048576/],
          [() => store.set('k', detached), /detached/],
          [() => store.set('k', 5 as never), /expected a string or a Uint8Array for "k", got 5/],
          [() => store.set('k', new Uint16Array(1) as never), /got object/],
          [() => store.get(undefined as never), /expected a key, got undefined/],
          [() => store.get('\ud800'), /half a surrogate pair/],
          [() => store.wait('k' as never), /expected a list of keys, got "k"/],
          [() => store.delete(1 as never), /expected a key, got 1/],
          [() => store.get('k', { timeoutMs: 0 }), /timeoutMs/],
          [() => store.get('k', { timeoutMs: Infinity }), /timeoutMs/],
          [() => store.get('k', { timeout: 5 } as never), /unknown key 'timeout'/],
        ];
        for (const [call, message] of calls) {
          const error = await rejectionOf(call());
          expect(error).toMatchObject({ code: 'LOCKSTEP_INVALID_ARGUMENT' });
          expect(error.message).toMatch(message);
          expect(error.message).toMatch(new RegExp(`on rank ${rank}`));
        }
        await world.barrier();
        expect(await store.numKeys()).toBe(0);
      });
    });

    test('the largest calls that are allowed go through', async () => {
      await runRanks(1, async ({ store }) => {
        const value = new Uint8Array(MIB).fill(1);
        const key = 'k'.repeat(1024);
        await store.set(key, value);
        expect(await store.compareAndSet(key, value, new Uint8Array(MIB))).toMatchObject({ isSet: true });
        const keys = Array.from({ length: 1000 }, (_unused, i) => `${i}`.padStart(1024, '-'));
        await Promise.all(keys.map((each) => store.set(each, '')));
        await store.wait(keys);
        expect(await store.numKeys()).toBe(1001);
      });
    });

    test('1024 calls of a rank may wait at a time; one more is refused, and what would end them is not', async () => {
      await runRanks(2, async ({ rank, store }) => {
        if (rank === 1) return void (await store.get('k'));
        const waiting = Array.from({ length: 1024 }, () => store.get('k'));
        const error = await rejectionOf(store.wait(['k']));
        expect(error).toMatchObject({ code: 'LOCKSTEP_INVALID_ARGUMENT', context: { rank: 0, op: 'store.wait' } });
        expect(error.message).toMatch(/^store.wait on rank 0: 1024 calls of this rank wait in the store already/);
        await Promise.all([store.set('other', ''), store.get('other')]); // waits for nothing
        await store.set('k', 'v');
        expect((await Promise.all(waiting)).map(textOf)).toEqual(new Array(1024).fill('v'));
      });
    });

    test('calls that nobody awaited before close() are carried out', async () => {
      await runRanks(2, async (world) => {
        const { store } = world;
        if (world.rank === 0) return store.wait(['k', 'n']);
        const ends = [store.set('k', 'v'), store.delete('other'), store.add('n', 1)];
        await world.close();
        expect(await Promise.all(ends)).toEqual([undefined, false, 1]);
      });
    });

    test('after close() calls are refused, and what waits ends', async () => {
      await runRanks(2, async (world) => {
        const { store } = world;
        if (world.rank === 0) return sleepMs(50);
        const waiting = [rejectionOf(store.get('k')), rejectionOf(store.wait(['k', 'l']))];
        await store.set('other', '');
        await world.close();
        const later = [rejectionOf(store.set('k', '')), rejectionOf(store.get('other')), rejectionOf(store.numKeys())];
        for (const error of await Promise.all([...waiting, ...later])) {
          expect(error).toMatchObject({ code: 'LOCKSTEP_CLOSED', context: { rank: 1 } });
          expect(error.message).toMatch(/^store\.\w+ on rank 1: this rank has closed its world/);
        }
      });
    });

    test('when rank 0 closes its world the store is gone, and the others are told so at once', async () => {
      await runRanks(3, async (world) => {
        const { rank, store } = world;
        if (rank === 0) {
          await store.wait(['1', '2']);
          return world.close();
        }
        const waiting = rejectionOf(store.get('never'));
        await store.set(`${rank}`, '');
        const first = await waiting;
        for (const error of [first, await rejectionOf(store.set('k', '')), await rejectionOf(store.get('1'))]) {
          expect(error).toMatchObject({ code: 'LOCKSTEP_PEER_LOST', context: { ranks: [0] } });
          expect(error.message).toMatch(/rank 0.*clos/);
        }
      });
    });

    test('waits end with the group of all ranks, whose failure they name; the rest of the store goes on', async () => {
      const reason = new RangeError('the learning rate is NaN');
      await runRanks(3, async (world) => {
        const { rank, store } = world;
        if (rank === 1) {
          await store.wait(['0', '2']);
          world.abort(reason);
        } else {
          const waiting = rejectionOf(store.get('never'));
          await store.set(`${rank}`, 'here');
          const error = await waiting;
          const context = { rank, op: 'store.get', group: 'world' };
          expect(error).toMatchObject({ code: 'LOCKSTEP_CLOSED', context, cause: { message: reason.message } });
          expect(error.message).toMatch(/group world was aborted by rank 1: the learning rate is NaN/);
        }
        const later = await rejectionOf(store.get('never'));
        expect(later).toMatchObject({ code: 'LOCKSTEP_CLOSED', cause: { message: reason.message } });
        expect(later.message).toMatch(/no value for "never", and the group of all ranks has failed/);
        expect(textOf(await store.get('0'))).toBe('here');
        await store.add('ended', 1);
        while ((await store.add('ended', 0)) < 3) await sleepMs(1); // rank 0 serves until all have looked
      });
    });

    test("a collective's timeout that ends a wait stays what it is, and is not taken for the wait's own", async () => {
      await runRanks(2, async (world) => {
        if (world.rank === 1) return sleepMs(250);
        const failures = [world.store.get('never'), world.barrier({ timeoutMs: 50 })].map(rejectionOf);
        const [error] = (await Promise.all(failures)) as [Error, Error];
        const context = { rank: 0, op: 'store.get', group: 'world', ranks: [1] };
        expect(error).toMatchObject({ code: 'LOCKSTEP_TIMEOUT', context });
        expect(error.message).toMatch(/^barrier\(\).*Rank 1 did not arrive/);
      });
    });

    test('what another group fails with leaves the store alone', async () => {
      await runRanks(3, async (world) => {
        const group = await world.newGroup([0, 1]);
        const value = world.store.get('k');
        if (world.rank === 0) group.abort(new Error('no'));
        if (world.rank === 2) {
          await sleepMs(20);
          await world.store.set('k', 'v');
        }
        expect(textOf(await value)).toBe('v');
        await group.close();
        await world.barrier();
      });
    });
  });
}
