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
  maxWorkers: 2,
  // What suites leave behind makes collecting garbage slow for those that come later in the same worker.
  workerIdleMemoryLimit: '400MB',
  // For hangs. A test of the long run repeats its property some ten times as often.
  testTimeout: process.env.LOCKSTEP_TEST_LONG === '1' ? 180_000 : 20_000,
};
