import { InternalError } from './errors';

/**
 * State what must be true if Lockstep itself is right. Never used for a caller's mistake.
 * @throws InternalError
 */
export function invariant(condition: boolean, message: string): asserts condition {
  if (!condition) throw new InternalError(`internal error: ${message}. Please report it with the steps that led here.`);
}
