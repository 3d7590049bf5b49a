/** What a process does in the tests of device buffers. */
import { allocateBuffer, dtypeOf, viewBuffer, type HostBuffer } from '../../src/core/dtype';
import type { DeviceBuffer } from '../../src/core/device-buffer';
import type { BackendDevice } from '../../src/backend/backend-device';
import { filled, untouched } from '../helpers/fill';
import { runNcclProgram, type NcclProgram } from '../helpers/nccl-program';
import { currentWorld, worldTasks } from '../helpers/process-world';
import { endingOf, type Ending } from './program';
import { toWireBuffer, type WireBuffer } from './wire-buffer';

const COUNT = 37;

function ownDevice(): BackendDevice {
  const { device } = currentWorld().group.backend;
  if (device === undefined) throw new Error('the backend has no device');
  return device;
}

async function uploaded(data: HostBuffer): Promise<DeviceBuffer> {
  const buffer = ownDevice().allocate(dtypeOf(data), data.length);
  await ownDevice().upload(data, buffer);
  return buffer;
}

async function downloaded(buffer: DeviceBuffer): Promise<HostBuffer> {
  const data = allocateBuffer(buffer.dtype, buffer.length);
  await ownDevice().download(buffer, data);
  return data;
}

export const tasks = {
  ...worldTasks,

  /** Each collective once on host buffers and once on device buffers: what this rank got, in pairs. */
  async collectives(): Promise<(readonly [string, WireBuffer, WireBuffer])[]> {
    const { backend } = currentWorld().group;
    const { rank, worldSize } = backend;
    const own = filled('float32', COUNT, worldSize, rank);
    const all = filled('float32', COUNT * worldSize, worldSize, rank);
    const isRoot = rank === 1;
    const programs: Record<
      string,
      (load: (data: HostBuffer) => Promise<HostBuffer | DeviceBuffer>) => Promise<HostBuffer | DeviceBuffer>
    > = {
      async allReduce(load) {
        const data = await load(own);
        await backend.allReduce(data, 'Sum');
        return data;
      },
      async broadcast(load) {
        const data = await load(own);
        await backend.broadcast(data, 1);
        return data;
      },
      async reduce(load) {
        const recv = await load(untouched('float32', COUNT));
        await backend.reduce(await load(own), isRoot ? recv : undefined, 1, 'Max');
        return recv;
      },
      async allGather(load) {
        const recv = await load(untouched('float32', COUNT * worldSize));
        await backend.allGather(await load(own), recv);
        return recv;
      },
      async unequalAllGather(load) {
        const counts = Array.from({ length: worldSize }, (_unused, each) => each + 1);
        const recv = await load(
          untouched(
            'float32',
            counts.reduce((a, b) => a + b),
          ),
        );
        await backend.allGather(await load(viewBuffer(own, 0, rank + 1)), recv, { counts });
        return recv;
      },
      async reduceScatter(load) {
        const recv = await load(untouched('float32', COUNT));
        await backend.reduceScatter(await load(all), recv, 'Sum');
        return recv;
      },
      async gather(load) {
        const recv = await load(untouched('float32', COUNT * worldSize));
        await backend.gather(await load(own), isRoot ? recv : undefined, 1);
        return recv;
      },
      async scatter(load) {
        const recv = await load(untouched('float32', COUNT));
        await backend.scatter(isRoot ? await load(all) : undefined, recv, 1);
        return recv;
      },
      async allToAll(load) {
        // the buffers are longer than what the counts take
        const counts = new Array<number>(worldSize).fill(COUNT - 1);
        const recv = await load(untouched('float32', COUNT * worldSize));
        await backend.allToAll(await load(all), recv, { sendCounts: counts, recvCounts: counts });
        return recv;
      },
      async batch(load) {
        const recv = await load(untouched('float32', COUNT));
        await backend.batch([
          { op: 'send', data: await load(own), peer: (rank + 1) % worldSize },
          { op: 'recv', data: recv, peer: (rank + worldSize - 1) % worldSize },
        ]);
        return recv;
      },
    };
    const results: (readonly [string, WireBuffer, WireBuffer])[] = [];
    for (const [name, run] of Object.entries(programs)) {
      const onHost = await run((data) => Promise.resolve(data.slice() as HostBuffer));
      const onDevice = await run(uploaded);
      results.push([
        name,
        toWireBuffer(onHost as HostBuffer),
        toWireBuffer(await downloaded(onDevice as DeviceBuffer)),
      ]);
    }
    return results;
  },

  /** Many steps of copies, updates and reductions that nobody awaits one by one, on few buffers: the order alone makes them right. */
  async pipeline({ steps }: { readonly steps: number }): Promise<number[]> {
    const { backend } = currentWorld().group;
    const device = ownDevice();
    // on two ranks: before the average nobody has the right one
    const gradient = await uploaded(Float32Array.of(1, 2, 3, 4).map((value) => 2 * value * backend.rank));
    const parameter = await uploaded(new Float32Array(4));
    const copy = device.allocate('float32', 4);
    const works = Array.from({ length: steps }, () => {
      device.copy(gradient, copy);
      const work = backend.allReduce(copy, 'Average');
      const update = {
        kind: 'sgd',
        lr: 0.5,
        momentum: 0,
        taken: 1,
        weightDecay: 0,
        nesterov: false,
        gradientScale: 1,
      } as const;
      device.update(update, { parameter, gradient: copy, state: {} });
      return work;
    });
    for (const work of works) await work;
    return [...(await downloaded(parameter))] as number[];
  },

  /** What each call gave, or its error. */
  async randomProgram(program: NcclProgram): Promise<string[]> {
    const outcomes = await runNcclProgram(currentWorld().group.backend, program, { device: ownDevice() });
    return outcomes.map(({ title, bytes, error }) => `${title}: ${error?.stack ?? bytes ?? ''}`);
  },

  /** One all-reduce of host memory, after taking as many MiB of the device as there are. */
  async reduce({
    count,
    timeoutMs,
    hoard = 0,
  }: {
    readonly count: number;
    readonly timeoutMs?: number;
    readonly hoard?: number;
  }): Promise<{ readonly ending: Ending }> {
    for (let mebibytes = hoard; mebibytes >= 1;) {
      try {
        ownDevice().allocate('uint8', mebibytes * 2 ** 20);
      } catch {
        mebibytes /= 2; // full; all but the last MiB
      }
    }
    return {
      ending: await endingOf(currentWorld().group.backend.allReduce(new Float32Array(count), 'Sum', { timeoutMs })),
    };
  },
};
