/** Small worlds for the tests of this folder. */
import { MockBackend } from '../../../src/backend/mock/mock-backend';
import type { MockOptions } from '../../../src/backend/mock/mock-options';
import type { LockstepError } from '../../../src/core/errors';

export type Program<R = unknown> = (backend: MockBackend) => R | Promise<R>;

export const floats = (...values: number[]): Float32Array => Float32Array.from(values);

/** What `promise` rejects with; fails if it does not. */
export async function failureOf(promise: PromiseLike<unknown>): Promise<LockstepError> {
  try {
    await promise;
  } catch (error) {
    return error as LockstepError;
  }
  throw new Error('expected a rejection');
}

/** What each rank's program returned, or threw. */
export async function outcomes<R>(
  size: number,
  program: Program<R>,
  options?: MockOptions,
): Promise<PromiseSettledResult<R>[]> {
  const world = MockBackend.createWorld(size, options);
  try {
    return await Promise.allSettled(world.map((backend) => backend.run(program)));
  } finally {
    for (const backend of world) await backend.close();
  }
}

/** What each rank's program returned; the first failure otherwise. */
export async function results<R>(size: number, program: Program<R>, options?: MockOptions): Promise<R[]> {
  return (await outcomes(size, program, options)).map((outcome) => {
    if (outcome.status === 'rejected') throw outcome.reason as Error;
    return outcome.value;
  });
}

/** What each rank's program threw; undefined where it returned. */
export async function failures(
  size: number,
  program: Program,
  options?: MockOptions,
): Promise<(LockstepError | undefined)[]> {
  const settled = await outcomes(size, program, options);
  return settled.map((outcome) => (outcome.status === 'rejected' ? (outcome.reason as LockstepError) : undefined));
}

export const names = (errors: readonly (Error | undefined)[]): (string | undefined)[] =>
  errors.map((error) => error?.name);
