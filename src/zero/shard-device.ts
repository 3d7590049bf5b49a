/** Where shards are kept: the choice, and what it asks of optimizer, module and backend. */
import type { Backend } from '../backend/backend';
import { UnsupportedError } from '../core/errors';
import { invariant } from '../core/invariant';
import type { AnyModule } from '../nn/any-module';
import type { Optimizer } from '../optim/optimizer';
import type { Tensor } from '../tensor/tensor';
import { DeviceShards } from './device-shards';
import { HostShards } from './host-shards';
import type { ShardUpdater } from './shard-updater';
import type { ZeroSettings } from './zero-options';

const STAY = "or leave shardDevice at 'cpu'";

/** @throws UnsupportedError unless the backend has a device, and the optimizer steps that the device can take */
export function checkShardDevice(
  inner: Optimizer,
  model: AnyModule,
  { shardDevice }: ZeroSettings,
  backend: Backend,
): void {
  if (shardDevice === 'cpu') return;
  if (backend.device === undefined) {
    refuse(`the backend '${backend.name}' has no device. Use backend 'nccl', ${STAY}`);
  }
  checkRule(inner);
  const wide = inner.parameters.find(({ dtype, requiresGrad }) => dtype === 'float64' && requiresGrad);
  if (wide === undefined) return;
  const name = model.namedParameters().find(([, parameter]) => (parameter as Tensor) === wide)?.[0];
  refuse(`parameter '${name}' is float64, and kernels compute in float32. Convert it with .to('float32'), ${STAY}`);
}

/** @param settings that `checkShardDevice` has accepted */
export function openShards({ shardDevice }: ZeroSettings, { device }: Backend): ShardUpdater {
  if (shardDevice === 'cpu') return new HostShards();
  invariant(device !== undefined, 'the backend has a device');
  return new DeviceShards(device);
}

function checkRule(inner: Optimizer): void {
  const { name } = inner.constructor;
  const flatUpdate = inner.flatUpdate?.bind(inner);
  if (flatUpdate === undefined) {
    refuse(
      `${name} does not say its update in numbers that a kernel takes. Give it a flatUpdate, use SGD, Adam or AdamW, ${STAY}`,
    );
  }
  const depth = depthOf(inner, 'flatUpdate');
  const changed = (['update', 'stateNames'] as const).find((method) => depthOf(inner, method) < depth);
  if (changed !== undefined) {
    refuse(
      `${name} has an ${changed} of its own and inherits flatUpdate, which describes another. Give it a flatUpdate too, ${STAY}`,
    );
  }
  const group = inner.paramGroups.findIndex((_group, index) => flatUpdate(inner.settingsOf(index), 1) === undefined);
  if (group < 0) return;
  refuse(`flatUpdate of ${name} gives undefined for the settings of paramGroups[${group}]. Change them, ${STAY}`);
}

/** How far up the prototypes a method is found; 0 for the object's own. */
function depthOf(object: object, method: string): number {
  let depth = 0;
  for (let at: unknown = object; at !== null; at = Object.getPrototypeOf(at)) {
    if (Object.hasOwn(at as object, method)) return depth;
    depth++;
  }
  return Infinity;
}

function refuse(message: string): never {
  throw new UnsupportedError(`zeroWrap: shardDevice 'cuda': ${message}.`, { op: 'zeroWrap' });
}
