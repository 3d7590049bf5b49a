/**
 * `promise`, which the caller may keep and await later, as a Work.
 *
 * [Note: kept promises] A promise that is rejected before anybody listens ends the process, so an overlapped collective
 * whose peer is lost would take the program down instead of telling whoever awaits it. The failure is not lost: it has
 * ended the group, and every later call says so.
 */
export function kept<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => undefined);
  return promise;
}
