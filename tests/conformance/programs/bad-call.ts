/** A call that every backend refuses before anything is sent. Made by one rank of three while the others make none. */
import type { Backend } from '../../../src/backend/backend';

export const BAD_CALLS_SIZE = 3;
export const BAD_CALLER = 1;

export interface BadCall {
  readonly call: (backend: Backend) => PromiseLike<unknown>;
  /** Found in the message. */
  readonly message: RegExp;
}

export type BadCalls = Readonly<Record<string, BadCall>>;

/** A value that the types forbid; callers in JavaScript pass it all the same. */
export const as = <T>(value: unknown): T => value as T;

export const one = (): Float32Array => new Float32Array(1);
export const many = (length: number): Float32Array => new Float32Array(length);

/** The op that a call's name begins with: 'send to rank -1' is about send. */
export const opOf = (name: string): string => name.split(' ')[0] as string;
