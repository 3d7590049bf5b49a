/** From one rank to another. See [Note: comm] for what these have in common with the collectives. */
import { InvalidArgumentError } from '../core/errors';
import type { CallOptions } from '../backend/backend';
import type { Work } from '../core/work';
import type { ProcessGroup } from '../process-group/process-group';
import type { Tensor } from '../tensor/tensor';
import { launchOn } from './group-argument';

export interface PointToPointOptions extends CallOptions {
  /** Messages of one tag arrive in the order in which they were sent; default 0. */
  readonly tag?: number | undefined;
}

/** Send `tensor` to rank `dst` of the group; settles once it has been received. */
export function sendTensor(tensor: Tensor, dst: number, group: ProcessGroup, options: PointToPointOptions = {}): Work {
  return launchOn(group, 'sendTensor', () => {
    const { tag, ...callOptions } = checkOptions(options, 'sendTensor');
    return group.send(tensor, dst, tag, callOptions);
  });
}

/** Receive into `tensor` what rank `src` of the group sends with this tag; sizes and dtypes must agree. */
export function recvTensor(tensor: Tensor, src: number, group: ProcessGroup, options: PointToPointOptions = {}): Work {
  return launchOn(group, 'recvTensor', () => {
    const { tag, ...callOptions } = checkOptions(options, 'recvTensor');
    return group.recv(tensor, src, tag, callOptions);
  });
}

/** A tag passed as a bare number would be ignored, and meet another message. */
function checkOptions(options: PointToPointOptions, op: string): PointToPointOptions {
  if (typeof options === 'object' && options !== null) return options;
  throw new InvalidArgumentError(`${op}: expected options { tag, timeoutMs }, got ${String(options)}.`, { op });
}
