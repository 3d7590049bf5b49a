import Sequencer from '@jest/test-sequencer';

/** Where suites start processes and take longest; as Jest orders what it has not run before, by the size of files, they came last. */
const FIRST = /[\\/]tests[\\/](conformance|parity|fault|integration)[\\/]/;

export default class ProcessesFirst extends Sequencer {
  sort(tests) {
    const sorted = super.sort(tests);
    const isFirst = ({ path }) => FIRST.test(path);
    return [...sorted.filter(isFirst), ...sorted.filter((test) => !isFirst(test))];
  }
}
