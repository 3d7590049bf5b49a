import { fromHere } from '../core/call-site';
import type { AnyModule } from '../nn/any-module';
import type { Parameter } from '../nn/parameter';
import type { FlatUnit } from './flat-unit';
import type { GatherSchedule } from './gather-schedule';

/** Gives a module of stage 3 its parameters back for a while. */
interface FullAccess {
  run<R>(fn: () => R | Promise<R>): Promise<R>;
}

const fullAccess = Symbol('lockstep.fullParameters');

/**
 * Run `fn` with all parameters of `module`, a module from zeroWrap or one inside it, whole on every rank: to read or save
 * them (`module.stateDict()`), to load or change them. Returns what `fn` returns, which may be async.
 *
 * A collective: every rank of the group calls it. What `fn` changes is kept, each rank taking its own part from its own
 * copy, so **all ranks must make the same change**. saveCheckpoint and loadCheckpoint work inside. It may be nested, and `module` may run inside; `optimizer.step()`
 * may not. Memory: the whole model, for the time of `fn`. Below stage 3, and for a module that is not wrapped, it just
 * runs `fn`.
 *
 *     const state = await withFullParameters(module, () => module.stateDict());
 */
export async function withFullParameters<R>(module: AnyModule, fn: () => R | Promise<R>): Promise<R> {
  const access = (module as { readonly [fullAccess]?: FullAccess })[fullAccess];
  return access === undefined ? fn() : fromHere(() => access.run(fn));
}

/** Let `withFullParameters` find the units of `module`, which `schedule` gathers. */
export function grantFullAccess(module: AnyModule, schedule: GatherSchedule, flats: readonly FlatUnit[]): void {
  const access: FullAccess = {
    run: (fn) => {
      const wanted = new Set<Parameter>(module.parameters());
      const own = flats.filter(({ members }) => members.some(({ parameter }) => wanted.has(parameter)));
      return schedule.withWhole(own, fn, () => {
        for (const flat of own) flat.adopt();
      });
    },
  };
  Object.defineProperty(module, fullAccess, { value: access, enumerable: false, configurable: true });
}

/** The module's parameters stay whole from now on. */
export function revokeFullAccess(module: AnyModule): void {
  Reflect.deleteProperty(module, fullAccess);
}
