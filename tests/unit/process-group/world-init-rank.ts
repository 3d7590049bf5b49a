/** One rank of a job, as a user writes it. */
import { World } from '../../../src/process-group/world';
import { Tensor } from '../../../src/tensor/tensor';

async function main(): Promise<void> {
  const world = await World.init();
  try {
    const tensor = Tensor.from([world.rank + 1]);
    await world.group.allReduce(tensor);
    process.stdout.write(`rank ${world.rank}: ${tensor.item()}\n`);
  } finally {
    await world.close();
  }
}

void main();
