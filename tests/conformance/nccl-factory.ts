/** The NCCL backend on the stand-ins of the driver and of NCCL: a process a rank, and a device each. */
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { CAPABILITIES } from '../../src/backend/nccl/nccl-backend';
import { count } from '../helpers/counts';
import { standInEnvironment } from '../helpers/native-build';
import { ProcessFactory } from './process-factory';

/** With up to four ranks; more add nothing on two cores but time. */
const SIZES = [1, 2, 4, 3];

export class NcclFactory extends ProcessFactory {
  readonly #folder: string;

  /** @param buildFolder of the addon and the stand-ins */
  constructor(buildFolder: string, env: Readonly<Record<string, string>> = {}) {
    const folder = mkdtempSync(join(tmpdir(), 'lockstep-nccl-'));
    const report = join(folder, 'report');
    super('socket', {
      backend: 'nccl',
      capabilities: CAPABILITIES,
      sizes: SIZES.slice(0, count('conformance of nccl: sizes of worlds', 3, 4)),
      oneCaseIn: count('conformance of nccl: of many cases one in', 30, 1),
      env: { ...standInEnvironment(buildFolder), STANDIN_CUDA_REPORT: report, ...env },
      checkWorld: () => expectNoReport(report),
    });
    this.#folder = folder;
  }

  /** Nothing is left. */
  async end(): Promise<void> {
    await this.close();
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

/** What the stand-ins found: races, uses of memory that was given back, misuse of NCCL. */
export function expectNoReport(path: string): void {
  if (!existsSync(path)) return;
  const text = readFileSync(path, 'utf8');
  rmSync(path);
  if (text !== '') throw new Error(`the stand-ins report:\n${text}`);
}
