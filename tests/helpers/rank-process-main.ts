/** What a rank process runs: tasks by name, one message each, until its parent lets go of it. See rank-processes.ts. */
import { toWire } from '../../src/core/error-wire';
import type { TaskAnswer, TaskRequest, TaskTable } from './rank-processes';

const [, , tasksFile] = process.argv;
// the parent names the file, so that one main serves conformance, fault and soak tests
// eslint-disable-next-line @typescript-eslint/no-require-imports -- see above
const { tasks } = require(tasksFile as string) as { readonly tasks: TaskTable };

async function answer({ id, task, args }: TaskRequest): Promise<TaskAnswer> {
  try {
    const run = tasks[task];
    if (run === undefined) throw new Error(`${tasksFile} has no task '${task}'`);
    return { id, value: await run(args as never) };
  } catch (error) {
    return { id, error: toWire(error) };
  }
}

process.on('message', (request: TaskRequest) => {
  if (request.task === 'leave') return process.disconnect();
  void answer(request).then((message) => process.send?.(message));
});
