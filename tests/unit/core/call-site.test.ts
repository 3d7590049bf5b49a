import { join } from 'node:path';
import { CallSite } from '../../../src/core/call-site';

const ROOT = join(__dirname, '..', '..', '..');

/** The line that is named for a stack of these frames. */
function lineOf(...frames: string[]): string | undefined {
  const callSite = Object.assign(new CallSite(), {
    stack: ['Error', ...frames.map((frame) => `    at ${frame}`)].join('\n'),
  });
  return callSite.sourceLine;
}

const BACKEND = `MockBackend.allReduce (${join(ROOT, 'src/backend/mock/mock-backend.ts')}:120:5)`;
const REDUCER = `Reducer.launch (${join(ROOT, 'src/ddp/reducer.ts')}:52:87)`;
const CONTEXT = `ContextKey.run (${join(ROOT, 'src/core/context.ts')}:30:1)`;
const USER = `async train (${join(process.cwd(), 'examples/train.ts')}:7:3)`;

describe('the source line of a call', () => {
  test('is the nearest line of the program, also across an await', () => {
    expect(lineOf(BACKEND, REDUCER, 'process.process (node:internal/process:1:2)', USER)).toMatch(
      /^examples.train\.ts:7:3$/,
    );
  });

  test('does not pretend that a line of ours is one of the program', () => {
    expect(lineOf(BACKEND, REDUCER, CONTEXT)).toMatch(
      /^lockstep\/ddp.reducer\.ts \(no line of your program is on the stack\)$/,
    );
  });

  test('is not there where nothing is known', () => {
    expect(lineOf()).toBeUndefined();
    expect(lineOf('process.process (node:internal/process:1:2)')).toBeUndefined();
  });
});
