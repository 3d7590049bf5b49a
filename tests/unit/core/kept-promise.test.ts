import { spawnSync } from 'node:child_process';
import { kept } from '../../../src/core/kept-promise';
import { testBuild } from '../../helpers/test-build';

/** Run a program in a process of its own, where an unhandled rejection is fatal; returns what it printed. */
function runProgram(code: string): { status: number | null; output: string } {
  const { status, stdout, stderr } = spawnSync(process.execPath, ['--eval', code], {
    cwd: testBuild(),
    encoding: 'utf8',
    timeout: 15_000,
  });
  return { status, output: stdout + stderr };
}

test('a collective that is kept while its peer is lost does not end the process', () => {
  const { status, output } = runProgram(`
    const { runWorld } = require('./src/testing/index');
    const { Tensor } = require('./src/index');
    const late = () => new Promise((resolve) => setTimeout(resolve, 20));
    const run = runWorld(2, async (world) => {
      if (world.rank === 1) return late().then(() => { throw new Error('boom'); });
      const gathered = world.group.allGather(Tensor.ones([1]));
      const objects = world.group.allGatherObjects(1);
      await world.barrier();
      return [await gathered, await objects];
    });
    run.catch((error) => process.stdout.write('caught ' + error.message.split('\\n')[0]));
  `);
  expect({ status, output }).toEqual({ status: 0, output: 'caught boom' });
});

test('what is kept still rejects for whoever awaits it later', async () => {
  const promise = kept(Promise.reject(new Error('later')));
  await new Promise((resolve) => setImmediate(resolve));
  await expect(promise).rejects.toThrow('later');
});
