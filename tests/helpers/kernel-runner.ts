/** Runs launches of the NCCL backend's kernels on the CPU, through native-nccl/test/kernel-runner.test.cc. */
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { allocateBuffer, bytesOf, dtypeOf, type HostBuffer } from '../../src/core/dtype';
import type { Block, KernelArgument } from '../../src/backend/nccl/addon';
import type { DeviceElements, KernelLaunch } from '../../src/backend/nccl/kernel-launch';

/** Bytes before and after the elements, which no kernel may touch. */
const GUARD_BYTES = 16;
const GUARD_BYTE = 0xa5;

/** What stands for device memory. */
const memoryOf = (block: Block): Uint8Array => block as unknown as Uint8Array;

/** Elements in pretended device memory, with the contents of `buffer`. */
export function onDevice(buffer: HostBuffer): DeviceElements {
  const memory = new Uint8Array(buffer.byteLength + 2 * GUARD_BYTES).fill(GUARD_BYTE);
  memory.set(bytesOf(buffer), GUARD_BYTES);
  const block = memory as unknown as Block;
  return { block, byteOffset: GUARD_BYTES, dtype: dtypeOf(buffer), length: buffer.length };
}

/** A copy of the elements. */
export function fromDevice<B extends HostBuffer = HostBuffer>(elements: DeviceElements): B {
  const buffer = allocateBuffer(elements.dtype, elements.length);
  const start = elements.byteOffset;
  bytesOf(buffer).set(memoryOf(elements.block).subarray(start, start + buffer.byteLength));
  return buffer as B;
}

/** The same numbers, zeros by their signs; a NaN is a NaN. Jest's own comparison takes seconds for this many. */
export function expectSame(got: ArrayLike<number>, expected: ArrayLike<number>): void {
  expect(got.length).toBe(expected.length);
  for (let i = 0; i < expected.length; i++) {
    if (!Object.is(got[i], expected[i])) expect({ i, value: got[i] }).toEqual({ i, value: expected[i] });
  }
}

type PointerArgument = Extract<KernelArgument, { readonly block: Block }>;

/** The kernels of one build of the runner. */
export class KernelRunner {
  readonly #path: string;
  /** The kernels that have run. */
  readonly launched = new Set<string>();

  /** @param folder that `nativeBuild('tests')` gave */
  constructor(folder: string) {
    this.#path = join(folder, 'kernel-runner.test');
  }

  /** The names of all kernels. */
  list(): string[] {
    return this.#spawn(['--list'], new Uint8Array()).toString().trimEnd().split('\n');
  }

  /** Run launches of different memory. @throws Error if one does not fit its kernel, or changed what it was not to write */
  run(...launches: readonly KernelLaunch[]): void {
    const runs = launches.map((launch) => {
      const pointers = launch.args.filter((arg): arg is PointerArgument => 'block' in arg);
      return { launch, pointers, blocks: [...new Set(pointers.map(({ block }) => block))] };
    });
    const all = runs.flatMap(({ blocks }) => blocks);
    if (new Set(all).size !== all.length) throw new Error('two launches of one call have memory in common');
    const answer = this.#spawn([], Buffer.concat(runs.map(({ launch, blocks }) => encode(launch, blocks))));
    let start = 0;
    for (const { launch, pointers, blocks } of runs) {
      for (const block of blocks) {
        const memory = memoryOf(block);
        const after = answer.subarray(start, (start += memory.length));
        const ofBlock = pointers.filter((pointer) => pointer.block === block);
        checkUntouched(launch.kernel, memory, after, ofBlock);
        memory.set(after);
      }
      this.launched.add(launch.kernel);
    }
  }

  #spawn(args: readonly string[], input: Uint8Array): Buffer {
    const { status, stdout, stderr, error } = spawnSync(this.#path, args, { input, maxBuffer: 64 * 1024 * 1024 });
    // It says why before it leaves input unread, which is an error of its own here.
    if (status !== null && status !== 0) throw new Error(`exit ${status}: ${stderr.toString()}`);
    if (error) throw error;
    return stdout;
  }
}

function checkUntouched(kernel: string, before: Uint8Array, after: Uint8Array, pointers: PointerArgument[]): void {
  const expected = before.slice();
  for (const { byteOffset, byteLength, isWritten } of pointers) {
    if (isWritten) expected.set(after.subarray(byteOffset, byteOffset + byteLength), byteOffset);
  }
  if (!Buffer.from(expected.buffer).equals(after))
    throw new Error(`${kernel} changed memory that it was not to change`);
}

/** See the head of kernel-runner.test.cc. */
function encode({ kernel, gridSize, blockSize, args }: KernelLaunch, blocks: readonly Block[]): Buffer {
  const name = Buffer.from(kernel);
  const parts: Uint8Array[] = [uint32(name.length), name, uint32(gridSize), uint32(blockSize), uint32(blocks.length)];
  for (const block of blocks) parts.push(uint64(memoryOf(block).length), memoryOf(block));
  parts.push(uint32(args.length), ...args.map((arg) => encodeArgument(arg, blocks)));
  return Buffer.concat(parts);
}

function encodeArgument(arg: KernelArgument, blocks: readonly Block[]): Buffer {
  if ('block' in arg) return uint64(arg.isWritten ? 2 : 1, blocks.indexOf(arg.block), arg.byteOffset, arg.byteLength);
  const bits = Buffer.alloc(32);
  if ('uint64' in arg) bits.writeBigUInt64LE(BigInt(arg.uint64), 8);
  else if ('int32' in arg) bits.writeInt32LE(arg.int32, 8);
  else bits.writeFloatLE(arg.float32, 8);
  return bits;
}

function uint32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}

function uint64(...values: readonly number[]): Buffer {
  return Buffer.from(BigUint64Array.from(values, BigInt).buffer);
}
