/** Training over NCCL, on the stand-ins, against the mock and one process. One file, so that all of it is in the same processes. */
import { describeNative } from '../helpers/native-build';
import { checkpointTests } from './nccl-checkpoints';
import { ddpTests } from './nccl-ddp';
import { halfTests } from './nccl-half-precision';
import { NcclProcesses } from './nccl-processes';
import { zeroTests } from './nccl-zero';

describeNative('nccl on the stand-ins', ['addon', 'stand-ins'], (folder) => {
  const processes = new NcclProcesses(folder);
  afterAll(() => processes.close());

  describe('DDP', () => ddpTests(processes));
  describe('ZeRO', () => zeroTests(processes));
  describe('16 bits', () => halfTests(processes));
  describe('checkpoints', () => checkpointTests(processes));
});
