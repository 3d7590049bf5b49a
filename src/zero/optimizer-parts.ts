/** A ZeroOptimizer's state, in parts and whole. */
import { copyBuffer, dtypeOf, viewBuffer } from '../core/dtype';
import { MASTER } from '../optim/master-copy';
import type { Optimizer } from '../optim/optimizer';
import type { OptimizerState, SavedParameterState } from '../optim/optimizer-state';
import { stateDTypeOf, type ParameterState } from '../optim/parameter-state';
import type { ProcessGroup } from '../process-group/process-group';
import { optimizerValues, parseOptimizerValues, savedBuffers } from '../strategy/optimizer-values';
import type { JsonValue, PartedState, StateParts, StateReader, TensorPart } from '../strategy/state-parts';
import { noGrad } from '../tensor/gradient-mode';
import { Storage, withMemoryCategory } from '../tensor/storage';
import { Tensor } from '../tensor/tensor';
import { keep } from '../tensor/tidy';
import type { BoundaryScale } from './boundary-scale';
import { flatTensor, type FlatUnit, type NamedParameter } from './flat-unit';
import { paddedSize, piecesOf, planUnit, type Piece } from './shard-plan';
import type { ShardedState } from './sharded-state';
import type { BuffersByName } from './shard-updater';

/** What the state is about. */
export interface OptimizerPartsOf<Settings extends { lr: number }> {
  readonly inner: Optimizer<Settings>;
  /** Of trainable parameters. */
  readonly flats: readonly FlatUnit[];
  readonly state: ShardedState;
  readonly group: ProcessGroup;
  readonly boundary: BoundaryScale | undefined;
  /** The names of the module's parameters. */
  readonly nameOf: (parameter: Tensor) => string;
}

/** Pieces are written as the runs of elements of named tensors that they are; see [Note: parts of a tensor]. */
export class OptimizerParts<Settings extends { lr: number }> implements PartedState {
  readonly #of: OptimizerPartsOf<Settings>;

  constructor(of: OptimizerPartsOf<Settings>) {
    this.#of = of;
  }

  /** Where every rank has everything (stage 0) each writes the part that it would own. */
  async stateParts(): Promise<StateParts> {
    const { inner, flats, state, boundary, nameOf } = this.#of;
    const values = optimizerValues(inner.paramGroups, nameOf, (parameter) => state.stepsOf(parameter));
    const lossScale = boundary === undefined ? {} : { lossScale: { ...boundary.stateDict() } as JsonValue };
    const tensors: TensorPart[] = [];
    for (const flat of flats) tensors.push(...this.#partsOf(flat, await state.read(flat)));
    return { tensors, values: { ...values, ...lossScale } };
  }

  async prepareStateParts(reader: StateReader): Promise<() => void> {
    const { inner, flats, state, boundary, nameOf } = this.#of;
    const names = inner.paramGroups.map(({ params }) => params.map(nameOf));
    const saved = parseOptimizerValues(reader.values, names, 'the checkpoint');
    const { settings } = inner.readState({
      state: {},
      paramGroups: saved.groups.map(({ settings }, index) => ({
        ...settings,
        params: [...(names[index] ?? []).keys()],
      })),
    });
    const settingsOf = this.#byParameter((index) => saved.groups[index]?.settings);
    const steps = new Map<Tensor, number>();
    const kept = new Map<Piece, ParameterState>();
    for (const flat of flats) {
      for (const [slot, { name, parameter }] of flat.members.entries()) {
        const step = saved.steps[name];
        const ofGroup = settingsOf.get(parameter);
        if (ofGroup === undefined) continue;
        const piece = flat.pieceOf(slot);
        if (step !== undefined) steps.set(parameter, step);
        const names = step === undefined ? [] : inner.stateNames(ofGroup as never); // before its first step: the master
        const buffers = savedBuffers(reader, name, flat.dtype, names);
        if (piece === undefined || (step === undefined && buffers.length === 0)) continue;
        kept.set(piece, { step: step ?? 0, buffers: await readPiece(reader, name, piece, buffers, flat) });
      }
    }
    boundary?.checkState(saved.lossScale);
    return () => {
      this.#takeOverSettings(settings);
      state.replace(steps, kept);
      if (saved.lossScale !== undefined) boundary?.loadStateDict(saved.lossScale);
    };
  }

  /** The whole state, on every rank, in the form of `Optimizer.stateDict`. A collective. */
  async gatherWhole(): Promise<OptimizerState> {
    const { inner, flats, state } = this.#of;
    const buffersOf = new Map<Tensor, Record<string, Tensor>>();
    for (const flat of flats) await this.#gatherUnit(flat, buffersOf);
    const saved: Record<string, SavedParameterState> = {};
    let next = 0;
    const paramGroups = inner.paramGroups.map(({ params, ...settings }) => {
      const indices = params.map((parameter) => {
        const step = state.stepsOf(parameter);
        const index = next++;
        if (step > 0) saved[index] = { ...buffersOf.get(parameter), step };
        return index;
      });
      return { ...structuredClone(settings), params: indices };
    });
    return { state: saved, paramGroups };
  }

  /** Take this rank's pieces of a whole state. @throws InvalidArgumentError, with nothing changed, if it does not fit */
  loadWhole(whole: OptimizerState): void {
    const { inner, flats, state } = this.#of;
    const { settings, states } = inner.readState(whole);
    const steps = new Map<Tensor, number>();
    const kept = new Map<Piece, ParameterState>();
    for (const flat of flats) {
      for (const piece of flat.pieces) {
        const full = states.get((flat.members[piece.slot] as NamedParameter).parameter);
        if (full !== undefined) kept.set(piece, { step: full.step, buffers: sliceBuffers(full.buffers, piece) });
      }
      for (const { parameter } of flat.members) {
        const step = states.get(parameter)?.step;
        if (step !== undefined) steps.set(parameter, step);
      }
    }
    for (const { buffers } of states.values()) Object.values(buffers).forEach((buffer) => buffer.dispose());
    this.#takeOverSettings(settings);
    state.replace(steps, kept);
  }

  #takeOverSettings(settings: readonly Settings[]): void {
    settings.forEach((ofGroup, index) => Object.assign(this.#of.inner.paramGroups[index] as object, ofGroup));
  }

  #partsOf(flat: FlatUnit, kept: ReadonlyMap<Piece, BuffersByName>): TensorPart[] {
    const { group } = this.#of;
    const numParts = group.size;
    const written = piecesOf(planUnit(flat.plan, numParts), group.rank);
    const parts = written.flatMap(({ slot, start, length }) => {
      const { name, parameter } = flat.members[slot] as NamedParameter;
      const owned = flat.pieceOf(slot) as Piece;
      return Object.entries(kept.get(owned) ?? {}).map(([buffer, values]): TensorPart => {
        const view = viewBuffer(values, start - owned.start, length);
        return { name: `${name}/${buffer}`, shape: parameter.shape, dtype: dtypeOf(view), start, buffer: view };
      });
    });
    return group.rank === 0 ? [...parts, ...this.#emptyParts(flat)] : parts;
  }

  /** Parameters without elements have a state too, of no elements. */
  #emptyParts(flat: FlatUnit): TensorPart[] {
    const { state } = this.#of;
    return flat.members.flatMap(({ name, parameter }) => {
      if (parameter.size > 0 || state.stepsOf(parameter) === 0) return [];
      return this.#stateNames(parameter).map((buffer): TensorPart => {
        const { dtype, storage } = emptyLike(parameter, flat);
        return { name: `${name}/${buffer}`, shape: parameter.shape, dtype, start: 0, buffer: storage.buffer };
      });
    });
  }

  /** All ranks' pieces of a unit's buffers, put together, one kind of buffer after the other. */
  async #gatherUnit(flat: FlatUnit, buffersOf: Map<Tensor, Record<string, Tensor>>): Promise<void> {
    const { plan, members, pieces } = flat;
    const { group, state } = this.#of;
    const kept = await state.read(flat);
    const names = new Set(members.flatMap(({ parameter }) => this.#stateNames(parameter)));
    const dtype = stateDTypeOf(flat.dtype);
    for (const name of names) {
      const part = flatTensor(Storage.allocate(dtype, plan.partSize, 'communication'));
      for (const piece of pieces) {
        const buffer = kept.get(piece)?.[name];
        if (buffer !== undefined) copyBuffer(part.storage.buffer, buffer, piece.offset);
      }
      const whole = flatTensor(Storage.allocate(dtype, paddedSize(plan), 'communication'));
      if (plan.numParts === 1) copyBuffer(whole.storage.buffer, part.storage.buffer);
      else await noGrad(() => group.allGatherInto(whole, part, { label: `state ${name} ${flat.contents}` }));
      for (const [slot, { parameter }] of members.entries()) {
        if (state.stepsOf(parameter) === 0 || !this.#stateNames(parameter).includes(name)) continue;
        const { offset, numElements } = plan.slots[slot] as { offset: number; numElements: number };
        const storage = whole.storage.view(offset, numElements).clone('other');
        const record = buffersOf.get(parameter) ?? {};
        record[name] = new Tensor({ storage, shape: parameter.shape });
        buffersOf.set(parameter, record);
      }
      part.dispose();
      whole.dispose();
    }
  }

  /** The buffers that are kept of a parameter, once it was updated. */
  #stateNames(parameter: Tensor): readonly string[] {
    const { inner } = this.#of;
    const index = inner.paramGroups.findIndex(({ params }) => params.includes(parameter));
    if (index < 0) return [];
    const names = inner.stateNames(inner.settingsOf(index));
    return stateDTypeOf(parameter.dtype) === parameter.dtype ? names : [...names, MASTER];
  }

  #byParameter<T>(valueOf: (groupIndex: number) => T): Map<Tensor, T> {
    const groups = this.#of.inner.paramGroups;
    return new Map(
      groups.flatMap(({ params }, index) => params.map((parameter) => [parameter, valueOf(index)] as const)),
    );
  }
}

async function readPiece(
  reader: StateReader,
  parameter: string,
  { start, length }: Piece,
  names: readonly string[],
  { dtype }: FlatUnit,
): Promise<Record<string, Tensor>> {
  const buffers: Record<string, Tensor> = {};
  for (const name of names) {
    const values = await reader.read(`${parameter}/${name}`, start, length, stateDTypeOf(dtype));
    buffers[name] = flatTensor(Storage.of(values, 'optimizer'));
  }
  return buffers;
}

function sliceBuffers(whole: Readonly<Record<string, Tensor>>, { start, length }: Piece): Record<string, Tensor> {
  return Object.fromEntries(
    Object.entries(whole).map(([name, tensor]) => {
      const slice = withMemoryCategory('optimizer', () => tensor.storage.view(start, length).clone());
      return [name, flatTensor(slice)];
    }),
  );
}

function emptyLike({ shape }: Tensor, { dtype }: FlatUnit): Tensor {
  return keep(Tensor.zeros(shape, { dtype: stateDTypeOf(dtype) }));
}
