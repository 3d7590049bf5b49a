import { isLong } from '../helpers/counts';
import { describeNative } from '../helpers/native-build';
import { describeBackend, type Gap } from './backend-suite';
import { NcclFactory } from './nccl-factory';
import { arithmeticGaps, beforeGaps, ordinaryGaps } from './nccl-gaps';

interface Mode {
  readonly name: string;
  readonly env: Readonly<Record<string, string>>;
  readonly gaps?: readonly Gap[];
}

/** Ways in which a device may behave, and one of ours; in the long run. */
const MODES: readonly Mode[] = [
  { name: 'checks before each call', env: { LOCKSTEP_NCCL_CHECKS: 'before' }, gaps: beforeGaps },
  { name: 'streams that run one after the other', env: { STANDIN_CUDA_STREAMS: 'serial' } },
  {
    name: 'streams at random speeds, and frees that do not wait',
    env: { STANDIN_CUDA_JITTER_US: '300', STANDIN_CUDA_SEED: '7', STANDIN_CUDA_FREE: 'nosync' },
  },
];

const ORDINARY: Mode = { name: 'a process a rank', env: {} };

describeNative('nccl on the stand-ins', ['addon', 'stand-ins'], (folder) => {
  for (const { name, env, gaps = [] } of isLong ? [ORDINARY, ...MODES] : [ORDINARY]) {
    const factory = new NcclFactory(folder, env);
    afterAll(() => factory.end());
    describeBackend(`nccl, ${name}`, factory, [...arithmeticGaps, ...ordinaryGaps, ...gaps]);
  }
});
