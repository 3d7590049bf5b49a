export default { test: { include: ['matchers.vitest.ts'] } };
