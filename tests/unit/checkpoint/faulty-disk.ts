/** A disk that fails on demand: every call of node:fs/promises that checkpoints make passes a hook first. */
import fs from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { stat, truncate } from 'node:fs/promises';

/** What is about to happen to a path; what the hook throws, happens instead. */
export type DiskHook = (operation: string, path: string, target?: string) => void | Promise<void>;

const OPERATIONS = ['mkdir', 'rename', 'rm', 'writeFile', 'unlink'] as const;
const CHANGES_OF_HANDLE = ['writev', 'writeFile', 'sync'];

/** Put `hook` before every change of the disk. @returns takes it away */
export function watchDisk(hook: DiskHook): () => void {
  const realOpen = fs.open;
  const spies = OPERATIONS.map((operation) => {
    const real = fs[operation] as (...args: unknown[]) => Promise<unknown>;
    return jest.spyOn(fs, operation).mockImplementation((async (path: string, ...rest: unknown[]) => {
      await hook(operation, path, operation === 'rename' ? (rest[0] as string) : undefined);
      return real(path, ...rest);
    }) as never);
  });
  const openSpy = jest.spyOn(fs, 'open').mockImplementation((async (path: string, flags: string) => {
    if (flags !== 'r') await hook('create', path);
    return watchHandle(await realOpen(path, flags), path, hook);
  }) as never);
  return () => [...spies, openSpy].forEach((spy) => spy.mockRestore());
}

function watchHandle(handle: FileHandle, path: string, hook: DiskHook): FileHandle {
  return new Proxy(handle, {
    get(target, key) {
      const value: unknown = Reflect.get(target, key, target);
      if (typeof value !== 'function') return value;
      const method = value as (...args: unknown[]) => unknown;
      if (!CHANGES_OF_HANDLE.includes(String(key))) return method.bind(target);
      return async (...args: unknown[]) => {
        await hook(String(key), path);
        return method.apply(target, args);
      };
    },
  });
}

/** Every change from number `crashAt` on fails, and nothing reaches the disk any more: what a killed process leaves. */
export class CrashingDisk {
  /** Changes so far. */
  changes = 0;
  /** Files written to and not made durable since. */
  #unsynced = new Set<string>();
  /** Called once, when the process dies. */
  onCrash: (() => void) | undefined;
  readonly #crashAt: number;

  constructor(crashAt: number) {
    this.#crashAt = crashAt;
  }

  readonly hook: DiskHook = (operation, path, target) => {
    if (this.changes++ >= this.#crashAt) {
      this.onCrash?.();
      this.onCrash = undefined;
      throw new Error('the process is dead');
    }
    if (operation === 'sync') this.#unsynced.delete(path);
    else if (operation === 'rename') {
      this.#unsynced = new Set([...this.#unsynced].map((name) => name.replace(path, target as string)));
    } else if (operation !== 'mkdir' && operation !== 'rm') this.#unsynced.add(path);
  };

  get hasCrashed(): boolean {
    return this.changes > this.#crashAt;
  }

  /** The power went off as well: of what was not made durable, a file has nothing or a part. */
  async losePower(keptShare: number): Promise<void> {
    for (const path of this.#unsynced) {
      const size = await stat(path).then(
        (stats) => stats.size,
        () => undefined,
      );
      if (size !== undefined) await truncate(path, Math.floor(size * keptShare));
    }
  }
}
