import type { Backend } from '../../../src/backend/backend';
import { everybody, leave } from '../program';
import { toWireBuffer, type WireBuffer } from '../wire-buffer';

/** What a member sees of a group. */
export interface Membership {
  readonly rank: number;
  readonly size: number;
  readonly identity: string | null;
  /** World ranks of the members, in the order of the group, as its allGather tells. */
  readonly members: readonly number[];
}

async function membershipOf(group: Backend, worldRank: number): Promise<Membership> {
  const members = new Int32Array(group.worldSize);
  const work = group.allGather(Int32Array.of(worldRank), members);
  await work;
  return { rank: group.rank, size: group.worldSize, identity: work.info.group ?? null, members: [...members] };
}

export const groupPrograms = {
  async describe(
    backend: Backend,
  ): Promise<{ rank: number; size: number; name: string; capabilities: Backend['capabilities'] }> {
    const { rank, worldSize, name, capabilities } = backend;
    return { rank, size: worldSize, name, capabilities };
  },

  /** Make the groups one after another; null for those that this rank is not in. */
  async split(
    backend: Backend,
    args: { readonly groups: readonly (readonly number[])[] },
  ): Promise<(Membership | null)[]> {
    const groups: (Backend | undefined)[] = [];
    for (const ranks of args.groups) groups.push(await backend.split(ranks));
    const memberships: (Membership | null)[] = [];
    for (const group of groups) memberships.push(group === undefined ? null : await membershipOf(group, backend.rank));
    await leave(backend, groups);
    return memberships;
  },

  /** All splits launched before any is awaited. */
  async splitTogether(
    backend: Backend,
    args: { readonly groups: readonly (readonly number[])[] },
  ): Promise<(Membership | null)[]> {
    const groups = await Promise.all(args.groups.map((ranks) => backend.split(ranks)));
    const memberships = await Promise.all(
      groups.map(async (group) => (group === undefined ? null : membershipOf(group, backend.rank))),
    );
    await leave(backend, groups);
    return memberships;
  },

  /** A group of a group of the world: `inner` are ranks of the group that `outer` makes. */
  async nested(
    backend: Backend,
    args: { readonly outer: readonly number[]; readonly inner: readonly number[] },
  ): Promise<(Membership | null)[]> {
    const outer = await backend.split(args.outer);
    const inner = await outer?.split(args.inner);
    const groups = [outer, inner];
    const memberships: (Membership | null)[] = [];
    for (const group of groups) memberships.push(group === undefined ? null : await membershipOf(group, backend.rank));
    await leave(backend, groups.reverse());
    return memberships;
  },

  /** One collective in each group and in the world, launched together, awaited in the order asked for. */
  async collectivesInFlight(
    backend: Backend,
    args: { readonly groups: readonly (readonly number[])[]; readonly rounds: number; readonly awaitReversed: boolean },
  ): Promise<(WireBuffer | null)[][]> {
    const groups: (Backend | undefined)[] = [backend];
    for (const ranks of args.groups) groups.push(await backend.split(ranks));
    const results: (WireBuffer | null)[][] = [];
    for (let round = 0; round < args.rounds; round++) {
      const buffers = groups.map((_unused, index) => Int32Array.of(10 ** index * (backend.rank + 1) + round));
      const works = groups.map((group, index) => group?.allReduce(buffers[index] as Int32Array, 'Sum'));
      for (const work of args.awaitReversed ? works.toReversed() : works) await work;
      results.push(buffers.map((buffer, index) => (groups[index] === undefined ? null : toWireBuffer(buffer))));
    }
    await leave(backend, groups.slice(1));
    return results;
  },

  /** The world lives on after a group of it was closed; sums of ones in a later group and in the world. */
  async closeGroup(backend: Backend): Promise<number[]> {
    const first = await everybody(backend);
    await first.barrier();
    await leave(backend, [first]);
    const second = await everybody(backend);
    const inSecond = Int32Array.of(1);
    await second.allReduce(inSecond, 'Sum');
    const inWorld = Int32Array.of(1);
    await backend.allReduce(inWorld, 'Sum');
    await leave(backend, [second]);
    return [inSecond[0] as number, inWorld[0] as number];
  },
};
