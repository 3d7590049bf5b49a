/** The plain TypeScript provider. */
import { unary, unaryBackward } from './activations';
import { columnsToImage, imageToColumns } from './columns';
import { crossEntropy, crossEntropyBackward } from './cross-entropy';
import { accumulate, binary, binaryBig, compare, mask, scale, scaleFinite } from './elementwise';
import type { Kernels } from './kernels';
import { matmul } from './matrix-product';
import { normalize, normalizeBackward } from './normalization';
import { argmax, extreme, extremeBackward, sum, sumBig } from './reduction';
import { logSoftmax, logSoftmaxBackward, softmax, softmaxBackward } from './softmax';
import { copy } from './strided-copy';
import { take, takeBackward } from './take';

export const typescriptKernels: Kernels = {
  name: 'typescript',
  binary,
  binaryBig,
  compare,
  unary,
  unaryBackward,
  accumulate,
  scale,
  scaleFinite,
  mask,
  matmul,
  sum,
  sumBig,
  extreme,
  extremeBackward,
  argmax,
  softmax,
  softmaxBackward,
  logSoftmax,
  logSoftmaxBackward,
  take,
  takeBackward,
  normalize,
  normalizeBackward,
  crossEntropy,
  crossEntropyBackward,
  imageToColumns,
  columnsToImage,
  copy,
};
