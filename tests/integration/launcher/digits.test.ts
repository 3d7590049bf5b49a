/** The digits example on processes ends where it ends on the mock: the same loss, the same parameter bits. */
import { createHash } from 'node:crypto';
import { join } from 'node:path';
import { loadDigits } from '../../../examples/digits/dataset';
import { defaultSettings, trainDigits, type TrainingResult } from '../../../examples/digits/training';
import { runWorld } from '../../../src/testing/index';
import { count } from '../../helpers/counts';
import { LauncherBench } from './launcher';

const root = join(__dirname, '../../..');
const SIZE = 4;
const epochs = count('digits: epochs on processes and on the mock', 1, defaultSettings.epochs);

let bench: LauncherBench;
let expected: TrainingResult;
beforeAll(async () => {
  bench = new LauncherBench();
  expected = await onMock();
}, 120_000);
afterAll(() => bench?.close());

async function onMock(): Promise<TrainingResult> {
  const digits = loadDigits();
  const results = await runWorld(SIZE, (world) => trainDigits(world, digits, { ...defaultSettings, epochs }));
  return results[0] as TrainingResult;
}

const planes = ['socket', 'grpc'].slice(0, count('digits: data planes', 1, 2));

test.each(planes)(
  'on %s',
  async (dataPlane) => {
    const script = join('examples', 'digits', 'launched.ts');
    const args = ['run', '--nproc', String(SIZE), '--data-plane', dataPlane, script, '--epochs', String(epochs)];
    const { status, stdout, stderr } = await bench.run(args, { cwd: root });
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    expect(stdout.match(/^\[0\] epoch +\d+ {2}loss/gm)).toHaveLength(epochs);

    const { finalLoss, parameters } = expected;
    expect(stdout).toContain(`final loss ${finalLoss}\n`);
    const digest = createHash('sha256').update(Buffer.from(parameters.buffer)).digest('hex');
    expect(stdout).toContain(`[0] all ${SIZE} ranks hold the same parameter bits, sha256 ${digest}\n`);
  },
  120_000,
);
