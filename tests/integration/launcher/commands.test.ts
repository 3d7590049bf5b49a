import { createServer } from 'node:net';
import { LauncherBench } from './launcher';

let bench: LauncherBench;
beforeAll(() => {
  bench = new LauncherBench();
});
afterAll(() => bench?.close());

describe('lockstep env', () => {
  test('shows what World.init would take, without the token', async () => {
    const env = {
      RANK: '2',
      WORLD_SIZE: '4',
      MASTER_ADDR: '10.0.0.1',
      MASTER_PORT: '29500',
      LOCKSTEP_JOB_TOKEN: 'not for your eyes',
      LOCKSTEP_DATA_PLANE: 'socket',
      LOCKSTEP_TIMEOUT_MS: '60000',
    };
    const { status, stdout, stderr } = await bench.run(['env'], { env });
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    expect(
      Object.fromEntries(
        stdout
          .trim()
          .split('\n')
          .map((line) => line.split(/ {2,}/)),
      ),
    ).toEqual({
      backend: 'grpc',
      rank: '2',
      worldSize: '4',
      localRank: '2',
      masterAddr: '10.0.0.1',
      masterPort: '29500',
      token: 'set (not shown)',
      generation: '0',
      dataPlane: 'socket',
      store: 'not set',
      timeoutMs: '60000',
    });
  });

  test('says what is missing as World.init does', async () => {
    const { status, stdout, stderr } = await bench.run(['env'], { env: { RANK: '1' } });
    expect({ status, stdout }).toEqual({ status: 2, stdout: '' });
    expect(stderr).toMatch(/RANK is 1, but neither environment variable WORLD_SIZE nor options\.worldSize is given/);
  });
});

describe('lockstep store', () => {
  /** By trying to take it: the store warns of strangers that connect. */
  const isTaken = (port: number): Promise<boolean> =>
    new Promise((settle) => {
      const server = createServer();
      server.once('error', () => settle(true));
      server.listen(port, '127.0.0.1', () => server.close(() => settle(false)));
    });

  test('listens until it is told to stop, and frees its port', async () => {
    const store = bench.start(['store', '--port', '0', '--world-size', '2']);
    await store.printed(/listening at 127\.0\.0\.1:\d+ for 2 ranks\n/);
    const port = Number(/127\.0\.0\.1:(\d+)/.exec(store.output())?.[1]);
    expect(await isTaken(port)).toBe(true);
    store.child.kill('SIGTERM');
    expect(await store.ended).toMatchObject({ status: 0, stderr: '' });
    expect(await isTaken(port)).toBe(false);
  });

  test('refuses an open address without a token', async () => {
    const { status, stdout, stderr } = await bench.run(['store', '--port=0', '--world-size=2', '--host=0.0.0.0']);
    expect({ status, stdout }).toEqual({ status: 2, stdout: '' });
    expect(stderr).toMatch(/Set LOCKSTEP_JOB_TOKEN or/);
  });

  test('refuses an address that is not this machine’s, with those that are', async () => {
    const args = ['store', '--port=0', '--world-size=2', '--host=203.0.113.1'];
    const { status, stdout, stderr } = await bench.run(args, { env: { LOCKSTEP_JOB_TOKEN: 'a token' } });
    expect({ status, stdout }).toEqual({ status: 2, stdout: '' });
    expect(stderr).toMatch(/'203\.0\.113\.1' is no address of this machine, which has .*127\.0\.0\.1.*0\.0\.0\.0/);
  });
});
