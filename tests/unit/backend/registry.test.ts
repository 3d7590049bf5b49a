import {
  backendNames,
  createBackend,
  isNcclAvailable,
  ncclUnavailableReason,
  registerBackend,
} from '../../../src/backend/registry';
import { MockBackend } from '../../../src/backend/mock/mock-backend';
import { failureOf } from './mock-worlds';

test('the mock makes a world of one', async () => {
  const backend = await createBackend('mock', { rank: 0, worldSize: 1 });
  expect(backend).toMatchObject({ name: 'mock', rank: 0, worldSize: 1 });
  await backend.close();
});

test('the mock does not join a job of several processes, and says what does', async () => {
  const error = await failureOf(createBackend('mock', { rank: 0, worldSize: 4 }));
  expect(error).toMatchObject({ name: 'BackendUnavailableError', code: 'LOCKSTEP_UNAVAILABLE' });
  expect(error.message).toMatch(/all ranks in one process.*job of 4 processes.*createWorld\(4\) or runWorld/);
});

function loadedFrom(name: string): string[] {
  return Object.keys(require.cache).filter((path) => path.includes(name));
}

test('grpc is not loaded before it is asked for, and asks where the ranks meet', async () => {
  expect(loadedFrom('grpc-js')).toEqual([]);
  const error = await failureOf(createBackend('grpc', { rank: 0, worldSize: 2 }));
  expect(error.name).toBe('InvalidArgumentError');
  expect(error.message).toMatch(/'grpc' needs the address of the machine of rank 0.*MASTER_ADDR.*options.masterAddr/);
});

test('grpc makes a world of one without being told an address', async () => {
  const backend = await createBackend('grpc', { rank: 0, worldSize: 1 });
  expect(backend).toMatchObject({ name: 'grpc', rank: 0, worldSize: 1 });
  expect(loadedFrom('grpc-js')).not.toEqual([]);
  await backend.close();
});

test('nccl asks where the ranks meet, as grpc does', async () => {
  const error = await failureOf(createBackend('nccl', { rank: 0, worldSize: 2 }));
  expect(error.name).toBe('InvalidArgumentError');
  expect(error.message).toMatch(/'nccl' needs the address of the machine of rank 0.*MASTER_ADDR.*options.masterAddr/);
});

test('nccl makes a world of one, or says what this machine lacks', async () => {
  const outcome = await createBackend('nccl', { rank: 0, worldSize: 1 }).then(
    async (backend) => {
      await backend.close();
      return 'made';
    },
    (error: Error) => `${error.name}: ${error.message}`,
  );
  const reason = ncclUnavailableReason();
  expect(isNcclAvailable()).toBe(reason === undefined);
  if (reason === undefined) expect(outcome).toBe('made');
  else expect(outcome).toMatch(/^BackendUnavailableError: World.init: the backend 'nccl' cannot run/);
  expect(outcome).toContain(reason ?? 'made');
});

test('an unknown name is refused with the list of known ones', async () => {
  const error = await failureOf(createBackend('gloo', { rank: 0, worldSize: 2 }));
  expect(error.name).toBe('InvalidArgumentError');
  expect(error.message).toMatch(/no backend 'gloo'.*mock, grpc, nccl.*registerBackend/);
});

test('a backend of the user’s own can be registered, once, and removed', async () => {
  const remove = registerBackend('mine', ({ rank }) => MockBackend.createWorld(rank + 1)[rank] as MockBackend);
  expect(backendNames()).toContain('mine');
  expect((await createBackend('mine', { rank: 2, worldSize: 3 })).rank).toBe(2);
  expect(() => registerBackend('mine', () => MockBackend.single())).toThrow(/there is a backend 'mine' already/);
  remove();
  expect(backendNames()).not.toContain('mine');
  expect(() => registerBackend('', () => MockBackend.single())).toThrow(/expected a name/);
});
