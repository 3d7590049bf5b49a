import { count } from '../helpers/counts';
import { describeBackend, type Gap } from './backend-suite';
import { mockFactory } from './mock-factory';

/** What NCCL cannot do, portable mode refuses; the NCCL backend has these gaps too, but for the barrier: nccl-gaps.ts. */
const PORTABLE_GAPS: readonly Gap[] = [
  {
    test: 'nobody leaves a barrier before all have come',
    reason: 'the ranks ask each other while they are in the barrier; NCCL runs the calls of a rank one by one',
  },
  {
    test: 'a Work is not completed before all ranks have joined, and is afterwards',
    reason: 'rank 0 sends while it is in an all-reduce; NCCL runs the calls of a rank one by one',
  },
  {
    test: 'receives of a tag that are posted first are filled in the order in which they were posted',
    reason: 'rank 1 sends behind receives that are not filled yet; NCCL runs the calls of a rank one by one',
  },
  {
    test: 'tags are taken apart: the receiver may take them in another order than they were sent',
    reason: 'NCCL has no tags and pairs messages in the order of issue',
  },
  {
    test: 'send is a rendezvous: it does not complete before the receiver asks for the message',
    reason: 'its messages are taken in another order than they are sent',
  },
  {
    test: 'a ring of sends and receives that are launched together goes round',
    reason: 'outside a batch, NCCL runs the send to its end before it looks at the receive',
  },
  {
    test: 'messages of two groups between the same ranks with the same tag do not mix',
    reason: 'the two ranks use the groups in different orders, which may hang on one device',
  },
];

/** Ranks outside `run`: what they do between their calls is not known. */
const BARE_GAPS: readonly Gap[] = [
  {
    test: 'a rank that throws is named to all groups that hold it at once, with what it said; others go on',
    reason: 'the backend of a rank outside run() does not see that it throws, only that it is closed',
  },
];

/** Of what the mock does in every mode alike. */
const oneCaseIn = count('conformance of further modes of the mock: of many cases one in', 10, 1);

describeBackend('mock', mockFactory());
describeBackend(
  'mock that checks order alone, outside run(),',
  mockFactory({ checks: 'order', sourceLines: false }, { isBare: true, oneCaseIn }),
  BARE_GAPS,
);
describeBackend('mock in portable mode', mockFactory({ portable: true }, { oneCaseIn }), PORTABLE_GAPS);

for (let seed = 1; seed <= count('conformance: random schedules', 1, 20); seed++) {
  describeBackend(`mock with random schedule ${seed}`, mockFactory({ schedule: 'random', seed }, { oneCaseIn }));
}
