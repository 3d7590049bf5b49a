/** Every TypeScript block of the README and the guides does what it says: it runs, and its own tests pass. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { runBlock, typescriptBlocks } from '../helpers/markdown-blocks';
import { ProcessGroup } from '../../src/index';

/** Empty folders for blocks that write files. */
const folders: string[] = [];
afterAll(() => folders.forEach((folder) => rmSync(folder, { recursive: true })));

function makeFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'lockstep-docs-'));
  folders.push(folder);
  return folder;
}

/** Names that a guide's block takes for granted. */
const scopes: Readonly<Record<string, () => Record<string, unknown>>> = {
  'README.md': () => ({}),
  'docs/testing.md': () => ({}),
  'docs/failures.md': () => ({}),
  'docs/running.md': () => ({ console: { log: () => undefined } }),
  'docs/nccl.md': () => ({ console: { log: () => undefined } }),
  'docs/training.md': () => ({ directory: makeFolder() }),
  'docs/checkpoints.md': () => ({ directory: makeFolder() }),
  'docs/zero.md': () => ({}),
  'docs/coming-from.md': () => ({}),
  'docs/errors.md': () => ({ group: ProcessGroup.mock() }),
  'docs/adding-a-backend.md': () => ({}),
};

describe.each(Object.entries(scopes))('%s', (file, scope) => {
  const blocks = typescriptBlocks(file);

  test('has code blocks to run', () => {
    expect(blocks.length).toBeGreaterThanOrEqual(1);
  });

  test.each(blocks)('$name', async (block) => {
    await runBlock(block, scope());
  });
});
