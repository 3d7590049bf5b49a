/** Every TypeScript block of the README does what it says: it runs, and its own tests pass. */
import { runBlock, typescriptBlocks } from '../helpers/markdown-blocks';

const blocks = typescriptBlocks('README.md');

test('the README has code blocks to run', () => {
  expect(blocks.length).toBeGreaterThanOrEqual(4);
});

test.each(blocks)('README: $name', async (block) => {
  await runBlock(block);
});
