import { z } from 'zod';
import { mockOptionsSchema, type MockOptions } from '../backend/mock/mock-options';
import { MockBackend } from '../backend/mock/mock-backend';
import { InvalidArgumentError, asError } from '../core/errors';
import { parseOptions } from '../core/options';
import { World } from '../process-group/world';
import { Watchdog } from './watchdog';
import { worldError, type RankFailure, type Stall } from './world-report';

export interface RunWorldOptions extends MockOptions {
  /** Give up after so many milliseconds without progress of any rank, while the event loop was free; default 4000. */
  readonly stallMs?: number | undefined;
}

const DEFAULT_STALL_MS = 4000;

const schema = mockOptionsSchema.extend({ stallMs: z.number().positive().default(DEFAULT_STALL_MS) });

/**
 * Run one function per rank of a mock world, all in this process, and wait for all of them.
 *
 *     const sums = await runWorld(4, async (world) => {
 *       const tensor = Tensor.from([world.rank]);
 *       await allReduceSum(tensor, world.group);
 *       return tensor.item();
 *     }); // [6, 6, 6, 6]
 *
 * The second argument is the rank's MockBackend, for its `ledger`, `sleep(ms)` and the like.
 * The worlds are closed in the end, whatever happens, and no timer is left.
 *
 * @returns what each rank returned, by rank
 * @throws WorldError whose message opens with that of the rank that failed first (its `cause`; `errors` has all, by
 *   rank); also if no rank makes progress for `stallMs`: then it says where each rank stands
 * @throws InvalidArgumentError for a bad size or option, or a fault that was ordered and never happened
 */
export async function runWorld<R>(
  size: number,
  fn: (world: World, backend: MockBackend) => R | Promise<R>,
  options?: RunWorldOptions,
): Promise<R[]> {
  const { stallMs, ...mockOptions } = parseOptions(schema, options, 'runWorld');
  const backends = MockBackend.createWorld(size, mockOptions);
  const worlds = backends.map((backend) => World.fromBackend(backend));
  try {
    const runs = backends.map((backend, rank) => backend.run(() => fn(worlds[rank] as World, backend)));
    const results = await allRanks(backends, runs, stallMs);
    refuseUnstruckFaults(backends);
    return results;
  } finally {
    await Promise.all(worlds.map((world) => world.close()));
  }
}

/** A fault that never happened means that the test has not tested what it was written for. */
function refuseUnstruckFaults(backends: readonly MockBackend[]): void {
  const unstruck = backends[0]?.unstruckFaults ?? [];
  if (unstruck.length === 0) return;
  throw new InvalidArgumentError(`runWorld: a fault never happened: ${unstruck.join('; ')}. Count calls from 0.`);
}

/** All results, or the WorldError, once every rank has ended or nothing moves any more. */
async function allRanks<R>(
  backends: readonly MockBackend[],
  runs: readonly Promise<R>[],
  stallMs: number,
): Promise<R[]> {
  const results = new Array<R>(runs.length);
  const failures: RankFailure[] = [];
  const ends = runs.map((run, rank) =>
    run.then(
      (result) => void (results[rank] = result),
      (thrown: unknown) => void failures.push({ rank, error: asError(thrown) }),
    ),
  );
  const stall = await stallOrEnd(backends, ends, stallMs);
  if (failures.length > 0 || stall !== undefined) throw worldError(runs.length, failures, stall);
  return results;
}

/** Undefined once all have ended. */
function stallOrEnd(
  backends: readonly MockBackend[],
  ends: readonly Promise<void>[],
  stallMs: number,
): Promise<Stall | undefined> {
  return new Promise((resolve) => {
    const watchdog = new Watchdog({
      stallMs,
      activity: () => backends[0]?.activity ?? 0,
      onStall: () => resolve({ stallMs, standings: backends.map((backend) => backend.standing) }),
    });
    void Promise.all(ends).then(() => {
      watchdog.stop();
      resolve(undefined);
    });
  });
}
