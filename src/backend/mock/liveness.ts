/**
 * Which ranks may still be woken from outside: by a timer, a file, a socket, a worker.
 *
 * [Note: live resources] An async hook, on only while ranks run, sees each resource that Node makes, and the context
 * says for which rank. Timers and requests (a read, a look-up, a hash) keep their own rank alive; handles (sockets,
 * workers, child processes) often belong to pools, so one that is referenced keeps every rank alive. Whatever cannot
 * be told to be over counts as live: then a deadlock is left to the watchdog of `runWorld`, and nobody is accused
 * wrongly. Node does not show WebAssembly.compile and Atomics.waitAsync: a rank that awaits one of them counts as live
 * because it awaits no call, but one that awaits a call as well is given 50 ms only ([Note: second look]). Cost: 20 ns per promise (a destroy hook would cost 350).
 */
import { AsyncResource, createHook, type AsyncHook } from 'node:async_hooks';
import { mockRankKey, type MockRank } from './mock-rank';

/** Never wake anybody by themselves: run before the turn ends, or wait for a request or handle that is seen too. */
const PASSIVE = new Set(['PROMISE', 'TickObject', 'Microtask', 'FILEHANDLE', 'DIRHANDLE', 'TLSWRAP', 'JSSTREAM']);

/** Over once their callback has run: FSREQPROMISE, GETADDRINFOREQWRAP, HASHREQUEST, TCPCONNECTWRAP, WRITEWRAP, ... */
const REQUEST = /REQ|(CONNECT|SHUTDOWN|WRITE|SEND|QUERY)WRAP$/;

const TIMER = /^(Timeout|Immediate)$/;

interface Resource {
  readonly owner: MockRank;
  readonly type: string;
  readonly object: WeakRef<object>;
}

/** What Node's timers and handles have; `_destroyed` is theirs alone. */
interface Referenced {
  readonly _destroyed?: boolean;
  hasRef?(): boolean | undefined;
}

/** When so many resources are known, those that are over are forgotten. */
const PRUNE_AT = 256;

export class LiveResources {
  readonly #resources = new Map<number, Resource>();
  readonly #hook: AsyncHook;
  readonly #ranks: ReadonlySet<MockRank>;
  #numRunning = 0;
  #pruneAt = PRUNE_AT;

  constructor(ranks: readonly MockRank[]) {
    this.#ranks = new Set(ranks);
    this.#hook = createHook({
      init: (id, type, _trigger, object) => {
        if (!PASSIVE.has(type)) this.#add(id, type, object);
      },
      after: (id) => {
        if (this.#resources.size > 0) this.#callbackHasRun(id);
      },
    });
  }

  /** A rank starts to run. */
  enter(): void {
    this.#numRunning += 1;
    if (this.#numRunning === 1) this.#hook.enable();
  }

  /** A rank has ended. */
  leave(): void {
    this.#numRunning -= 1;
    if (this.#numRunning > 0) return;
    this.#hook.disable();
    this.#resources.clear();
  }

  /** True if something outside the world may wake this rank. */
  isLive(rank: MockRank): boolean {
    if (!rank.isRunning) return false;
    this.#forgetWhatIsOver();
    for (const resource of this.#resources.values()) {
      if ((resource.owner === rank || isShared(resource)) && isAwake(resource)) return true;
    }
    return false;
  }

  #add(id: number, type: string, object: object): void {
    const owner = mockRankKey.get();
    if (owner === undefined || !this.#ranks.has(owner) || object instanceof AsyncResource) return;
    this.#resources.set(id, { owner, type, object: new WeakRef(object) });
    if (this.#resources.size < this.#pruneAt) return;
    this.#forgetWhatIsOver();
    this.#pruneAt = Math.max(PRUNE_AT, 2 * this.#resources.size);
  }

  #callbackHasRun(id: number): void {
    const resource = this.#resources.get(id);
    if (resource !== undefined && REQUEST.test(resource.type)) this.#resources.delete(id);
  }

  #forgetWhatIsOver(): void {
    for (const [id, resource] of this.#resources) if (isOver(resource)) this.#resources.delete(id);
  }
}

function isShared({ type }: Resource): boolean {
  return !TIMER.test(type) && !REQUEST.test(type);
}

/** A timer wakes its rank even if it is unreferenced. An idle handle of a pool is unreferenced and wakes nobody now. */
function isAwake({ type, object }: Resource): boolean {
  const resource = object.deref() as Referenced | undefined;
  return resource !== undefined && (TIMER.test(type) || resource.hasRef === undefined || resource.hasRef() === true);
}

/** Closed handles answer undefined. */
function isOver({ object }: Resource): boolean {
  const resource = object.deref() as Referenced | undefined;
  if (resource === undefined || resource._destroyed === true) return true;
  return resource.hasRef !== undefined && resource.hasRef() === undefined;
}
