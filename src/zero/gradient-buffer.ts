import { allocateBuffer, byteSize, bytesOf, copyBuffer } from '../core/dtype';
import type { MemoryCategory } from '../core/memory-account';
import type { ScratchPool } from '../core/scratch-pool';
import { convertBuffer } from '../tensor/operators/cast';
import { Storage } from '../tensor/storage';
import { Tensor } from '../tensor/tensor';
import { keep } from '../tensor/tidy';
import { flatTensor, type FlatUnit } from './flat-unit';
import { paddedSize } from './shard-plan';

/** The flat buffer in which a unit's gradients meet, laid out as its parameters are. */
export class GradientBuffer {
  /** [numParts * partSize]; the padding is zeros. */
  readonly tensor: Tensor;
  /** Each slot's part of it, in the parameter's shape. */
  readonly views: readonly Tensor[];
  /** This rank's part. */
  readonly part: Tensor;
  readonly #pool: ScratchPool | undefined;

  /** @param pool where the memory comes from and goes to, with undefined contents; else it is new, and zeros */
  constructor({ plan, members, partIndex }: FlatUnit, category: MemoryCategory, pool?: ScratchPool) {
    this.#pool = pool;
    const size = paddedSize(plan);
    const buffer = pool === undefined ? allocateBuffer(plan.dtype, size) : pool.take(plan.dtype, size);
    bytesOf(buffer).fill(0, plan.numElements * byteSize(plan.dtype));
    const storage = Storage.of(buffer, category);
    this.tensor = flatTensor(storage);
    this.part = flatTensor(storage.view(partIndex * plan.partSize, plan.partSize));
    this.views = plan.slots.map(({ offset, numElements }, slot) => {
      const shape = members[slot]?.parameter.shape ?? [numElements];
      return keep(new Tensor({ storage: storage.view(offset, numElements), shape }));
    });
  }

  /** Put a gradient in its slot; none is zeros, and a float32 sum of 16-bit gradients is rounded, once. */
  write(slot: number, gradient: Tensor | undefined): void {
    const { buffer, dtype } = (this.views[slot] as Tensor).storage;
    if (gradient === undefined) bytesOf(buffer).fill(0);
    else
      copyBuffer(buffer, dtype === gradient.dtype ? gradient.storage.buffer : convertBuffer(gradient.storage, dtype));
  }

  /** Let go of the memory. With a pool, nobody else may use it any more. */
  release(): void {
    const { buffer } = this.tensor.storage;
    for (const tensor of [...this.views, this.part, this.tensor]) tensor.dispose();
    this.#pool?.release(buffer);
  }
}
