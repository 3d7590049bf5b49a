import type { Backend } from '../../../src/backend/backend';
import type { WireError } from '../../../src/core/error-wire';
import { computeFor, endingOf, everybody, leave, type Ending } from '../program';
import { BAD_CALLER } from './bad-call';
import { badCalls } from './bad-calls';
import { mismatchedCalls, ODD_RANK } from './mismatched-calls';

/** The sum of all ranks' ones: the size of the group, if it still works. */
async function sumOfOnes(group: Backend): Promise<number> {
  const data = Int32Array.of(1);
  await group.allReduce(data, 'Sum');
  return data[0] as number;
}

export interface Refusal {
  readonly name: string;
  /** Null on the ranks that did not make the call. */
  readonly error: WireError | 'accepted' | null;
  readonly sumAfterwards: number;
}

export const mistakePrograms = {
  /** Rank 1 makes each bad call, and all ranks a good one after each. */
  async refusals(backend: Backend, args: { readonly names: readonly string[] }): Promise<Refusal[]> {
    const refusals: Refusal[] = [];
    for (const name of args.names) {
      let error: Refusal['error'] = null;
      if (backend.rank === BAD_CALLER) {
        const ending = await endingOf(badCalls[name]?.call(backend) as PromiseLike<unknown>);
        error = ending.ok ? 'accepted' : ending.error;
      }
      refusals.push({ name, error, sumAfterwards: await sumOfOnes(backend) });
    }
    return refusals;
  },

  /**
   * In a group of its own for each: how the calls ended, how a later one did, and whether the world still works. The
   * odd rank calls last, so that all calls are in flight when the ranks find out.
   */
  async mismatches(
    backend: Backend,
    args: { readonly names: readonly string[] },
  ): Promise<{ name: string; endings: Ending[]; later: Ending; world: number }[]> {
    const results: { name: string; endings: Ending[]; later: Ending; world: number }[] = [];
    const isOdd = backend.rank === ODD_RANK;
    for (const name of args.names) {
      const group = await everybody(backend);
      await backend.barrier(); // where making a group takes some time, ranks have it at different times
      if (isOdd) await computeFor(15);
      const calls = mismatchedCalls[name]?.[isOdd ? 'odd' : 'usual'](group) ?? [];
      const endings = await Promise.all(calls.map(endingOf));
      const later = await endingOf(group.barrier());
      results.push({ name, endings, later, world: await sumOfOnes(backend) });
      await leave(backend, [group]);
    }
    return results;
  },

  /** Two of three ranks disagree while the third has not called anything yet. */
  async mismatchBeforeTheLast(backend: Backend): Promise<{ first: Ending; world: number }> {
    const group = await everybody(backend);
    if (backend.rank === 2) await computeFor(60);
    const call =
      backend.rank === 1 ? group.broadcast(new Float32Array(2), 0) : group.allReduce(new Float32Array(2), 'Sum');
    const first = await endingOf(call);
    const world = await sumOfOnes(backend);
    await leave(backend, [group]);
    return { first, world };
  },

  /** A mismatch whose Works nobody awaits until long after; what the next call says. */
  async unawaitedMismatch(backend: Backend): Promise<{ later: Ending; first: Ending }> {
    const group = await everybody(backend);
    const data = new Float32Array(2);
    const work = backend.rank === 1 ? group.allReduce(data, 'Max') : group.allReduce(data, 'Sum');
    await computeFor(30);
    const later = await endingOf(group.barrier());
    const first = await endingOf(work);
    await leave(backend, [group]);
    return { later, first };
  },
};
