/** What the commands refuse before they start anything. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { DATA_PLANES } from '../../../src/backend/backend-init';
import { InvalidArgumentError } from '../../../src/core/errors';
import { describeFlags, readFlags } from '../../../src/launcher/flags';
import { tokenVariables } from '../../../src/launcher/job-token';
import { readRunOptions, RUN, runFlags } from '../../../src/launcher/run-options';
import { runStore, STORE, storeFlags } from '../../../src/launcher/store-command';
import { readWorldSettings } from '../../../src/process-group/world-options';

const environment = process.env;
let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'lockstep-command-lines-'));
  writeFileSync(join(folder, 'x.js'), '');
});
beforeEach(() => {
  process.env = Object.fromEntries(Object.entries(environment).filter(([name]) => !name.startsWith('LOCKSTEP_')));
});
afterEach(() => {
  process.env = environment;
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

describe('lockstep run refuses', () => {
  test.each<[string, string[], Record<string, string>, RegExp]>([
    ['no script', ['--nproc', '2'], {}, /expected a script to run, as lockstep run --nproc 4 train\.js/],
    ['a script that is not there', ['none.js'], {}, /there is no file 'none\.js' to run \(looked for .*none\.js\)/],
    ['an unknown flag', ['--nprocs', '2', 'x.js'], {}, /unknown flag --nprocs\. Is --nproc meant\?/],
    ['a flag without its value', ['--nproc'], {}, /--nproc needs a value/],
    ['a switch with a value', ['--no-prefix=yes'], {}, /--no-prefix is a switch and takes no value, got 'yes'/],
    ['no rank', ['--nproc', '0', 'x.js'], {}, /--nproc: expected a whole number from 1 to 4096, got '0'/],
    ['a word', ['--max-restarts', 'many'], {}, /--max-restarts: expected a whole number from 0, got 'many'/],
    ['a port', ['--master-port', '70000'], {}, /--master-port: expected a whole number from 1 to 65535, got '70000'/],
    ['a data plane', ['--data-plane', 'udp'], {}, /--data-plane: expected auto, grpc, socket or native, got 'udp'/],
    ['several', ['--nproc', '-1', '--timeout-ms', '1.5'], {}, /--nproc: .* got '-1'; --timeout-ms: .* got '1\.5'/],
    ['no node rank', ['--nnodes', '2'], {}, /--node-rank is missing: with --nnodes 2 .* 0 to 1/],
    [
      'a node rank',
      ['--nnodes', '2', '--node-rank', '2'],
      {},
      /--node-rank: expected 0 to 1, since --nnodes is 2, got '2'/,
    ],
    ['no address', ['--nnodes', '2', '--node-rank', '0'], {}, /--master-addr is missing/],
    [
      'a generation',
      ['x.js'],
      { LOCKSTEP_GENERATION: 'x' },
      /LOCKSTEP_GENERATION: expected a whole number from 0, got 'x'/,
    ],
  ])('%s', (_what, args, variables, message) => {
    Object.assign(process.env, variables);
    const words = args.map((word) => (word === 'x.js' ? join(folder, word) : word));
    const read = (): unknown => readRunOptions(readFlags(words, runFlags, RUN));
    expect(read).toThrow(InvalidArgumentError);
    expect(read).toThrow(message);
    expect(read).not.toThrow(/\n/);
  });

  test('no data plane that World.init takes: of one that is not there the rank says why', () => {
    for (const dataPlane of DATA_PLANES) {
      const words = ['--data-plane', dataPlane, join(folder, 'x.js')];
      expect(readRunOptions(readFlags(words, runFlags, RUN)).dataPlane).toBe(dataPlane);
      const place = { rank: 0, worldSize: 1, dataPlane };
      expect(readWorldSettings(place).dataPlane).toBe(dataPlane);
    }
    expect(describeFlags(runFlags)).toMatch(/--data-plane KIND +auto, grpc, socket or native \(default auto\)/);
  });

  test('several machines without a common token', () => {
    const message = /all machines must share one token: set LOCKSTEP_JOB_TOKEN, or LOCKSTEP_JOB_TOKEN_FILE/;
    expect(() => tokenVariables(2)).toThrow(message);
    process.env['LOCKSTEP_JOB_TOKEN'] = 'known to both';
    expect(tokenVariables(2)).toEqual({});
  });
});

describe('lockstep store refuses', () => {
  const terminal = { stdout: new PassThrough(), stderr: new PassThrough() };

  test.each<[string, string[], RegExp]>([
    ['no port', ['--world-size', '2'], /--port is missing/],
    ['no world size', ['--port', '0'], /--world-size is missing/],
    ['an argument', ['--port', '0', '--world-size', '2', 'x'], /expected no more arguments, got 'x'/],
    ['half of TLS', ['--port', '0', '--world-size', '2', '--tls-key', '/dev/null'], /--tls-ca is missing/],
  ])('%s', async (_what, args, message) => {
    const end = async (): Promise<number> => runStore(readFlags(args, storeFlags, STORE), terminal);
    await expect(end()).rejects.toThrow(InvalidArgumentError);
    await expect(end()).rejects.toThrow(message);
  });
});
