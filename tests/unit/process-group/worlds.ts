/** Mock worlds for the tests of process groups and comm: every rank runs the same function, and nothing stays open. */
import type { MockOptions } from '../../../src/backend/mock/mock-options';
import { MockBackend } from '../../../src/backend/registry';
import type { ProcessGroup } from '../../../src/process-group/process-group';
import { World } from '../../../src/process-group/world';

export const WORLD_SIZES = [1, 2, 3, 4, 7];

/** Run `body` once for each rank, as that rank, which closes its groups at the end; the results by rank. */
export async function onRanks<T>(
  size: number,
  body: (group: ProcessGroup, world: World) => Promise<T>,
  options?: MockOptions,
): Promise<T[]> {
  const backends = MockBackend.createWorld(size, options);
  const ends = await Promise.allSettled(
    backends.map((backend) =>
      backend.run(async () => {
        const world = World.fromBackend(backend);
        const result = await body(world.group, world);
        await world.close();
        return result;
      }),
    ),
  );
  await Promise.all(backends.map((backend) => backend.close()));
  return ends.map((end) => {
    if (end.status === 'rejected') throw end.reason;
    return end.value;
  });
}

/** What `promise` rejects with; fails if it does not. */
export async function rejectionOf(promise: PromiseLike<unknown>): Promise<Error> {
  try {
    await promise;
  } catch (error) {
    return error as Error;
  }
  throw new Error('expected a rejection, but the promise was fulfilled');
}

/** The rejection of each rank's call. */
export function rejectionsOn(
  size: number,
  call: (group: ProcessGroup, world: World) => PromiseLike<unknown>,
  options?: MockOptions,
): Promise<Error[]> {
  return onRanks(size, (group, world) => rejectionOf(call(group, world)), options);
}
