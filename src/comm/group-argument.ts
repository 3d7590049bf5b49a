/** The last argument of these functions, which JavaScript lets a caller forget or mistake for a world. */
import { InvalidArgumentError } from '../core/errors';
import { kept } from '../core/kept-promise';
import { Work } from '../core/work';
import type { ProcessGroup } from '../process-group/process-group';

/** @throws InvalidArgumentError unless `group` is a ProcessGroup */
export function checkGroup(group: unknown, op: string): asserts group is ProcessGroup {
  const candidate = group as { readonly isMember?: unknown; readonly group?: unknown } | null | undefined;
  if (typeof candidate?.isMember === 'boolean') return;
  const isWorld = typeof (candidate?.group as { readonly isMember?: unknown } | undefined)?.isMember === 'boolean';
  const got =
    group === null || group === undefined ? String(group) : Object.prototype.toString.call(group).slice(8, -1);
  throw new InvalidArgumentError(
    `${op}: expected a ProcessGroup as the argument 'group', got ${isWorld ? 'a World' : got}. ${isWorld ? 'Pass world.group.' : 'Pass world.group, or a group made by newGroup() (and await that).'}`,
    { op },
  );
}

/** Launch a call on `group`; one that is none makes a Work that has failed. */
export function launchOn(group: ProcessGroup, op: string, launch: () => Work): Work {
  try {
    checkGroup(group, op);
    return launch();
  } catch (thrown) {
    return Work.failed({ op }, thrown as Error);
  }
}

/** Run a call on `group`; one that is none rejects. The promise may be kept: [Note: kept promises]. */
export function runOn<T>(group: ProcessGroup, op: string, run: () => Promise<T>): Promise<T> {
  return kept(
    (async () => {
      checkGroup(group, op);
      return run();
    })(),
  );
}
