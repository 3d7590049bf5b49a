import { LineSplitter, linePrefix, Tail } from '../../../src/launcher/rank-output';

function split(...chunks: (string | Buffer)[]): string[] {
  const lines: string[] = [];
  const splitter = new LineSplitter((line) => lines.push(line.toString()));
  for (const chunk of chunks) splitter.push(Buffer.from(chunk));
  splitter.end();
  splitter.end();
  return lines;
}

test('lines come out whole, however the bytes were cut, and the last one gets a newline', () => {
  const text = Buffer.from('ä\n\nline €\r\nend');
  const expected = ['ä\n', '\n', 'line €\r\n', 'end\n'];
  expect(split(text)).toEqual(expected);
  expect(split(...Array.from(text, (byte) => Buffer.of(byte)))).toEqual(expected);
  expect(split()).toEqual([]);
});

test('a line without an end is cut, so that it does not fill the memory', () => {
  const lines = split(...Array.from({ length: 5 }, () => 'x'.repeat(40_000)));
  expect(lines.map((line) => line.length)).toEqual([80_001, 80_001, 40_001]);
});

test('a tail keeps the last lines, cut to a readable length', () => {
  const tail = new Tail();
  for (let i = 0; i < 20; i++) tail.push(Buffer.from(`${i}\n`));
  tail.push(Buffer.from(`${'y'.repeat(1000)}\n`));
  expect(tail.lines).toHaveLength(12);
  expect(tail.lines[0]).toBe('9');
  expect(tail.lines[11]).toBe('y'.repeat(400));
});

test('a prefix is the rank, in a colour of its own on a terminal', () => {
  expect(linePrefix(3, false).toString()).toBe('[3] ');
  expect(linePrefix(0, true).toString()).toBe('\x1b[36m[0]\x1b[0m ');
  expect(linePrefix(1, true).toString()).not.toBe(linePrefix(0, true).toString());
});
