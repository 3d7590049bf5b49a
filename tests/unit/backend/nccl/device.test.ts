import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type { NcclDevice } from '../../../../src/backend/nccl/nccl-device';
import { BFloat16Buffer } from '../../../../src/core/half-buffer';
import type { AdamUpdate } from '../../../../src/core/flat-update';
import { nativeFailure, type FakeRank } from '../../../helpers/fake-gpu';
import { SILENT, withNcclWorld } from '../../../helpers/nccl-worlds';

const withDevice = (
  test: (device: NcclDevice, gpu: FakeRank) => Promise<void>,
  warnings: string[] = [],
): Promise<void> =>
  withNcclWorld(1, ([only]) => test(only?.backend.device as NcclDevice, only?.gpu as FakeRank), {
    logger: { ...SILENT, warn: (message) => void warnings.push(message) },
  });

const messageOf = (act: () => unknown): string => {
  try {
    act();
  } catch (error) {
    return `${(error as Error).name}: ${(error as Error).message}`;
  }
  return 'nothing was thrown';
};

const rejectionOf = (call: Promise<unknown>): Promise<string> =>
  call.then(
    () => 'nothing was thrown',
    (error: Error) => `${error.name}: ${error.message}`,
  );

test('what is uploaded comes back, through copies and views', async () => {
  await withDevice(async (device) => {
    const [a, b] = [device.allocate('bfloat16', 4), device.allocate('bfloat16', 4)];
    const values = BFloat16Buffer.from([1, 2, 3, 4]);
    await device.upload(values, a);
    device.copy(a.view(2, 2), b.view(0, 2));
    device.copy(a.view(0, 2), b.view(2, 2));
    const result = BFloat16Buffer.from([0, 0, 0, 0]);
    await device.download(b, result);
    expect([...result.toFloat32()]).toEqual([3, 4, 1, 2]);
  });
});

test('memory lives until the buffer and all its views are disposed of, in any order', async () => {
  await withDevice(async (device, gpu) => {
    const buffer = device.allocate('int8', 8);
    const view = buffer.view(2, 4);
    const inner = view.view(1, 2);
    expect([inner.byteOffset, inner.length, inner.memory === buffer.memory]).toEqual([3, 2, true]);
    buffer.dispose();
    buffer.dispose();
    view.dispose();
    expect([gpu.numBlocks, buffer.isDisposed, inner.isDisposed]).toEqual([1, true, false]);
    inner[Symbol.dispose]();
    expect(gpu.numBlocks).toBe(0);
    expect(messageOf(() => inner.view(0, 1))).toMatch(
      /InvalidArgumentError: view: the device buffer has been disposed/,
    );
  });
});

test('arguments that do not fit are refused', async () => {
  await withDevice(async (device) => {
    const buffer = device.allocate('float32', 4);
    expect(messageOf(() => device.allocate('float12' as 'float32', 1))).toMatch(/expected a dtype, got "float12"/);
    expect(messageOf(() => device.allocate('float32', -1))).toMatch(
      /whole number of elements from 0 to 2251799813685247, got -1/,
    );
    expect(messageOf(() => buffer.view(2, 3))).toMatch(/a part of 4 elements, got 3 elements from element 2/);
    expect(messageOf(() => buffer.view(0.5, 1))).toMatch(/InvalidArgumentError/);
    expect(await rejectionOf(device.upload(new Float32Array(3), buffer))).toMatch(
      /upload: source: expected float32\[4\] like target, got float32\[3\]/,
    );
    expect(await rejectionOf(device.download(buffer, new Float64Array(4)))).toMatch(
      /download: target: expected float32\[4\] like source, got float64\[4\]/,
    );
    expect(await rejectionOf(device.upload(new Float32Array(4), new Float32Array(4) as never))).toMatch(
      /target: expected a device buffer/,
    );
    expect(await rejectionOf(device.upload(buffer as never, buffer))).toMatch(
      /source: expected a host buffer\. Use copy/,
    );
    expect(messageOf(() => device.copy(buffer, buffer.view(0, 2)))).toMatch(
      /copy: target: expected float32\[4\] like source/,
    );
  });
});

const adam: AdamUpdate = {
  kind: 'adam',
  beta1: 0.9,
  beta2: 0.999,
  eps: 1e-8,
  penalty: 0,
  keep: 1,
  stepSize: 1e-3,
  rootScale: 1,
  gradientScale: 1,
};

test('an update is one launch; what does not fit is refused', async () => {
  await withDevice(async (device, gpu) => {
    const make = (dtype: 'float32' | 'bfloat16' | 'int32', length = 4) => device.allocate(dtype, length);
    const state = { expAvg: make('float32'), expAvgSq: make('float32') };
    const [parameter, gradient] = [make('bfloat16'), make('float32')];
    device.update(adam, { parameter, gradient, master: make('float32'), state });
    expect(gpu.calls.at(-1)).toBe('adam_bfloat16_float32');
    const refusal = (target: Partial<Parameters<NcclDevice['update']>[1]>): string =>
      messageOf(() => device.update(adam, { parameter, gradient, state, ...target }));
    expect(refusal({ gradient: make('float32', 3) })).toMatch(
      /gradient: expected float32\[4\] like parameter, got float32\[3\]/,
    );
    expect(refusal({ parameter: make('int32') })).toMatch(
      /parameter: expected float32, float16 or bfloat16, got int32/,
    );
    expect(refusal({ parameter: make('float32'), master: make('float32') })).toMatch(
      /a float32 parameter has no master/,
    );
    expect(refusal({ master: make('bfloat16') })).toMatch(/master: expected float32\[4\]/);
    expect(refusal({ state: { expAvg: make('float32') } })).toMatch(/the rule 'adam' needs expAvgSq/);
  });
});

test('failures of the addon name the call, the rank and the device', async () => {
  await withDevice(async (device, gpu) => {
    gpu.failNext('allocate', nativeFailure('OUT_OF_MEMORY', 'no memory for 400 bytes'));
    expect(messageOf(() => device.allocate('float32', 100))).toMatch(
      /NativeError: allocate float32\[100\], on rank 0, on cuda:0: no memory for 400 bytes\. Of 8192 bytes/,
    );
    const buffer = device.allocate('float32', 1);
    gpu.failNext('upload', nativeFailure('TIMEOUT', 'not done'));
    expect(await rejectionOf(device.upload(new Float32Array(1), buffer))).toMatch(
      /CollectiveTimeoutError: upload float32\[1\]/,
    );
  });
});

test('a device of a closed world refuses', async () => {
  let device: NcclDevice | undefined;
  await withDevice(async (each) => void (device = each));
  expect(messageOf(() => device?.allocate('float32', 1))).toMatch(
    /ClosedError: allocate on cuda:0: this rank has closed its world/,
  );
});

test('a buffer that was forgotten gives its memory back, and is warned of once', async () => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const warnings: string[] = [];
  await withDevice(async (device, gpu) => {
    for (let i = 0; i < 3; i++) device.allocate('float32', 100);
    for (let i = 0; i < 100 && gpu.numBlocks > 0; i++) {
      collect();
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    expect(gpu.numBlocks).toBe(0);
  }, warnings);
  expect(warnings).toEqual([
    expect.stringMatching(/a buffer of 400 bytes on cuda:0 was garbage collected.*dispose\(\)/),
  ]);
});

test('buffers that share memory are refused where one is written while the other is read', async () => {
  await withDevice(async (device) => {
    const whole = device.allocate('float32', 8);
    const [parameter, gradient] = [whole.view(0, 4), whole.view(4, 4)];
    expect(messageOf(() => device.copy(parameter, whole.view(2, 4)))).toMatch(
      /InvalidArgumentError: copy: target and source share memory/,
    );
    expect(messageOf(() => device.copy(parameter, parameter))).toBe('nothing was thrown');
    const update = {
      kind: 'sgd',
      lr: 1,
      momentum: 0.9,
      taken: 1,
      weightDecay: 0,
      nesterov: false,
      gradientScale: 1,
    } as const;
    expect(
      messageOf(() => device.update(update, { parameter, gradient, state: { momentumBuffer: gradient } })),
    ).toMatch(/InvalidArgumentError: update: momentumBuffer and gradient share memory/);
  });
});

test('an update that lacks a number, or is of no known kind, is refused', async () => {
  await withDevice(async (device, gpu) => {
    const [parameter, gradient] = [device.allocate('float32', 4), device.allocate('float32', 4)];
    const refusalOf = (update: object): string =>
      messageOf(() => device.update(update as AdamUpdate, { parameter, gradient, state: {} }));
    expect(refusalOf({ kind: 'sgd', lr: 1, momentum: 0, taken: 1, weightDecay: 0 })).toMatch(
      /InvalidArgumentError: update: gradientScale: expected a number, got undefined/,
    );
    expect(refusalOf({ kind: 'lion' })).toMatch(/InvalidArgumentError: update: kind: expected adam or sgd, got "lion"/);
    expect(gpu.calls).not.toContain('launch');
  });
});

test('more elements than any memory has are refused as an argument', async () => {
  await withDevice(async (device) => {
    expect(messageOf(() => device.allocate('float64', Number.MAX_SAFE_INTEGER))).toMatch(
      /InvalidArgumentError: allocate: expected a whole number of elements from 0 to 1125899906842623/,
    );
  });
});
