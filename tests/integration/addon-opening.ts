/** The program `opens` of addon-programs.ts: opening a device takes its time, and who asked for it may be gone by then. */
import { readdirSync, readFileSync } from 'node:fs';
import { parentPort, Worker } from 'node:worker_threads';
import type { Device, NcclAddon } from '../../src/backend/nccl/addon';
import { libraryPaths } from '../../src/backend/nccl/find-libraries';

/** The task of a worker that opens a device, says so, and does no more. */
export const OPENING = 'opening';
/** For hangs. */
const LIMIT_MS = 10_000;

/** An engine has several, its streams on the stand-ins too; so they tell whether it has ended. */
const countThreads = (): number => readdirSync('/proc/self/task').length;

function open(addon: NcclAddon, index: number): Promise<Device> {
  addon.probe(libraryPaths());
  return addon.openDevice(index, { ptx: readFileSync(require.resolve('lockstep-nccl/kernels/kernels.ptx'), 'utf8') });
}

/** In the worker. */
export function openInWorker(addon: NcclAddon): void {
  void open(addon, 1);
  parentPort?.postMessage(OPENING);
}

/** @param program of which `openInWorker` is a part */
export async function opens(addon: NcclAddon, program: string): Promise<Record<string, unknown>> {
  const numBefore = countThreads();
  const worker = new Worker(program, { workerData: OPENING });
  await new Promise((settle) => worker.once('message', settle));
  const exitCode = await worker.terminate();

  let numTicks = 0;
  const ticking = setInterval(() => numTicks++, 10);
  const device = await open(addon, 0);
  clearInterval(ticking);
  const refusal = await addon.openDevice(99, {}).catch(({ code }: { code: string }) => code);
  addon.allocate(device, 4);
  await addon.synchronize(device, LIMIT_MS);
  await addon.closeDevice(device);

  const end = Date.now() + LIMIT_MS;
  while (countThreads() > numBefore && Date.now() < end) await new Promise((settle) => setTimeout(settle, 10));
  return {
    exitCode,
    hasTicked: numTicks > 5,
    refusal,
    numThreadsLeft: Math.max(0, countThreads() - numBefore),
  };
}
