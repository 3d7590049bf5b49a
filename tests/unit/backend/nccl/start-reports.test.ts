import { chooseDevice } from '../../../../src/backend/nccl/choose-device';
import {
  decodeReport,
  encodeReport,
  findProblem,
  versionWarning,
  type RankReport,
} from '../../../../src/backend/nccl/rank-report';

const report = (uuid: string, more: Partial<RankReport> = {}): RankReport => ({
  host: 'here',
  device: { index: 0, name: 'GPU', uuid },
  ncclVersion: 22_809,
  mayShareDevice: false,
  ...more,
});

describe('which device is a rank’s', () => {
  const choose = (localRank: number, deviceCount: number, visibleDevices?: string) =>
    chooseDevice({ localRank, deviceCount, visibleDevices });

  test('that of its local rank', () => {
    expect(choose(3, 8)).toEqual({ index: 3 });
  });

  test('the only one that it sees, as a launcher chose it', () => {
    expect(choose(3, 1, '3')).toEqual({ index: 0 });
  });

  test('none where there are several but too few, and the message says what to do', () => {
    const { reason } = choose(4, 2, '0,1') as { reason: string };
    expect(reason).toMatch(
      /local rank 4: 2 devices are visible \(CUDA_VISIBLE_DEVICES is '0,1'\)\. Start at most 2 ranks/,
    );
    expect((choose(4, 2) as { reason: string }).reason).toMatch(/CUDA_VISIBLE_DEVICES is not set/);
  });
});

describe('what ranks conclude from their reports', () => {
  test('a report crosses the links as it is', () => {
    const full = report('a', { problem: 'none', driverVersion: 13_000 });
    expect(decodeReport(encodeReport(full))).toEqual(full);
  });

  test('one that cannot be read is a problem of its rank', () => {
    expect(decodeReport(Buffer.from('{"host":1}')).problem).toMatch(/cannot be read.*same version of Lockstep/s);
  });

  test('nothing is wrong where each rank has a device of its own; the same uuid on two hosts is two devices', () => {
    expect(findProblem([report('a'), report('b'), report('a', { host: 'there' })])).toBeUndefined();
  });

  test('each rank that cannot take part is named with its host and reason', () => {
    const bad = { device: undefined, problem: 'no driver.' };
    const problem = findProblem([report('a'), report('', bad), report('', { ...bad, host: 'there' })]);
    expect(problem).toMatchObject({ name: 'BackendUnavailableError', context: { ranks: [1, 2] } });
    expect(problem?.message).toMatch(/2 ranks of 3[^]*rank 1 \(here\): no driver\.[^]*rank 2 \(there\): no driver\./);
  });

  test('two ranks with one device are refused by name, unless all allow it', () => {
    const problem = findProblem([report('a'), report('b'), report('a')]);
    expect(problem).toMatchObject({ name: 'InvalidArgumentError', context: { ranks: [0, 2] } });
    expect(problem?.message).toMatch(/ranks 0 and 2.*same device.*uuid a.*LOCAL_RANK/);
    const mayShareDevice = true;
    expect(findProblem([report('a', { mayShareDevice }), report('a')])).toBeDefined();
    expect(findProblem([report('a', { mayShareDevice }), report('a', { mayShareDevice })])).toBeUndefined();
  });

  test('different versions of NCCL are worth a warning', () => {
    expect(versionWarning([report('a'), report('b')])).toBeUndefined();
    expect(versionWarning([report('a'), report('b', { ncclVersion: 23_007 })])).toMatch(
      /2\.28\.9 on rank 0; 2\.30\.7 on rank 1/,
    );
  });
});
