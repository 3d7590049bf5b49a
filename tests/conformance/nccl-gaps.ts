/** What the NCCL backend cannot keep of the rules of a backend, because NCCL cannot. */
import type { Gap } from './backend-suite';

/** Ranks that wait for each other on their devices wait until a deadline. */
const HANG = { timeoutMs: 500 };

const ORDER =
  'everything on a device shares one stream, so a send or receive waits for all that was launched before it; ranks that launch in different orders wait for each other';

/** Of NCCL's own arithmetic, which fake GPUs do not have. */
export const arithmeticGaps: readonly Gap[] = [
  { test: 'NaN goes through Min and Max, whichever rank has it', reason: 'NCCL compares as IEEE minNum does' },
  {
    test: '16-bit floats accumulate in float32 and round once, ties to even',
    reason: 'NCCL rounds to 16 bits at every step of a ring',
  },
];

/** Of what NCCL is. */
export const ordinaryGaps: readonly Gap[] = [
  {
    test: 'integer averages sum without wrapping and truncate toward zero',
    reason: 'NCCL has no wide accumulator; integer averages are refused',
  },
  {
    test: 'tags are taken apart: the receiver may take them in another order than they were sent',
    reason: 'NCCL has no tags: sends and receives match in the order of issue',
  },
  {
    test: 'send is a rendezvous: it does not complete before the receiver asks for the message',
    reason: 'the program tells by tags that are received in another order',
  },
  {
    test: 'receives of a tag that are posted first are filled in the order in which they were posted',
    reason: ORDER,
    ...HANG,
  },
  { test: 'a ring of sends and receives that are launched together goes round', reason: ORDER, ...HANG },
  { test: 'messages of two groups between the same ranks with the same tag do not mix', reason: ORDER, ...HANG },
  { test: 'a Work is not completed before all ranks have joined, and is afterwards', reason: ORDER, ...HANG },
];

/** With LOCKSTEP_NCCL_CHECKS=before, further. */
export const beforeGaps: readonly Gap[] = [
  {
    test: 'batch: a batch on one rank meets single calls on the other, in order',
    reason: 'the batch is launched once its peer has announced all its parts, which the peer does one after the other',
    ...HANG,
  },
];
