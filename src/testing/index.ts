/** Tests of distributed code, in one process: worlds of mock ranks, faults and schedules, and matchers. */
export { InjectedFaultError } from '../backend/mock/faults';
export { MockBackend } from '../backend/mock/mock-backend';
export type { Fault, MockOptions } from '../backend/mock/mock-options';
export type { TensorLike } from './compared-array';
export { lockstepMatchers, type LockstepMatchers, type MatcherResult, type Tolerance } from './matchers';
export { runWorld, type RunWorldOptions } from './run-world';
