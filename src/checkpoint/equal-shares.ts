import { byteSize, viewBuffer } from '../core/dtype';
import type { TensorPart } from '../strategy/state-parts';

/**
 * What rank `rank` of `size` writes of tensors that every rank holds whole: a share of about equal bytes, cut within a
 * tensor where need be. All shares together are all tensors, each element once; tensors without elements go to rank 0.
 */
export function equalShare(tensors: readonly TensorPart[], rank: number, size: number): TensorPart[] {
  const total = tensors.reduce((bytes, { buffer }) => bytes + buffer.byteLength, 0);
  const from = Math.floor((total * rank) / size);
  const to = Math.floor((total * (rank + 1)) / size);
  const share: TensorPart[] = [];
  let first = 0;
  for (const tensor of tensors) {
    const { buffer, dtype } = tensor;
    const elementAt = (byte: number): number => {
      return Math.min(buffer.length, Math.max(0, Math.ceil((byte - first) / byteSize(dtype))));
    };
    const [start, end] = [elementAt(from), elementAt(to)];
    first += buffer.byteLength;
    if (buffer.length === 0 && rank === 0) share.push(tensor);
    if (end > start) share.push({ ...tensor, start, buffer: viewBuffer(buffer, start, end - start) });
  }
  return share;
}
