/** `test`, or, where the machine lacks what it needs, a skip that says so: nothing is left out silently. */
export function testWhere(isPossible: boolean, what: string, needs: string): jest.It {
  if (isPossible) return test;
  process.stdout.write(`[skip] ${what}: needs ${needs}\n`);
  return test.skip;
}
