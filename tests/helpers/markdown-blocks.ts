/** TypeScript code blocks of a Markdown file, run as a reader would run them. */
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import ts from 'typescript';
import * as lockstep from '../../src/index';
import * as lockstepTesting from '../../src/testing/index';

const ROOT = join(__dirname, '..', '..');
const requireFromRoot = createRequire(join(ROOT, 'package.json'));

export interface CodeBlock {
  /** Heading above it and number below that heading, for test names. */
  readonly name: string;
  readonly code: string;
}

/** The blocks fenced as ```ts in `file`, a path from the repository's root. */
export function typescriptBlocks(file: string): CodeBlock[] {
  const blocks: CodeBlock[] = [];
  let heading = file;
  let lines: string[] | undefined;
  for (const line of readFileSync(join(ROOT, file), 'utf8').split('\n')) {
    if (lines === undefined && line.startsWith('#')) heading = line.replace(/^#+ /, '');
    if (lines === undefined && line === '```ts') lines = [];
    else if (lines !== undefined && line === '```') {
      const number = blocks.filter(({ name }) => name.startsWith(`${heading} (`)).length + 1;
      blocks.push({ name: `${heading} (${number})`, code: lines.join('\n') });
      lines = undefined;
    } else lines?.push(line);
  }
  return blocks;
}

/**
 * Run a block: imports of 'lockstep' get this checkout's sources, and each `test(name, fn)` in it is run too.
 * `scope` gives further names that the block takes for granted.
 */
export async function runBlock(block: CodeBlock, scope: Readonly<Record<string, unknown>> = {}): Promise<void> {
  const options = { module: ts.ModuleKind.CommonJS, target: ts.ScriptTarget.ES2022, esModuleInterop: true };
  const { outputText } = ts.transpileModule(block.code, { compilerOptions: options });
  const tests: (() => unknown)[] = [];
  const names = {
    require: (name: string): unknown => {
      if (name === 'lockstep') return lockstep;
      return name === 'lockstep/testing' ? lockstepTesting : requireFromRoot(name);
    },
    exports: {},
    test: (_name: string, fn: () => unknown) => tests.push(fn),
    expect,
    ...scope,
  };
  const body = `return (async () => {\n${outputText}\n})();`;
  // the block is our own documentation, and running it is the purpose of this file
  // eslint-disable-next-line @typescript-eslint/no-implied-eval -- see above
  const run = new Function(...Object.keys(names), body) as (...values: unknown[]) => Promise<void>;
  await run(...Object.values(names));
  for (const fn of tests) await fn();
}
