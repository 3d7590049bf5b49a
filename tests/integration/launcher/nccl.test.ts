/** `lockstep run` on NCCL and the stand-ins: the digits example ends as on the mock, and what is missing is said once. */
import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { loadDigits } from '../../../examples/digits/dataset';
import { defaultSettings, trainDigits, type TrainingResult } from '../../../examples/digits/training';
import { runWorld } from '../../../src/testing/index';
import { count, isLong } from '../../helpers/counts';
import { describeNative, standInEnvironment } from '../../helpers/native-build';
import { LauncherBench, sortedLines, type Ended } from './launcher';

const root = join(__dirname, '../../..');
const epochs = count('digits: epochs over nccl and on the mock', 1, defaultSettings.epochs);
/** Where it is said once, in the words of the launcher. */
const SUMMARY = /^lockstep: /;

describeNative('lockstep run on nccl and the stand-ins', ['addon', 'stand-ins'], (folder) => {
  let bench: LauncherBench;
  beforeAll(() => {
    bench = new LauncherBench();
  });
  afterAll(() => bench?.close());

  const settings = { ...defaultSettings, epochs };
  const digits = [join('examples', 'digits', 'launched.ts'), '--epochs', String(epochs)];
  /** Starts in a quarter of the time. */
  const initOnly = (): string[] => [
    bench.script('init.js', `require(${JSON.stringify(bench.dist)}).World.init().then((world) => world.close());`),
  ];

  async function onMock(size: number): Promise<TrainingResult> {
    const samples = loadDigits();
    return (await runWorld(size, (world) => trainDigits(world, samples, settings)))[0] as TrainingResult;
  }

  async function launch(nproc: number, words: readonly string[], env: Record<string, string> = {}): Promise<Ended> {
    const args = ['run', '--nproc', String(nproc), ...words];
    const report = join(bench.folder, 'report');
    const variables = { ...standInEnvironment(folder), STANDIN_CUDA_REPORT: report, ...env };
    const ended = await bench.run(args, { cwd: root, env: variables });
    expect(existsSync(report) ? readFileSync(report, 'utf8') : '').toBe('');
    return ended;
  }

  const ways: readonly [string, readonly string[], Record<string, string>][] = [
    ['LOCKSTEP_BACKEND=nccl', [], { LOCKSTEP_BACKEND: 'nccl', LOCKSTEP_LOG: 'info' }],
    ['--backend nccl', ['--backend', 'nccl'], { LOCKSTEP_LOG: 'info', LOCKSTEP_NCCL_CHECKS: 'before' }],
  ];
  test.each(isLong ? ways : ways.slice(0, 1))(
    'with %s the digits train to the bits of the mock, and each rank says which device it got',
    async (_how, flags, env) => {
      const { status, stdout, stderr } = await launch(2, [...flags, ...digits], env);
      expect({ status, failures: sortedLines(stderr, /warn|error/i) }).toEqual({ status: 0, failures: [] });
      const device = (rank: number): RegExp =>
        new RegExp(
          `^\\[${rank}\\] .*rank ${rank}: device ${rank} of 8, .*uuid \\w+.*, NCCL 2\\.\\d+\\.\\d+ from ${folder}`,
        );
      for (const rank of [0, 1]) expect(sortedLines(stderr, device(rank))).toHaveLength(1);
      expect(stdout.match(/^\[0\] epoch +\d+ {2}loss/gm)).toHaveLength(epochs);

      // a half is exact, and of two numbers there is one sum
      const { finalLoss, testAccuracy, parameters } = await onMock(2);
      expect(testAccuracy).toBeGreaterThan(0.75);
      expect(stdout).toContain(`[0] ${(100 * testAccuracy).toFixed(1)} % test accuracy`);
      expect(stdout).toContain(`final loss ${finalLoss}\n`);
      const digest = createHash('sha256').update(Buffer.from(parameters.buffer)).digest('hex');
      expect(stdout).toContain(`[0] all 2 ranks hold the same parameter bits, sha256 ${digest}\n`);
    },
    120_000,
  );

  test('where NCCL is absent, one error names each rank and where it was looked for', async () => {
    const { status, stderr } = await launch(2, ['--backend', 'nccl', ...initOnly()], {
      LOCKSTEP_NCCL_LIBRARY: '/nowhere/libnccl.so.2',
    });
    expect(status).toBe(1);
    const summary = sortedLines(stderr, SUMMARY).join('\n');
    // a second rank that came to its end before it was stopped is reported too, with the first line of the same error
    const errors = summary.match(/\w+Error:/g) ?? [];
    expect({ stderr, errors: [...new Set(errors)] }).toEqual({ stderr, errors: ['BackendUnavailableError:'] });
    expect(summary).toMatch(/the backend 'nccl' cannot run, as 2 ranks of 2 cannot use a GPU/);
    for (const rank of [0, 1]) {
      const line = `rank ${rank} \\(.*\\): NCCL cannot be used .*/nowhere/libnccl\\.so\\.2.*LOCKSTEP_NCCL_LIBRARY`;
      expect(summary.match(new RegExp(line, 'g'))).toHaveLength(1);
    }
    expect(stderr.match(/^\[\d\] (\w+Error):/gm)?.every((each) => each.endsWith('BackendUnavailableError:'))).toBe(
      true,
    );
  });

  test('more ranks than devices are told the rank that has none, and how many there are', async () => {
    const { status, stderr } = await launch(3, ['--backend', 'nccl', ...initOnly()], { STANDIN_CUDA_DEVICES: '2' });
    expect(status).toBe(1);
    const summary = sortedLines(stderr, SUMMARY).join('\n');
    const errors = summary.match(/\w+Error:/g) ?? []; // as above
    expect({ stderr, errors: [...new Set(errors)] }).toEqual({ stderr, errors: ['BackendUnavailableError:'] });
    expect(summary).toMatch(/as a rank of 3 cannot use a GPU/);
    expect(summary).toMatch(
      /rank 2 \(.*\): there is no device for local rank 2: 2 devices are visible .*at most 2 ranks/,
    );
    expect(summary).not.toMatch(/rank [01] \(/);
  });
});
