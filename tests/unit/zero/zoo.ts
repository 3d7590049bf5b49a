/** A small model with one parameter of every troublesome kind. */
import { Generator } from '../../../src/core/generator';
import type { DType } from '../../../src/core/dtype';
import { Linear } from '../../../src/nn/linear';
import { Module } from '../../../src/nn/module';
import { Parameter } from '../../../src/nn/parameter';
import type { Shape } from '../../../src/tensor/shape';
import { Tensor } from '../../../src/tensor/tensor';

/** Which of the two branches a forward uses. */
export interface Branches {
  readonly left: boolean;
  readonly right: boolean;
}

/** Its own weight and, tied, that of another: y = tanh(x W^T) W. */
class TiedPair extends Module {
  readonly decoder: Parameter;

  constructor(readonly encoder: Parameter) {
    super();
    this.decoder = encoder;
  }

  override async forward(x: Tensor): Promise<Tensor> {
    return x.matmul(this.encoder).tanh().matmul(this.decoder.transpose(0, 1));
  }
}

export class Zoo extends Module<[Tensor, Branches]> {
  readonly first: Linear;
  readonly tied: TiedPair;
  readonly empty: Parameter;
  readonly frozen: Parameter;
  readonly left: Parameter;
  readonly right: Parameter;
  readonly never: Parameter;
  readonly wide: Parameter;
  readonly half: Parameter;
  readonly scalar: Parameter;
  readonly last: Linear;
  calls: Tensor = this.registerBuffer('calls', Tensor.from([0]));

  constructor(seed: number) {
    super();
    const generator = new Generator(seed);
    const draw = (shape: Shape, dtype: DType = 'float32', requiresGrad = true): Parameter => {
      return new Parameter(Tensor.randn(shape, { generator }).to(dtype), { requiresGrad });
    };
    this.first = new Linear(3, 5, { generator });
    this.tied = new TiedPair(draw([5, 4]));
    this.empty = draw([0, 5]);
    this.frozen = draw([5], 'float32', false);
    this.left = draw([5]);
    this.right = draw([5]);
    this.never = draw([2]);
    this.wide = draw([5], 'float64');
    this.half = draw([5], 'bfloat16');
    this.scalar = draw([1]);
    this.last = new Linear(5, 2, { generator });
    this.calls = Tensor.from([seed]);
  }

  override async forward(x: Tensor, use: Branches): Promise<Tensor> {
    if (this.isTraining) this.calls = this.calls.add(1);
    let y = await this.tied.forward(await this.first.forward(x));
    y = y.mul(this.scalar).add(this.empty.sum(0));
    if (use.left) y = y.mul(this.left.mul(this.frozen));
    if (use.right) y = y.add(this.right);
    y = y.to('float64').mul(this.wide).to('float32');
    y = y.to('bfloat16').mul(this.half).to('float32');
    return this.last.forward(y.tanh());
  }
}
