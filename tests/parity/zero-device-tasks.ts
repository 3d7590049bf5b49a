/** What a process of the ZeRO tests on a device does. */
import { Tensor } from '../../src/tensor/tensor';
import { currentWorld, worldTasks } from '../helpers/process-world';
import type { ZeroOptions } from '../../src/zero/zero-options';
import { optimizers, trainOnDevice, type DeviceRun } from './zero-device-program';

export interface DeviceTraining {
  /** Of `optimizers`. */
  readonly optimizer: string;
  readonly options: ZeroOptions;
}

/** A DeviceRun in plain numbers. */
export interface PlainRun extends Omit<DeviceRun, 'state'> {
  readonly state: readonly number[];
}

/** The numbers of all state buffers, one after the other. */
export function plainRun({ state, ...run }: DeviceRun): PlainRun {
  const values = Object.values(state.state).flatMap((kept) => Object.values(kept));
  const numbers = values.flatMap((value) => (value instanceof Tensor ? Array.from(value.data, Number) : [value]));
  return { ...run, state: numbers };
}

export const tasks = {
  ...worldTasks,

  /** Several trainings, one after the other, in one world. */
  async train(trainings: readonly DeviceTraining[]): Promise<PlainRun[]> {
    const runs: PlainRun[] = [];
    for (const { optimizer, options } of trainings) {
      runs.push(plainRun(await trainOnDevice(currentWorld(), optimizers[optimizer] as never, options)));
    }
    return runs;
  },
};
