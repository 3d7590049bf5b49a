/** What no test replaces. */
const BUILT_IN = [
  'Array ArrayBuffer Atomics BigInt BigInt64Array BigUint64Array Boolean Buffer DataView Error Float32Array Float64Array Infinity',
  'Int16Array Int32Array Int8Array JSON Map Math Number Object Promise Reflect Set String Symbol Uint16Array Uint32Array Uint8Array',
  'WeakMap',
].flatMap((names) => names.split(' '));

/** @type {import('jest').Config} */
module.exports = {
  testEnvironment: 'node',
  roots: ['<rootDir>/tests'],
  testMatch: ['<rootDir>/tests/**/*.test.ts'],
  // Types are checked by `npm run typecheck`; here each file is only transpiled.
  transform: { '^.+\\.ts$': ['ts-jest', { tsconfig: '<rootDir>/tsconfig.json' }] },
  moduleNameMapper: {
    '^lockstep$': '<rootDir>/src/index.ts',
    '^lockstep/testing$': '<rootDir>/src/testing/index.ts',
  },
  globalSetup: '<rootDir>/tests/helpers/test-build-folder.ts',
  // Found at once, instead of by asking Jest's sandbox for the global at each use: a third of the time of what computes.
  sandboxInjectedGlobals: BUILT_IN,
  maxWorkers: 2,
  // What suites leave behind makes collecting garbage slow for those that come later in the same worker.
  workerIdleMemoryLimit: '400MB',
  // For hangs. A test of the long run repeats its property some ten times as often.
  testTimeout: process.env.LOCKSTEP_TEST_LONG === '1' ? 180_000 : 20_000,
};
