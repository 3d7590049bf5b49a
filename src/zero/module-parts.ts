import { allocateBuffer, copyBuffer } from '../core/dtype';
import type { AnyModule } from '../nn/any-module';
import type { ProcessGroup } from '../process-group/process-group';
import { findSources } from '../strategy/saved-model';
import type { PartedState, StateParts, StateReader, TensorPart } from '../strategy/state-parts';
import type { Tensor } from '../tensor/tensor';
import type { FlatUnit, NamedParameter } from './flat-unit';

/** The parameters and buffers of a module of stage 3, of which each rank holds parts. Nothing is gathered to save them. */
export class ModuleParts implements PartedState {
  readonly #module: AnyModule;
  readonly #flats: readonly FlatUnit[];
  readonly #group: ProcessGroup;

  constructor(module: AnyModule, flats: readonly FlatUnit[], group: ProcessGroup) {
    this.#module = module;
    this.#flats = flats;
    this.#group = group;
  }

  /** Each rank writes its parts; rank 0 also what is on all ranks, and parameters without elements. */
  async stateParts(): Promise<StateParts> {
    for (const flat of this.#flats) if (flat.isWhole) flat.adopt(); // withFullParameters may be changing it
    const pieces = this.#flats.flatMap((flat) =>
      flat.pieces.map((piece): TensorPart => {
        const { name, parameter } = flat.members[piece.slot] as NamedParameter;
        const { shape } = parameter;
        return { name, shape, dtype: flat.dtype, start: piece.start, buffer: flat.elementsOf(piece).buffer };
      }),
    );
    if (this.#group.rank > 0) return { tensors: pieces, values: {} };
    const empty = this.#flats.flatMap((flat) =>
      flat.members.filter(({ parameter }) => parameter.size === 0).map(emptyPart),
    );
    return { tensors: [...pieces, ...empty, ...this.#replicated().map(wholePart)], values: {} };
  }

  async prepareStateParts(reader: StateReader): Promise<() => void> {
    const sources = findSources(this.#module, reader);
    const changes: (() => void)[] = [];
    for (const flat of this.#flats) {
      for (const [slot, { name, parameter }] of flat.members.entries()) {
        const run = flat.isWhole ? { start: 0, length: parameter.size } : flat.pieceOf(slot);
        if (run === undefined) continue;
        const values = await reader.read(sources.get(parameter) ?? name, run.start, run.length, flat.dtype);
        changes.push(() => flat.store(slot, values, run.start));
      }
      changes.push(() => flat.markChanged());
    }
    for (const [name, tensor] of this.#replicated()) {
      const values = await reader.read(sources.get(tensor) ?? name, 0, tensor.size, tensor.dtype);
      changes.push(() => {
        copyBuffer(tensor.storage.buffer, values);
        tensor.storage.markChanged();
      });
    }
    return () => changes.forEach((change) => change());
  }

  /** What is on every rank: parameters in no unit, and buffers. */
  #replicated(): (readonly [name: string, tensor: Tensor])[] {
    const owned = new Set<Tensor>(this.#flats.flatMap(({ members }) => members.map(({ parameter }) => parameter)));
    const parameters = this.#module.namedParameters().filter(([, parameter]) => !owned.has(parameter));
    return [...parameters, ...this.#module.namedBuffers({ persistentOnly: true })];
  }
}

function wholePart([name, tensor]: readonly [string, Tensor]): TensorPart {
  return { name, shape: tensor.shape, dtype: tensor.dtype, start: 0, buffer: tensor.storage.buffer };
}

function emptyPart({ name, parameter: { shape, dtype } }: NamedParameter): TensorPart {
  return { name, shape, dtype, start: 0, buffer: allocateBuffer(dtype, 0) };
}
