/** Two machines, as far as the network goes: two network namespaces with a cable between them. For root on Linux. */
import { spawnSync } from 'node:child_process';
import { isLong } from '../../helpers/counts';
import { LauncherBench, sortedLines } from './launcher';

const names = [`lockstep-a-${process.pid}`, `lockstep-b-${process.pid}`] as const;
const addresses = ['10.213.77.1', '10.213.77.2'] as const;

function ip(...args: readonly string[]): boolean {
  return spawnSync('ip', args, { stdio: 'ignore' }).status === 0;
}

function within(name: string, ...args: readonly string[]): boolean {
  return ip('-netns', name, ...args);
}

function canMakeNamespaces(): boolean {
  if (process.platform !== 'linux' || process.getuid?.() !== 0 || !ip('netns', 'add', names[0])) return false;
  return ip('netns', 'del', names[0]);
}

const isPossible = isLong && canMakeNamespaces();
if (!isPossible)
  process.stdout.write('[skip] two network namespaces: needs npm run test:long, Linux, root and ip netns\n');

(isPossible ? describe : describe.skip)('two network namespaces', () => {
  let bench: LauncherBench;

  beforeAll(() => {
    bench = new LauncherBench();
    const [a, b] = names;
    const steps = [
      ip('netns', 'add', a),
      ip('netns', 'add', b),
      within(a, 'link', 'add', 'cable', 'type', 'veth', 'peer', 'name', 'cable', 'netns', b),
      ...names.flatMap((name, index) => [
        within(name, 'address', 'add', `${addresses[index]}/24`, 'dev', 'cable'),
        within(name, 'link', 'set', 'cable', 'up'),
        within(name, 'link', 'set', 'lo', 'up'),
      ]),
    ];
    expect(steps).not.toContain(false);
  });

  afterAll(() => {
    bench?.close();
    for (const name of names) ip('netns', 'del', name);
  });

  test.each(['socket', 'grpc'])(
    'a launcher in each: one world, over real addresses, on the plane %s',
    async (dataPlane) => {
      const script = bench.script(
        'sum.js',
        `const { World, Tensor, allReduceSum } = require(${JSON.stringify(bench.dist)});
         void (async () => {
           const world = await World.init();
           const tensor = Tensor.ones([500_000]);
           await allReduceSum(tensor, world.group);
           console.log('sum', tensor.data[0], tensor.data[499_999]);
           await world.close();
         })();`,
      );
      const flags = ['--nproc=2', '--nnodes=2', `--master-addr=${addresses[0]}`, `--data-plane=${dataPlane}`];
      const ends = await Promise.all(
        names.map((name, nodeRank) =>
          bench.run(['run', ...flags, `--node-rank=${nodeRank}`, script], {
            env: { LOCKSTEP_JOB_TOKEN: 'known to both' },
            through: ['ip', 'netns', 'exec', name],
          }),
        ),
      );
      expect(ends.map(({ status, stderr }) => ({ status, stderr }))).toEqual(
        [0, 1].map(() => ({ status: 0, stderr: '' })),
      );
      expect(ends.flatMap(({ stdout }) => sortedLines(stdout))).toEqual(
        [0, 1, 2, 3].map((rank) => `[${rank}] sum 4 4`),
      );
    },
    60_000,
  );
});
