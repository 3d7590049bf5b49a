/** The argument checks of sends and receives, shared by all backends: see check-collective.ts. */
import { dtypeOf, type DataBuffer, type HostBuffer } from '../core/dtype';
import { InvalidArgumentError } from '../core/errors';
import type { CallOptions, P2pOp } from './backend';
import type { PointToPointCall } from './call';
import {
  CALL_OPTIONS,
  checkBuffer,
  checkOptions,
  checkRank,
  describeArgument,
  overlapStart,
  type Caller,
} from './check-arguments';

/** A send, receive or batch whose arguments are good; see [Note: checked buffers]. */
export interface CheckedPointToPoint<Buffer extends DataBuffer = HostBuffer> {
  readonly parts: readonly { readonly call: PointToPointCall; readonly data: Buffer }[];
  readonly timeoutMs: number;
}

export function checkPointToPoint(
  caller: Caller,
  op: 'send' | 'recv',
  data: DataBuffer,
  peer: number,
  tag: number | undefined,
  options?: CallOptions,
): CheckedPointToPoint {
  const timeoutMs = checkOptions(caller, options, CALL_OPTIONS);
  return { parts: [checkPart(caller, op, data, peer, tag, op === 'send' ? 'dst' : 'src')], timeoutMs };
}

export function checkBatch(caller: Caller, ops: readonly P2pOp[], options?: CallOptions): CheckedPointToPoint {
  const timeoutMs = checkOptions(caller, options, CALL_OPTIONS);
  if (!Array.isArray(ops)) {
    throw new InvalidArgumentError(`ops: expected a list of { op, data, peer, tag? }, got ${describeArgument(ops)}.`);
  }
  const parts = (ops as readonly P2pOp[]).map((part, index) => {
    const place = `ops[${index}]`;
    if (typeof part !== 'object' || part === null || (part.op !== 'send' && part.op !== 'recv')) {
      const got =
        typeof part === 'object' && part !== null ? `op ${describeArgument(part.op)}` : describeArgument(part);
      throw new InvalidArgumentError(`${place}: expected { op: 'send' | 'recv', data, peer, tag? }, got ${got}.`);
    }
    return checkPart(caller, part.op, part.data, part.peer, part.tag, `${place}.peer`, place);
  });
  refuseOverlap(parts);
  return { parts, timeoutMs };
}

/** The parts of a batch run in any order, so what one receives into must not be part of another. */
function refuseOverlap(parts: CheckedPointToPoint['parts']): void {
  for (const [index, { call, data }] of parts.entries()) {
    const other = parts.findIndex((part, at) => at !== index && overlapStart(part.data, data) !== undefined);
    if (call.op === 'recv' && other >= 0) {
      throw new InvalidArgumentError(
        `ops[${index}].data shares memory with ops[${other}].data. The parts of a batch run in any order: give each its own buffer.`,
      );
    }
  }
}

function checkPart(
  caller: Caller,
  op: 'send' | 'recv',
  data: DataBuffer,
  peer: number,
  tag: number | undefined,
  peerName: string,
  place?: string,
): CheckedPointToPoint['parts'][number] {
  const prefix = place === undefined ? '' : `${place}.`;
  checkBuffer(caller, data, `${prefix}data`);
  const dtype = dtypeOf(data);
  checkRank(caller, peer, peerName);
  if (peer === caller.rank) {
    throw new InvalidArgumentError(
      `${peerName}: rank ${peer} is this rank itself; a rank cannot ${op === 'send' ? 'send to' : 'receive from'} itself. Copy the buffer instead.`,
    );
  }
  const checkedTag = tag ?? 0;
  if (!Number.isSafeInteger(checkedTag) || checkedTag < 0) {
    throw new InvalidArgumentError(`${prefix}tag: expected a whole number from 0, got ${describeArgument(tag)}.`);
  }
  return { call: { op, dtype, count: data.length, peer, tag: checkedTag }, data };
}
