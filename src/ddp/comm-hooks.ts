/** How a bucket is averaged: the default, and hooks that send fewer bits. */
import { copyBuffer, type DType, type HostBuffer } from '../core/dtype';
import { narrowToBFloat16, narrowToFloat16, widenBFloat16, widenFloat16 } from '../core/half';
import { BFloat16Buffer, Float16Buffer } from '../core/half-buffer';
import { ReduceOp } from '../core/reduce-op';
import type { Parameter } from '../nn/parameter';
import type { ProcessGroup } from '../process-group/process-group';
import { noGrad } from '../tensor/gradient-mode';
import { Tensor } from '../tensor/tensor';

/** A bucket as a comm hook sees it. */
export interface HookBucket {
  /** Number of the bucket, in launch order. */
  readonly index: number;
  /** True for the last bucket of a backward pass. */
  readonly isLast: boolean;
  readonly dtype: DType;
  /** This rank's gradients, flat, and where the result belongs: [numElements]. */
  readonly tensor: Tensor;
  /** The memory of `tensor`. */
  readonly data: HostBuffer;
  /** Whose gradients these are, in the order in which they lie in `data`. */
  readonly parameters: readonly Parameter[];
  /** Whose gradients these are, by name: pass it to collectives, so that ranks compare it and messages show it. */
  readonly label: string;
}

/**
 * Average `bucket.data` over `group`, in place, dividing by the size itself; settles when the result is there.
 *
 * Called on every rank in the same order, so it must make the same collectives everywhere. Several buckets are in
 * flight together: keep what you need between calls by `bucket.index`. A rejection ends the step on every rank.
 */
export type CommHook = (bucket: HookBucket, group: ProcessGroup) => PromiseLike<void>;

/** The default: one all-reduce in the gradients' own dtype. */
export const allReduceHook: CommHook = (bucket, group) =>
  group.allReduce(bucket.tensor, ReduceOp.Average, { label: bucket.label });

/** Divide the sum over the group by `divisor` instead of the group's size: ranks without input count for nothing. */
export function averageOver(divisor: number): CommHook {
  return async (bucket, group) => {
    await group.allReduce(bucket.tensor, ReduceOp.Sum, { label: bucket.label });
    const average = noGrad(() => bucket.tensor.div(divisor));
    copyBuffer(bucket.data, average.storage.buffer);
    average.dispose();
  };
}

/**
 * Send float32 gradients as bfloat16: half the bytes, the same range, 8 bits of precision.
 * Every rank's gradient is rounded once, the sum is kept in float32 and rounded once more. Other dtypes go unchanged.
 */
export const bf16CompressHook: CommHook = (bucket, group) =>
  compressed(bucket, group, {
    narrow: (source) => {
      const half = new BFloat16Buffer(source.length);
      narrowToBFloat16(source, half);
      return half;
    },
    widen: widenBFloat16,
  });

/**
 * Send float32 gradients as float16: half the bytes, 11 bits of precision, but only up to 65504: scale the loss.
 * Every rank's gradient is rounded once, the sum is kept in float32 and rounded once more. Other dtypes go unchanged.
 */
export const fp16CompressHook: CommHook = (bucket, group) =>
  compressed(bucket, group, {
    narrow: (source) => {
      const half = new Float16Buffer(source.length);
      narrowToFloat16(source, half);
      return half;
    },
    widen: widenFloat16,
  });

interface HalfFormat {
  readonly narrow: (source: Float32Array) => Float16Buffer | BFloat16Buffer;
  readonly widen: (source: Uint16Array, target: Float32Array) => void;
}

async function compressed(bucket: HookBucket, group: ProcessGroup, format: HalfFormat): Promise<void> {
  if (bucket.dtype !== 'float32') return allReduceHook(bucket, group);
  const gradients = bucket.data as Float32Array;
  const half = format.narrow(gradients);
  await group.allReduce(Tensor.wrap(half), ReduceOp.Average, { label: bucket.label });
  format.widen(half, gradients);
}
