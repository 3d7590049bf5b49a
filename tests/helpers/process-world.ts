/** The world of a rank process: opened, used and closed by tasks. */
import { World } from '../../src/process-group/world';
import type { WorldOptions } from '../../src/process-group/world-options';

/** Everything that a rank process is told about its job. */
export interface JobPlace {
  readonly rank: number;
  readonly worldSize: number;
  readonly masterPort: number;
  readonly masterAddr?: string | undefined;
  /** Default grpc. */
  readonly backend?: string | undefined;
  readonly dataPlane?: 'auto' | 'grpc' | 'socket' | undefined;
  readonly timeoutMs?: number | undefined;
  readonly joinTimeoutMs?: number | undefined;
  readonly token?: string | undefined;
  readonly generation?: number | undefined;
  readonly deterministic?: boolean | undefined;
  readonly tls?: WorldOptions['tls'];
}

let current: World | undefined;

/** The world that `open` made. */
export function currentWorld(): World {
  if (current === undefined) throw new Error('this process has no world');
  return current;
}

export const worldTasks = {
  async open({ masterAddr = '127.0.0.1', backend = 'grpc', ...place }: JobPlace): Promise<void> {
    await worldTasks.close(); // that of a test that failed
    current = await World.init({ backend, masterAddr, ...place });
  },

  async close(): Promise<void> {
    const world = current;
    current = undefined;
    await world?.close();
  },
};
