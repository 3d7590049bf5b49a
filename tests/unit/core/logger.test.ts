import { stderrLogger } from '../../../src/core/logger';

const levels = ['debug', 'info', 'warn', 'error'] as const;

describe('LOCKSTEP_LOG', () => {
  const before = process.env['LOCKSTEP_LOG'];
  let lines: string[] = [];

  beforeEach(() => {
    lines = [];
    jest.spyOn(process.stderr, 'write').mockImplementation((text) => {
      lines.push(String(text));
      return true;
    });
  });

  afterEach(() => {
    jest.restoreAllMocks();
    if (before === undefined) delete process.env['LOCKSTEP_LOG'];
    else process.env['LOCKSTEP_LOG'] = before;
  });

  function written(setting: string | undefined): string[] {
    if (setting === undefined) delete process.env['LOCKSTEP_LOG'];
    else process.env['LOCKSTEP_LOG'] = setting;
    for (const level of levels) stderrLogger[level](`about ${level}`);
    return lines;
  }

  test.each([
    ['debug', ['debug', 'info', 'warn', 'error']],
    ['info', ['info', 'warn', 'error']],
    ['warn', ['warn', 'error']],
    ['error', ['error']],
    ['silent', []],
    ['DEBUG', ['debug', 'info', 'warn', 'error']],
    ['nonsense', ['warn', 'error']],
    ['', ['warn', 'error']],
    [undefined, ['warn', 'error']],
  ])('%p writes a line to stderr for each of %p', (setting, expected) => {
    expect(written(setting)).toEqual(expected.map((level) => `lockstep ${level}: about ${level}\n`));
  });

  test('is read at each message, not when the package is loaded', () => {
    expect(written('silent')).toEqual([]);
    expect(written('error')).toHaveLength(1);
  });
});
