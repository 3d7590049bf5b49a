/** `lockstep store`: the store of one start of a job, in a process of its own instead of rank 0's. */
import { readFileSync } from 'node:fs';
import { z } from 'zod';
import { asError } from '../core/errors';
import { tokenFromEnvironment } from '../process-group/world-options';
import { badUsage, checkFlags, LARGEST_PORT, MOST_RANKS, wholeNumber } from './flag-values';
import type { FlagTable, ReadFlags } from './flags';
import { StopRequest } from './stop-request';
import type { Terminal } from './rank-output';

export const STORE = 'lockstep store';

export const storeFlags: FlagTable = {
  port: { value: 'PORT', help: 'where ranks connect: their MASTER_PORT; 0 takes a free one' },
  'world-size': { value: 'N', help: 'number of ranks of the job' },
  host: { value: 'HOST', help: 'address of this machine: their MASTER_ADDR (default 127.0.0.1)' },
  generation: { value: 'G', help: "the ranks' LOCKSTEP_GENERATION (default 0)" },
  'tls-ca': { value: 'FILE', help: 'for mutual TLS: the authority that signed all certificates, PEM' },
  'tls-cert': { value: 'FILE', help: "this process's certificate, PEM" },
  'tls-key': { value: 'FILE', help: 'its private key, PEM' },
};

const tlsNames = ['tls-ca', 'tls-cert', 'tls-key'] as const;

const schema = z.strictObject({
  port: wholeNumber(0, LARGEST_PORT),
  'world-size': wholeNumber(1, MOST_RANKS),
  host: z.string().default('127.0.0.1'),
  generation: wholeNumber(0),
  'tls-ca': z.string().optional(),
  'tls-cert': z.string().optional(),
  'tls-key': z.string().optional(),
});

/**
 * Serve the store until a signal ends it; the exit code.
 *
 * @throws InvalidArgumentError naming the flag that is wrong or missing, or the token that is needed
 * @throws BackendUnavailableError if the port is taken, or the host is another machine
 */
export async function runStore({ values, rest }: ReadFlags, terminal: Terminal): Promise<number> {
  const flags = checkFlags(schema, values, STORE);
  const { port, host, generation, 'world-size': worldSize } = flags;
  if (port === undefined) throw badUsage(STORE, '--port is missing');
  if (worldSize === undefined) throw badUsage(STORE, '--world-size is missing');
  if (rest.length > 0) throw badUsage(STORE, `expected no more arguments, got '${rest.join(' ')}'`);
  const tls = readTls(flags);
  const stop = new StopRequest();
  try {
    // grpc-js takes longer to load than everything else here together.
    const { startStore } = await import('../backend/grpc/store-server.js');
    const store = await startStore({ host, port, worldSize, generation, token: tokenFromEnvironment(), tls });
    try {
      terminal.stdout.write(`lockstep store: listening at ${store.addresses.join(', ')} for ${worldSize} ranks\n`);
      await stop.requested;
    } finally {
      await store.close();
    }
  } finally {
    stop.close();
  }
  return 0;
}

function readTls(flags: z.output<typeof schema>): { ca: string; cert: string; key: string } | undefined {
  const given = tlsNames.filter((name) => flags[name] !== undefined);
  if (given.length === 0) return undefined;
  const [ca, cert, key] = tlsNames.map((name) => readPem(name, flags[name]));
  return { ca: ca as string, cert: cert as string, key: key as string };
}

function readPem(name: string, path: string | undefined): string {
  if (path === undefined) throw badUsage(STORE, `--${name} is missing: TLS takes --tls-ca, --tls-cert and --tls-key`);
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    throw badUsage(STORE, `--${name}: ${asError(error).message}`);
  }
}
