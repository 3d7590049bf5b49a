/** What the addon is given, as the backend gives it. */
import { readFileSync } from 'node:fs';

export { libraryPaths } from '../../src/backend/nccl/find-libraries';

/** The kernels, for the driver to compile. */
export function kernelText(): string {
  return readFileSync(require.resolve('lockstep-nccl/kernels/kernels.ptx'), 'utf8');
}
