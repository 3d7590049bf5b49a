/** npm run bench: every figure is a ratio, or a time beside its target, measured in this run. Nothing here is a test. */
import { benchCheckpoint } from './checkpoint';
import { benchDdp } from './ddp';
import { benchGrpc } from './grpc';
import { benchMatmul } from './matmul';
import { benchMockCollectives } from './mock-collectives';
import { benchZero } from './zero';

async function main(): Promise<void> {
  await benchMatmul();
  await benchMockCollectives();
  await benchDdp();
  await benchZero();
  await benchCheckpoint();
  await benchGrpc();
}

main().catch((error: unknown) => {
  process.stderr.write(`${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`);
  process.exitCode = 1;
});
