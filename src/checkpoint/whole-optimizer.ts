/** The state of a plain optimizer, which every rank holds whole. Its parameters have the names that the model gives them. */
import { InvalidArgumentError } from '../core/errors';
import type { AnyModule } from '../nn/any-module';
import type { Optimizer } from '../optim/optimizer';
import type { OptimizerState, SavedParameterState } from '../optim/optimizer-state';
import { stateDTypeOf } from '../optim/parameter-state';
import type { ProcessGroup } from '../process-group/process-group';
import { optimizerValues, parseOptimizerValues, savedBuffers } from '../strategy/optimizer-values';
import type { PartedState, StateParts, StateReader, TensorPart } from '../strategy/state-parts';
import { describeTensor } from '../tensor/describe';
import { Tensor } from '../tensor/tensor';
import { equalShare } from './equal-shares';

export class WholeOptimizer implements PartedState {
  readonly #optimizer: Optimizer;
  readonly #group: ProcessGroup;
  readonly #nameOf: (parameter: Tensor) => string;

  /** @param module lists the optimizer's parameters, under the names that they get in the state */
  constructor(optimizer: Optimizer, module: AnyModule, group: ProcessGroup) {
    optimizer.assertOwnState('state.optimizer');
    this.#optimizer = optimizer;
    this.#group = group;
    const names = new Map<Tensor, string>(module.namedParameters().map(([name, parameter]) => [parameter, name]));
    this.#nameOf = (parameter) => names.get(parameter) ?? refuseUnknown(parameter);
  }

  async stateParts(): Promise<StateParts> {
    const optimizer = this.#optimizer;
    const replicas = optimizer.parameters.flatMap((parameter) => {
      const buffers = Object.entries(optimizer.stateOf(parameter)?.buffers ?? {});
      return buffers.map(([name, { shape, dtype, storage }]): TensorPart => {
        return { name: `${this.#nameOf(parameter)}/${name}`, shape, dtype, start: 0, buffer: storage.buffer };
      });
    });
    const stepOf = (parameter: Tensor): number | undefined => optimizer.stateOf(parameter)?.step;
    return {
      tensors: equalShare(replicas, this.#group.rank, this.#group.size),
      replicas,
      values: optimizerValues(optimizer.paramGroups, this.#nameOf, stepOf),
    };
  }

  async prepareStateParts(reader: StateReader): Promise<() => void> {
    const optimizer = this.#optimizer;
    const names = optimizer.paramGroups.map(({ params }) => params.map(this.#nameOf));
    const saved = parseOptimizerValues(reader.values, names, 'the checkpoint');
    const state: Record<string, SavedParameterState> = {};
    const paramGroups: OptimizerState['paramGroups'][number][] = [];
    let index = 0;
    for (const [groupIndex, { params }] of optimizer.paramGroups.entries()) {
      const settings = saved.groups[groupIndex]?.settings ?? {};
      const stateNames = optimizer.stateNames(settings as never);
      paramGroups.push({ ...settings, params: params.map((_parameter, i) => index + i) });
      for (const parameter of params) {
        const name = this.#nameOf(parameter);
        const step = saved.steps[name];
        if (step !== undefined) state[index] = { ...(await readBuffers(reader, name, parameter, stateNames)), step };
        index++;
      }
    }
    const takeOver = optimizer.prepareLoadStateDict({ state, paramGroups });
    for (const buffers of Object.values(state)) {
      for (const buffer of Object.values(buffers)) if (buffer instanceof Tensor) buffer.dispose(); // it was copied
    }
    return takeOver;
  }
}

async function readBuffers(
  reader: StateReader,
  parameter: string,
  { dtype, shape, size }: Tensor,
  stateNames: readonly string[],
): Promise<Record<string, Tensor>> {
  const buffers: Record<string, Tensor> = {};
  for (const name of savedBuffers(reader, parameter, dtype, stateNames)) {
    const values = await reader.read(`${parameter}/${name}`, 0, size, stateDTypeOf(dtype));
    buffers[name] = Tensor.wrap(values, shape);
  }
  return buffers;
}

function refuseUnknown(parameter: Tensor): never {
  throw new InvalidArgumentError(
    `the optimizer has ${describeTensor(parameter)}, which is no parameter of the model, so it has no name in a checkpoint. ` +
      'Pass the model whose parameters it updates.',
  );
}
