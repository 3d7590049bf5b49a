/**
 * Where the keys of users' programs stand among all keys of a job's store: apart from those that Lockstep may keep there
 * itself, and from those of the job's other starts.
 */

/** Bytes that the longest prefix adds to a key; a generation has 32 bits. */
export const USER_PREFIX_BYTES = userPrefix(2 ** 32 - 1).length;

/** Stands before every key of a user's program. */
export function userPrefix(generation: number): string {
  return `user/${generation}/`;
}

/** The key as the user's program knows it. */
export function nameOfKey(storedKey: string): string {
  return storedKey.replace(/^user\/\d+\//, '');
}
