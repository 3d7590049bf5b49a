/** A model of many equal layers, each a bucket or gathered unit of its own: what is needed for one of them is small beside it. */
import { Module } from '../../src/nn/module';
import { Parameter } from '../../src/nn/parameter';
import { Sequential } from '../../src/nn/sequential';
import { Tensor } from '../../src/tensor/tensor';

class Layer extends Module {
  readonly weight: Parameter;

  constructor(width: number) {
    super();
    this.weight = new Parameter(Tensor.full([width, width], 0.01));
  }

  override async forward(x: Tensor): Promise<Tensor> {
    return x.matmul(this.weight);
  }
}

/** [batch, width] -> [batch, width], with `count` weights of [width, width]. */
export function equalLayers(count: number, width: number): Sequential {
  return new Sequential(...Array.from({ length: count }, () => new Layer(width)));
}
