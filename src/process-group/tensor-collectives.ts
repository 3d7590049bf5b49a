/** The collectives on tensors: their checks, shapes and memory. The arithmetic is the backend's. */
import type { CallOptions, P2pOp } from '../backend/backend';
import { allocateBuffer, type DType, type HostBuffer } from '../core/dtype';
import { InvalidArgumentError, asError } from '../core/errors';
import type { ReduceOp } from '../core/reduce-op';
import type { Work } from '../core/work';
import { describeTensor } from '../tensor/describe';
import { isGradEnabled } from '../tensor/gradient-mode';
import { sizeOf, type Shape } from '../tensor/shape';
import { Tensor } from '../tensor/tensor';
import { contextOf, describePlace, invalidArgument, type CallPlace } from './call-place';
import { equalPart } from './equal-parts';
import type { GroupChannel } from './group-channel';
import { checkRoot } from './member-list';
import { broadcastObject } from './object-collectives';

/** The memory of `tensor`, in which collectives work. @throws InvalidArgumentError for a tensor that they do not take */
export function bufferForCall(tensor: Tensor, place: CallPlace): HostBuffer {
  if (!(tensor instanceof Tensor)) {
    const got =
      tensor === null || tensor === undefined ? String(tensor) : Object.prototype.toString.call(tensor).slice(8, -1);
    throw invalidArgument(
      place,
      `expected a Tensor, got ${got}. Make one with Tensor.from(values), or Tensor.wrap(array) without a copy`,
    );
  }
  if (tensor.requiresGrad && isGradEnabled()) {
    throw invalidArgument(
      place,
      `${describeTensor(tensor)} requires grad, and no gradient flows through a collective. Call it inside noGrad(), or pass tensor.detach()`,
    );
  }
  return tensor.storage.buffer;
}

/** The same for a call that writes into the tensor: a backward that has saved its old values must not use the new ones. */
function bufferToChange(tensor: Tensor, place: CallPlace): HostBuffer {
  const buffer = bufferForCall(tensor, place);
  if (place.size > 1) tensor.storage.markChanged();
  return buffer;
}

/** The ranks' tensors must have one shape, not just as many elements: it is part of what the backend compares. */
function withShape(tensor: Tensor, options: CallOptions): CallOptions {
  return tensor.shape.length > 1 ? { ...options, shape: tensor.shape } : options;
}

export function allReduce(channel: GroupChannel, tensor: Tensor, op: ReduceOp, options: CallOptions): Work {
  return channel.launch('allReduce', () => {
    const data = bufferToChange(tensor, channel.place('allReduce'));
    return channel.watch(
      { op: 'allReduce', dtype: tensor.dtype, counts: data.length },
      channel.backend.allReduce(data, op, withShape(tensor, options)),
    );
  });
}

export function broadcast(channel: GroupChannel, tensor: Tensor, src: number, options: CallOptions): Work {
  return channel.launch('broadcast', () => {
    const place = channel.place('broadcast');
    const data = channel.rank === src ? bufferForCall(tensor, place) : bufferToChange(tensor, place);
    return channel.watch(
      { op: 'broadcast', dtype: tensor.dtype, counts: data.length, root: src },
      channel.backend.broadcast(data, src, withShape(tensor, options)),
    );
  });
}

export function reduce(channel: GroupChannel, tensor: Tensor, dst: number, op: ReduceOp, options: CallOptions): Work {
  return channel.launch('reduce', () => {
    const place = channel.place('reduce');
    const data = channel.rank === dst ? bufferToChange(tensor, place) : bufferForCall(tensor, place);
    const result = channel.rank === dst ? data : undefined;
    return channel.watch(
      { op: 'reduce', dtype: tensor.dtype, counts: data.length, root: dst },
      channel.backend.reduce(data, result, dst, op, withShape(tensor, options)),
    );
  });
}

export async function allGather(channel: GroupChannel, tensor: Tensor, options: CallOptions): Promise<Tensor> {
  const send = bufferForCall(tensor, channel.place('allGather'));
  const recv = allocateBuffer(tensor.dtype, channel.size * send.length);
  const call = { op: 'allGather', dtype: tensor.dtype, counts: send.length } as const;
  await channel.launch(call.op, () =>
    channel.watch(call, channel.backend.allGather(send, recv, withShape(tensor, options))),
  );
  return Tensor.wrap(recv, [channel.size, ...tensor.shape]);
}

export function allGatherInto(channel: GroupChannel, output: Tensor, input: Tensor, options: CallOptions): Work {
  return channel.launch('allGather', () => {
    const place = channel.place('allGather');
    const send = bufferForCall(input, place);
    const call = { op: 'allGather', dtype: input.dtype, counts: send.length } as const;
    return channel.watch(call, channel.backend.allGather(send, bufferToChange(output, place), options));
  });
}

export function reduceScatterInto(
  channel: GroupChannel,
  output: Tensor,
  input: Tensor,
  op: ReduceOp,
  options: CallOptions,
): Work {
  return channel.launch('reduceScatter', () => {
    const place = channel.place('reduceScatter');
    const recv = bufferToChange(output, place);
    const call = { op: 'reduceScatter', dtype: input.dtype, counts: recv.length } as const;
    return channel.watch(call, channel.backend.reduceScatter(bufferForCall(input, place), recv, op, options));
  });
}

export async function reduceScatter(
  channel: GroupChannel,
  tensor: Tensor,
  op: ReduceOp,
  options: CallOptions,
): Promise<Tensor> {
  const place = channel.place('reduceScatter');
  const send = bufferForCall(tensor, place);
  const shape = shapeOfPart(tensor.shape, place);
  const recv = allocateBuffer(tensor.dtype, sizeOf(shape));
  const call = { op: 'reduceScatter', dtype: tensor.dtype, counts: recv.length } as const;
  await channel.launch(call.op, () =>
    channel.watch(call, channel.backend.reduceScatter(send, recv, op, withShape(tensor, options))),
  );
  return Tensor.wrap(recv, shape);
}

export async function gather(
  channel: GroupChannel,
  tensor: Tensor,
  dst: number,
  options: CallOptions,
): Promise<Tensor | undefined> {
  const send = bufferForCall(tensor, channel.place('gather'));
  const recv = channel.rank === dst ? allocateBuffer(tensor.dtype, channel.size * send.length) : undefined;
  const call = { op: 'gather', dtype: tensor.dtype, counts: send.length, root: dst } as const;
  await channel.launch(call.op, () =>
    channel.watch(call, channel.backend.gather(send, recv, dst, withShape(tensor, options))),
  );
  return recv === undefined ? undefined : Tensor.wrap(recv, [channel.size, ...tensor.shape]);
}

/** What the source of a scatter tells the others first: what they will get, or why they will get nothing. */
type Announcement = { readonly shape: Shape; readonly dtype: DType } | { readonly problem: string };

/** Takes several collectives: [Note: calls in steps]. */
export async function scatter(
  channel: GroupChannel,
  tensor: Tensor | undefined,
  src: number,
  options: CallOptions,
): Promise<Tensor> {
  const place = channel.place('scatter');
  checkRoot(src, 'src', place);
  const parts = channel.rank === src ? prepareParts(tensor, place) : undefined;
  const announced = (await broadcastObject(channel, parts?.announcement, src, options)) as Announcement;
  if (parts?.error !== undefined) throw parts.error;
  if ('problem' in announced) {
    throw new InvalidArgumentError(
      `${describePlace(place)}: the source, ${place.members.name(src)}, has nothing to scatter: ${announced.problem}`,
      { ...contextOf(place), ...place.members.blame([src]) },
    );
  }
  const recv = allocateBuffer(announced.dtype, sizeOf(announced.shape));
  const work = channel.backend.scatter(parts?.send, recv, src, options);
  await channel.watch({ op: 'scatter', dtype: announced.dtype, counts: recv.length, root: src }, work);
  return Tensor.wrap(recv, announced.shape);
}

interface Parts {
  readonly announcement: Announcement;
  readonly send?: HostBuffer;
  /** The source's own mistake: it is announced first, so that nobody waits for the parts, and thrown then. */
  readonly error?: Error;
}

function prepareParts(tensor: Tensor | undefined, place: CallPlace): Parts {
  try {
    const send = bufferForCall(tensor as Tensor, place);
    const { shape, dtype } = tensor as Tensor;
    return { announcement: { shape: shapeOfPart(shape, place), dtype }, send };
  } catch (thrown) {
    const error = asError(thrown);
    return { announcement: { problem: error.message }, error };
  }
}

export async function allToAll(channel: GroupChannel, tensor: Tensor, options: CallOptions): Promise<Tensor> {
  const place = channel.place('allToAll');
  const send = bufferForCall(tensor, place);
  shapeOfPart(tensor.shape, place);
  const recv = allocateBuffer(tensor.dtype, send.length);
  const sendCounts = new Array<number>(channel.size).fill(send.length / channel.size);
  const call = { op: 'allToAll', dtype: tensor.dtype, sendCounts } as const;
  await channel.launch(call.op, () =>
    channel.watch(call, channel.backend.allToAll(send, recv, withShape(tensor, options))),
  );
  return Tensor.wrap(recv, tensor.shape);
}

export function send(channel: GroupChannel, tensor: Tensor, dst: number, tag: number, options: CallOptions): Work {
  return channel.launchNow('send', () => {
    const data = bufferForCall(tensor, channel.place('send'));
    return channel.watchPointToPoint('send', () => data.byteLength, channel.backend.send(data, dst, tag, options));
  });
}

export function recv(channel: GroupChannel, tensor: Tensor, src: number, tag: number, options: CallOptions): Work {
  return channel.launchNow('recv', () => {
    const data = bufferToChange(tensor, channel.place('recv'));
    return channel.watchPointToPoint('recv', () => 0, channel.backend.recv(data, src, tag, options));
  });
}

/** One part of a batch on tensors (or, as for a backend, on their buffers). */
export interface TensorP2pOp extends Omit<P2pOp, 'data'> {
  readonly data: Tensor | HostBuffer;
}

export function batch(channel: GroupChannel, ops: readonly TensorP2pOp[], options: CallOptions): Work {
  return channel.launchNow('batch', () => {
    const place = channel.place('batch');
    if (!Array.isArray(ops)) throw invalidArgument(place, 'expected a list of { op, data, peer, tag? }');
    const plain = (ops as readonly TensorP2pOp[]).map((part): P2pOp => {
      // What is no part at all is left to the backend's checks.
      if (!(part?.data instanceof Tensor)) return part as P2pOp;
      const buffer = part.op === 'recv' ? bufferToChange(part.data, place) : bufferForCall(part.data, place);
      return { ...part, data: buffer };
    });
    const countSent = (): number =>
      plain.reduce((total, { op, data }) => (op === 'send' ? total + data.byteLength : total), 0);
    return channel.watchPointToPoint('batch', countSent, channel.backend.batch(plain, options));
  });
}

/** The shape of one rank's part of a tensor that is cut along dimension 0. */
function shapeOfPart(shape: Shape, place: CallPlace): Shape {
  return [equalPart(shape, 0, place), ...shape.slice(1)];
}
