import { fromHere } from '../core/call-site';
import type { ProcessGroup } from '../process-group/process-group';

/** When the last call of each group, as seen from one of its ranks, is over. */
const lastTurns = new WeakMap<ProcessGroup, Promise<void>>();

/**
 * Run `call` once all earlier calls of this group are over, well or not.
 *
 * [Note: turns] A save or load makes several collectives, and in between it works on files for as long as that takes, which
 * is another time on each rank. The collectives of two that run at once would meet those of the other in some order or
 * other, and a checkpoint would get parts of both states. So the turn is taken at the very call, before anything is awaited:
 * the order of all collectives is then that in which the program makes its calls, which is the same on every rank.
 */
export function inTurn<R>(group: ProcessGroup, call: () => Promise<R>): Promise<R> {
  const earlier = lastTurns.get(group) ?? Promise.resolve();
  const turn = fromHere(() => earlier.then(call));
  const over = (): void => undefined;
  lastTurns.set(group, turn.then(over, over));
  return turn;
}
