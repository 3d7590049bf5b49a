import { World } from '../../../src/process-group/world';

const PLACE = { rank: 0, worldSize: 1 } as const;

test('World.init hands `deterministic` to the backend, whose capabilities then promise no bits', async () => {
  for (const deterministic of [undefined, true, false]) {
    const world = await World.init({ ...PLACE, backend: 'grpc', deterministic });
    try {
      expect(world.group.backend.capabilities.bitwise).toBe(deterministic !== false);
    } finally {
      await world.close();
    }
  }
});

test('the mock takes it and keeps its promise', async () => {
  const world = await World.init({ ...PLACE, backend: 'mock', deterministic: false });
  expect(world.group.backend.capabilities.bitwise).toBe(true);
  await world.close();
  const [first] = World.createMock(2, { deterministic: false });
  expect(first?.group.backend.capabilities.bitwise).toBe(true);
});

test('it is true or false, nothing else', async () => {
  const init = World.init({ ...PLACE, deterministic: 'no' as unknown as boolean });
  await expect(init).rejects.toThrow(/World\.init.*deterministic/s);
});
