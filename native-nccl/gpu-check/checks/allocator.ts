/** Device memory: contents survive everything that happens around them, and running out of it is an answer. */
import { isSameBits } from '../../../src/core/dtype';
import { Generator } from '../../../src/core/generator';
import type { Block, Device } from '../../../src/backend/nccl/addon';
import { WAIT_MS, expect, failureOf, type Bench } from '../bench';
import type { Check } from '../check';

const SEED = 20_261;
const ROUNDS = 400;
const MIB = 2 ** 20;

interface Held {
  readonly block: Block;
  readonly bytes: Uint8Array;
}

/** Below a page, below a slab, and above; each often enough. */
function randomLength(random: Generator): number {
  const limit = [64, 5000, 100_000, 3 * MIB][random.nextBelow(4)] as number;
  return random.nextBelow(limit);
}

async function verify({ addon }: Bench, { block, bytes }: Held, what: string): Promise<void> {
  const found = new Uint8Array(bytes.length);
  await addon.download(block, 0, found, WAIT_MS);
  expect(isSameBits(found, bytes), `${what}: ${bytes.length} bytes are not what was written`);
}

/** Blocks come, go, and are copied into each other; uploads and releases do not wait for each other. */
async function stress(bench: Bench): Promise<void> {
  const { addon } = bench;
  const device = bench.device();
  const random = new Generator(SEED);
  const held: Held[] = [];
  const uploads: Promise<void>[] = [];
  for (let round = 0; round < ROUNDS; round++) {
    const action = random.nextBelow(10);
    const index = random.nextBelow(Math.max(1, held.length));
    if (action < 5 || held.length === 0) {
      const bytes = new Uint8Array(randomLength(random)).map((_, i) => i * 31 + round);
      const block = addon.allocate(device, bytes.length);
      uploads.push(addon.upload(block, 0, bytes, WAIT_MS));
      held.push({ block, bytes });
    } else if (action < 7) {
      // while uploads of it may be in flight
      addon.release((held.splice(index, 1)[0] as Held).block);
    } else if (action < 9) {
      const { bytes, block } = held[index] as Held;
      const copy = addon.allocate(device, bytes.length);
      addon.copy(copy, 0, block, 0, bytes.length);
      held.push({ block: copy, bytes });
    } else await verify(bench, held[index] as Held, `round ${round}`);
  }
  await Promise.all(uploads);
  for (const [index, each] of held.entries()) await verify(bench, each, `block ${index} at the end`);
  bench.note('blocksAtTheEnd', held.length);
  for (const { block } of held) addon.release(block);
}

/** @returns what was allocated until the driver had no more */
async function fillUp({ addon }: Bench, device: Device, byteLength: number): Promise<Block[]> {
  const blocks: Block[] = [];
  const error = await failureOf(() => {
    for (;;) blocks.push(addon.allocate(device, byteLength));
  });
  const code = (error as { readonly code?: string }).code;
  expect(code === 'OUT_OF_MEMORY', `after ${blocks.length} blocks it failed with ${code}: ${error.message}`);
  return blocks;
}

export const allocatorChecks: readonly Check[] = [
  {
    name: `${ROUNDS} rounds of random sizes, seed ${SEED}`,
    async run(bench) {
      const before = bench.addon.stats(bench.device());
      await stress(bench);
      await bench.addon.synchronize(bench.device(), WAIT_MS);
      const after = bench.addon.stats(bench.device());
      bench.note('reservedBytes', after.reservedBytes);
      expect(after.usedBytes === before.usedBytes, `${after.usedBytes - before.usedBytes} bytes were not given back`);
    },
  },
  {
    name: 'trim gives unused memory back to the driver, and used memory stays',
    async run(bench) {
      const { addon } = bench;
      const device = bench.device();
      const bytes = new Uint8Array(5 * MIB).map((_, i) => i * 7);
      const [kept, unused] = [addon.allocate(device, bytes.length), addon.allocate(device, 64 * MIB)];
      await addon.upload(kept, 0, bytes, WAIT_MS);
      addon.release(unused);
      const before = addon.stats(device).reservedBytes;
      await addon.trim(device);
      const after = addon.stats(device).reservedBytes;
      bench.note('reservedBytes', { before, after });
      expect(after <= before - 64 * MIB, `${before} bytes were reserved, and ${after} after the trim`);
      await verify(bench, { block: kept, bytes }, 'after the trim');
      addon.release(kept);
    },
  },
  {
    name: 'more memory than there is is refused, and the device lives on',
    async run(bench) {
      const { addon } = bench;
      const device = bench.device();
      const { totalBytes } = addon.stats(device);
      const error = await failureOf(() => addon.allocate(device, totalBytes + MIB));
      expect(error.code === 'OUT_OF_MEMORY', `it failed with ${error.code}: ${error.message}`);
      bench.note('message', error.message);
      const bytes = new Uint8Array(MIB).fill(3);
      const block = addon.allocate(device, bytes.length);
      await addon.upload(block, 0, bytes, WAIT_MS);
      await verify(bench, { block, bytes }, 'after the refusal');
      addon.release(block);
    },
  },
  {
    name: 'memory that runs out is an error, and comes back when blocks are released',
    limitMs: 40_000,
    async run(bench) {
      const { addon } = bench;
      const device = bench.device();
      await addon.trim(device);
      const chunk = Math.floor(addon.stats(device).totalBytes / 16);
      const blocks = await fillUp(bench, device, chunk);
      bench.note('chunks', { byteLength: chunk, count: blocks.length });
      expect(blocks.length > 0, 'not even one block fitted');
      for (const block of blocks) addon.release(block);
      await addon.synchronize(device, WAIT_MS);
      const again = await fillUp(bench, device, chunk);
      expect(
        again.length >= blocks.length,
        `${blocks.length} blocks fitted first, and ${again.length} after their release`,
      );
      // another size: the pool has to give up what it holds of the first
      for (const block of again) addon.release(block);
      const larger = addon.allocate(device, chunk * Math.max(1, blocks.length - 1));
      addon.release(larger);
      await addon.trim(device);
      bench.note('reservedBytesAtTheEnd', addon.stats(device).reservedBytes);
    },
  },
];
