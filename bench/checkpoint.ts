/** Saving and loading 100 MB against a plain file of the same bytes, with the same checksum and the same fsync. */
import { mkdtemp, open, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';
import { Module, Parameter, ProcessGroup, Tensor, loadCheckpoint, saveCheckpoint } from 'lockstep';
import { compare, describe, report } from './measure';

const PARAMETERS = 25;
const ELEMENTS = 1_000_000;
const CHUNK_BYTES = 2 ** 20;
const ROUNDS = 9;

class Weights extends Module {
  readonly weights = Array.from({ length: PARAMETERS }, (_unused, i) => new Parameter(Tensor.full([ELEMENTS], i)));

  override async forward(x: Tensor): Promise<Tensor> {
    return x;
  }
}

export async function benchCheckpoint(): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'lockstep-bench-'));
  try {
    await benchIn(folder);
  } finally {
    await rm(folder, { recursive: true });
  }
}

async function benchIn(folder: string): Promise<void> {
  const model = new Weights();
  const group = ProcessGroup.mock();
  const content = Buffer.alloc(PARAMETERS * ELEMENTS * 4, 1);
  const plain = join(folder, 'plain');
  let step = 0;

  const save = async (): Promise<void> =>
    void (await saveCheckpoint(folder, { model, step: step++ }, group, { keep: 1 }));
  const write = async (): Promise<void> => {
    await rm(plain, { force: true });
    await writePlain(plain, content);
  };
  const saving = await compare(save, write, ROUNDS);
  report('save 100 MB to plain write, fsync and CRC-32', ratioOf(saving), 'at most 1.5');

  const load = async (): Promise<void> => void (await loadCheckpoint(folder, { model }, group));
  const loading = await compare(load, () => readPlain(plain), ROUNDS);
  report('load 100 MB to plain read and CRC-32', ratioOf(loading), 'at most 1.5');
}

function ratioOf({ ratio, subject, reference }: Awaited<ReturnType<typeof compare>>): string {
  return `${ratio.toFixed(2)} (${describe(subject)} to ${describe(reference)})`;
}

async function writePlain(path: string, content: Uint8Array): Promise<void> {
  const file = await open(path, 'w');
  try {
    checkAll(content);
    await file.writeFile(content);
    await file.sync();
  } finally {
    await file.close();
  }
}

async function readPlain(path: string): Promise<void> {
  checkAll(await readFile(path));
}

function checkAll(content: Uint8Array): void {
  for (let at = 0; at < content.length; at += CHUNK_BYTES) crc32(content.subarray(at, at + CHUNK_BYTES));
}
