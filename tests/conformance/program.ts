import { setTimeout as sleepMs } from 'node:timers/promises';
import { bytesOf, type HostBuffer } from '../../src/core/dtype';
import { toWire, type WireError } from '../../src/core/error-wire';
import type { Backend } from '../../src/backend/backend';

/**
 * What one rank does in a conformance test. A test names a program instead of passing a function, since functions do
 * not cross processes: arguments and results are plain JSON, buffers go as `WireBuffer`, errors as `WireError`.
 */
export type Program<Args, Result> = (backend: Backend, args: Args) => Promise<Result>;

/** How a call ended. */
export type Ending = { readonly ok: true } | { readonly ok: false; readonly error: WireError };

/** Wait for `call` and say how it ended, instead of throwing. */
export async function endingOf(call: PromiseLike<unknown>): Promise<Ending> {
  try {
    await call;
    return { ok: true };
  } catch (error) {
    return { ok: false, error: toWire(error) };
  }
}

/** Stay alive without making any call, as a rank that loads data does. */
export async function computeFor(ms: number): Promise<void> {
  await sleepMs(ms);
}

/** Close groups that `backend` made, once every rank has finished its calls in them. */
export async function leave(backend: Backend, groups: readonly (Backend | undefined)[]): Promise<void> {
  await backend.barrier();
  for (const group of groups) await group?.close();
}

/** A new group of all ranks. */
export async function everybody(backend: Backend): Promise<Backend> {
  const ranks = Array.from({ length: backend.worldSize }, (_unused, rank) => rank);
  return (await backend.split(ranks)) as Backend;
}

/** Use buffers again, as a rank may as soon as its own call is done: what the others get must not change. */
export function scribble(...buffers: readonly (HostBuffer | undefined)[]): void {
  for (const buffer of buffers) if (buffer !== undefined) bytesOf(buffer).fill(0xaa);
}
