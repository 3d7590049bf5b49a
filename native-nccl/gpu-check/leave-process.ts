/** Leaves with exit code 7 while a communicator works and copies are on their way. */
import { asError } from '../../src/core/errors';
import { Bench, WAIT_MS } from './bench';

async function main(): Promise<void> {
  const bench = new Bench(false);
  const { addon } = bench;
  const communicator = await bench.communicator();
  const bytes = new Uint8Array(2 ** 24);
  const block = addon.allocate(bench.device(), bytes.length);
  const operand = { block, byteOffset: 0 };
  const pending = Array.from({ length: 20 }, () => [
    addon.upload(block, 0, bytes, WAIT_MS),
    addon.collective(
      communicator,
      [{ kind: 'allReduce', count: 2 ** 22, dtype: 'float32', send: operand, recv: operand, op: 'sum' }],
      { label: 'never awaited', timeoutMs: WAIT_MS },
    ),
  ]).flat();
  void Promise.allSettled(pending);
  process.exit(7);
}

main().catch((error: unknown) => {
  process.stderr.write(`${asError(error).stack}\n`);
  process.exit(1);
});
