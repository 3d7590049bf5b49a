import { createHash } from 'node:crypto';
import { mkdtemp, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import golden from '../../fixtures/golden/safetensors.json';
import { readSafetensors, writeSafetensors } from '../../../src/checkpoint/safetensors';
import { checksum, crc32 } from '../../../src/checkpoint/checksum';
import { duplicateKey } from '../../../src/checkpoint/duplicate-keys';
import { bytesOf, DTYPES, isSameBits } from '../../../src/core/dtype';
import { isLockstepError } from '../../../src/core/errors';
import { memory } from '../../../src/core/memory-account';
import { Tensor } from '../../../src/tensor/tensor';
import { holds, holdsAsync } from '../../helpers/property';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'lockstep-safetensors-'));
});
afterAll(() => rm(folder, { recursive: true }));

async function fileOf(content: Uint8Array | string): Promise<string> {
  const bytes = Buffer.from(content as string, 'base64');
  const path = join(folder, `${createHash('sha256').update(bytes).digest('hex')}.safetensors`);
  await writeFile(path, bytes);
  return path;
}

const DTYPE: Readonly<Record<string, string>> = {
  F64: 'float64',
  F32: 'float32',
  F16: 'float16',
  BF16: 'bfloat16',
  I64: 'int64',
  I32: 'int32',
  I8: 'int8',
  U8: 'uint8',
};

interface GoldenTensor {
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly values: readonly (number | string)[];
  readonly bits?: readonly number[];
}

describe('files of another writer', () => {
  test.each(golden.valid)(
    '$name: every tensor has its dtype, shape and bits',
    async ({ base64, metadata, tensors }) => {
      const read = await readSafetensors(await fileOf(base64));
      expect(read.metadata ?? null).toEqual(metadata);
      const expected = Object.entries(tensors as Record<string, GoldenTensor>);
      expect([...read.tensors.keys()].sort()).toEqual(expected.map(([name]) => name).sort());
      for (const [name, { dtype, shape, values, bits }] of expected) {
        const tensor = read.tensors.get(name) as Tensor;
        expect(tensor.dtype).toBe(DTYPE[dtype]);
        expect(tensor.shape).toEqual(shape);
        if (bits !== undefined) expect(Array.from(tensor.data, Number)).toEqual(bits);
        else if (dtype === 'I64') expect(Array.from(tensor.data, String)).toEqual(values.map(String));
        else expect(Array.from(tensor.data, Number)).toEqual(values.map(Number));
      }
    },
  );

  test.each(golden.mustReject)('malformed: $name is refused with a typed error', async ({ base64 }) => {
    const path = await fileOf(base64);
    const before = memory.totals().live;
    const error: unknown = await readSafetensors(path).catch((thrown: unknown) => thrown);
    expect(isLockstepError(error, 'LOCKSTEP_INVALID_ARGUMENT')).toBe(true);
    expect((error as Error).message).toContain(path);
    expect(memory.totals().live).toBe(before);
  });

  test("files in the order of the format's own writer are written back byte for byte", async () => {
    for (const wanted of ['no tensors', 'empty header object', 'special float values']) {
      const { base64 } = golden.valid.find(({ name }) => name === wanted) as { readonly base64: string };
      const { tensors, metadata } = await readSafetensors(await fileOf(base64));
      const path = join(folder, 'again.safetensors');
      await writeSafetensors(path, tensors, metadata);
      if (wanted !== 'special float values') expect(await readFile(path, 'base64')).toBe(base64);
      else expect((await readSafetensors(path)).tensors).toEqual(tensors);
    }
  });

  test('the widest tensors come first, then by name, all aligned', async () => {
    const path = join(folder, 'order.safetensors');
    const of = (dtype: 'uint8' | 'float32' | 'int64' | 'float16') => Tensor.zeros([1], { dtype });
    await writeSafetensors(path, {
      u: of('uint8'),
      h: of('float16'),
      b: of('float32'),
      a: of('float32'),
      i: of('int64'),
    });
    const file = await readFile(path);
    const header = file.subarray(8, 8 + file.readUInt32LE()).toString();
    expect(header.trimEnd()).toBe(
      '{"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},' +
        '"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]},"h":{"dtype":"F16","shape":[1],"data_offsets":[16,18]},' +
        '"u":{"dtype":"U8","shape":[1],"data_offsets":[18,19]}}',
    );
    expect(header.length % 8).toBe(0);
    expect(file.length).toBe(8 + header.length + 19);
  });

  test('a damaged header of a valid file is refused or read, never a crash', async () => {
    const valid = Buffer.from(golden.valid[0]?.base64 as string, 'base64');
    await holdsAsync(
      'damaged safetensors headers',
      fc.asyncProperty(fc.nat(valid.length - 1), fc.integer({ min: 1, max: 255 }), async (at, flip) => {
        const damaged = Buffer.from(valid);
        damaged[at] = (damaged[at] as number) ^ flip;
        const path = join(folder, 'damaged.safetensors');
        await writeFile(path, damaged);
        const error: unknown = await readSafetensors(path)
          .then(() => undefined)
          .catch((thrown: unknown) => thrown);
        expect(error === undefined || isLockstepError(error)).toBe(true);
      }),
    );
  });

  test('a dtype that Lockstep has not is named; BOOL comes as uint8', async () => {
    const write = async (dtype: string) => {
      const json = `{"mask":{"dtype":"${dtype}","shape":[2],"data_offsets":[0,2]}}`;
      const prefix = Buffer.alloc(8);
      prefix.writeUInt32LE(json.length);
      return fileOf(Buffer.concat([prefix, Buffer.from(json), Buffer.from([1, 0])]).toString('base64'));
    };
    const { tensors } = await readSafetensors(await write('BOOL'));
    expect(tensors.get('mask')).toEqual(Tensor.from(Uint8Array.of(1, 0)));
    await expect(readSafetensors(await write('F8_E4M3'))).rejects.toThrow(/tensor 'mask': .* no dtype for F8_E4M3/);
  });
});

describe('our own files', () => {
  test('tensors of every dtype come back with the same bits, in aligned places', async () => {
    const path = join(folder, 'own.safetensors');
    await holdsAsync(
      'safetensors round trip',
      fc.asyncProperty(
        fc.uniqueArray(
          fc.tuple(fc.string({ unit: 'grapheme' }), fc.constantFrom(...DTYPES), fc.array(fc.nat(4), { maxLength: 3 })),
          {
            selector: ([name]) => name,
            maxLength: 6,
          },
        ),
        fc.option(fc.dictionary(fc.string(), fc.string()), { nil: undefined }),
        async (forms, metadata) => {
          const tensors = new Map(
            forms.map(([name, dtype, shape], seed) => {
              const tensor = Tensor.zeros(shape, { dtype });
              bytesOf(tensor.data).forEach((_byte, i, bytes) => (bytes[i] = (i + 3) * (seed + 7) * 31));
              return [name, tensor] as const;
            }),
          );
          await writeSafetensors(path, tensors, metadata);
          const read = await readSafetensors(path);
          expect(read.metadata).toEqual(metadata);
          expect(read.tensors.size).toBe(tensors.size);
          for (const [name, tensor] of tensors) {
            const { dtype, shape, data } = read.tensors.get(name) as Tensor;
            expect({ dtype, shape }).toEqual({ dtype: tensor.dtype, shape: tensor.shape });
            expect(isSameBits(data, tensor.data)).toBe(true);
          }
        },
      ),
      { short: 40, long: 1000 },
    );
    expect((await readdir(folder)).filter((name) => name.includes('tmp'))).toEqual([]);
  });

  test('a file or folder that is not there is a CheckpointError with the path and the cause', async () => {
    const path = join(folder, 'none', 'model.safetensors');
    const error = {
      code: 'LOCKSTEP_CHECKPOINT',
      message: expect.stringContaining(path),
      context: { cause: expect.objectContaining({ code: 'ENOENT' }) },
    };
    await expect(readSafetensors(path)).rejects.toMatchObject(error);
    await expect(writeSafetensors(path, { a: Tensor.ones([1]) })).rejects.toMatchObject(error);
    await expect(readSafetensors(folder)).rejects.toMatchObject({ message: expect.stringMatching(/EISDIR/) });
  });

  test('only the tensors that are asked for are read', async () => {
    const path = join(folder, 'part.safetensors');
    await writeSafetensors(path, { a: Tensor.ones([2]), b: Tensor.zeros([3]) });
    const { tensors } = await readSafetensors(path, { names: ['b'] });
    expect([...tensors.keys()]).toEqual(['b']);
    await expect(readSafetensors(path, { names: ['c'] })).rejects.toThrow(/no tensor 'c'. It has: a, b/);
  });

  test('what the format does not hold is refused, and the old file stays', async () => {
    const path = join(folder, 'kept.safetensors');
    await writeSafetensors(path, { a: Tensor.ones([2]) });
    const old = await readFile(path);
    await expect(writeSafetensors(path, { __metadata__: Tensor.ones([1]) })).rejects.toThrow(/__metadata__/);
    await expect(writeSafetensors(path, { a: 3 as unknown as Tensor })).rejects.toThrow(/tensors by name.*'a'/);
    await expect(writeSafetensors(path, {}, { step: 3 } as never)).rejects.toThrow(/metadata/);
    await expect(writeSafetensors(join(folder, 'none', 'x'), { a: Tensor.ones([1]) })).rejects.toThrow(/ENOENT/);
    expect(await readFile(path)).toEqual(old);
  });
});

test('the checksum is CRC-32, and both ways to compute it agree', () => {
  expect(checksum(Buffer.from('123456789'))).toBe('cbf43926');
  holds(
    'crc32',
    fc.property(fc.uint8Array({ maxLength: 300 }), (bytes) => {
      expect(crc32(bytes).toString(16).padStart(8, '0')).toBe(checksum(bytes));
    }),
  );
});

test('keys that occur twice in one object are found, whatever the text around them', () => {
  expect(duplicateKey('{"a":1,"b":{"a":2},"c":["a","a",{"a":1}]}')).toBeUndefined();
  expect(duplicateKey(String.raw`{"a\"":1,"x":"\\","a\u0022":2}`)).toBe('a"');
  expect(duplicateKey('[{"a":{"b":1,"b":2}}]')).toBe('b');
});
