/**
 * Where the keys of users' programs stand among all keys of a job's store: apart from those that Lockstep may keep there
 * itself, and from those of the job's other starts.
 */

/** Stands before every key of a user's program. */
export function userPrefix(generation: number): string {
  return `user/${generation}/`;
}

/** The key as the user's program knows it. */
export function nameOfKey(storedKey: string): string {
  return storedKey.replace(/^user\/\d+\//, '');
}
