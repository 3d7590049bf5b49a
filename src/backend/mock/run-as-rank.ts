import { callsInFlightKey } from '../../core/calls-in-flight';
import { ClosedError, InvalidArgumentError, asError } from '../../core/errors';
import { memoryAccountKey } from '../../core/memory-account';
import { generatorKey } from '../../core/random';
import { misuseAtReturn } from './misuse';
import { mockRankKey, type MockRank } from './mock-rank';
import type { MockWorld } from './mock-world';

/** Run `fn` in the context of a rank, and tell the world how it ended. */
export async function runAsRank<R>(world: MockWorld, rank: MockRank, fn: () => R | Promise<R>): Promise<R> {
  checkCanRun(rank);
  rank.state = { kind: 'running' };
  world.liveResources.enter();
  try {
    const result = await inContextOf(rank, async () => {
      if (!world.schedule.isImmediate) await turnToStart(world);
      return fn();
    });
    const misuse = world.isChecking ? misuseAtReturn(rank) : undefined;
    if (misuse !== undefined) throw misuse;
    rank.state = { kind: 'returned' };
    world.noteChange();
    return result;
  } catch (thrown) {
    const error = asError(thrown);
    world.loseRank(rank, `it threw ${error.name}: ${error.message}`, error);
    throw thrown;
  } finally {
    rank.unawaited.clear();
    rank.callsInFlight.clear();
    world.liveResources.leave();
  }
}

function checkCanRun(rank: MockRank): void {
  if (rank.isRunning) {
    throw new InvalidArgumentError(
      `run: rank ${rank.globalRank} is running a function already. Await it, or put both into one function.`,
    );
  }
  if (rank.state.kind !== 'lost') return;
  const { error } = rank.state;
  throw new ClosedError(`run: rank ${rank.globalRank} was lost: ${error.message}`, { cause: error });
}

function inContextOf<R>(rank: MockRank, fn: () => R): R {
  return memoryAccountKey.run(rank.memoryAccount, () =>
    generatorKey.run(rank.generator, () => callsInFlightKey.run(rank.callsInFlight, () => mockRankKey.run(rank, fn))),
  );
}

/** The schedule also decides when each rank starts. */
function turnToStart(world: MockWorld): Promise<void> {
  return new Promise((resolve) => world.schedule.deliver(resolve));
}
