/** The state of a module that every rank holds whole: a plain one, or one under DistributedDataParallel. */
import { copyBuffer } from '../core/dtype';
import type { AnyModule } from '../nn/any-module';
import type { ProcessGroup } from '../process-group/process-group';
import { findSources } from '../strategy/saved-model';
import type { PartedState, StateParts, StateReader, TensorPart } from '../strategy/state-parts';
import type { Tensor } from '../tensor/tensor';
import { equalShare } from './equal-shares';

export class WholeModel implements PartedState {
  readonly #module: AnyModule;
  readonly #group: ProcessGroup;

  constructor(module: AnyModule, group: ProcessGroup) {
    this.#module = module;
    this.#group = group;
  }

  /**
   * The ranks share the writing of parameters by bytes. Buffers, in which ranks may differ between two forwards, are rank
   * 0's, as DDP has it too.
   */
  async stateParts(): Promise<StateParts> {
    const { rank, size } = this.#group;
    const replicas = this.#module.namedParameters().map(wholePart);
    const buffers = rank === 0 ? this.#module.namedBuffers({ persistentOnly: true }).map(wholePart) : [];
    return { tensors: [...equalShare(replicas, rank, size), ...buffers], replicas, values: {} };
  }

  async prepareStateParts(reader: StateReader): Promise<() => void> {
    const sources = findSources(this.#module, reader);
    const changes: (() => void)[] = [];
    for (const [target, name] of sources) {
      const { storage } = target;
      const { buffer } = storage; // throws, naming it, where another rank holds the memory
      const values = await reader.read(name, 0, target.size, target.dtype);
      changes.push(() => {
        copyBuffer(buffer, values);
        storage.markChanged();
      });
    }
    return () => changes.forEach((change) => change());
  }
}

function wholePart([name, tensor]: readonly [string, Tensor]): TensorPart {
  return { name, shape: tensor.shape, dtype: tensor.dtype, start: 0, buffer: tensor.storage.buffer };
}
