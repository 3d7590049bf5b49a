/** Calls that the addon must refuse: each with the error that it throws, at once. */
import type { Communicator, Device, KernelArgument, NcclAddon, NcclOperation } from '../../src/backend/nccl/addon';

/** Class and message of the error, by the name of the case; 'nothing was thrown' where the call went through. */
export function misuse(
  addon: NcclAddon,
  device: Device,
  otherDevice: Device,
  communicator: Communicator,
): Record<string, string> {
  const block = addon.allocate(device, 64);
  const otherBlock = addon.allocate(otherDevice, 64);
  const view = new Uint8Array(64);
  const found: Record<string, string> = {};

  function refused(name: string, call: () => unknown): void {
    try {
      const returned = call();
      // Not waited for: a wrong argument must not become a rejection.
      if (returned instanceof Promise) returned.catch(() => undefined);
      found[name] = 'nothing was thrown';
    } catch (error) {
      const { name: kind, message } = error as Error;
      found[name] = `${kind}: ${message}`;
    }
  }
  const wrong = (value: unknown): never => value as never;
  const upload = (changed: unknown): unknown => addon.upload(block, 0, wrong(changed), 1000);

  refused('no device', () => addon.allocate(wrong(undefined), 4));
  refused('a block as device', () => addon.allocate(wrong(block), 4));
  refused('a device as block', () => addon.release(wrong(device)));
  refused('an object as block', () => addon.release(wrong({})));
  refused('a device as communicator', () => addon.commDestroy(wrong(device), 1000));
  refused('a block among communicators', () => addon.commAbort([communicator, wrong(block)], 'why'));
  refused('negative bytes', () => addon.allocate(device, -1));
  refused('half a byte', () => addon.allocate(device, 1.5));
  refused('bytes that are no number', () => addon.allocate(device, NaN));
  refused('bytes beyond all counting', () => addon.allocate(device, 2 ** 53));
  refused('bytes as text', () => addon.allocate(device, wrong('4')));
  refused('device number as bigint', () => addon.openDeviceSync(wrong(0n), {}));
  refused('no options', () => addon.openDeviceSync(0, wrong(undefined)));
  refused('paths that are no list', () => addon.probe(wrong({ cuda: 'libcuda.so.1', nccl: [] })));

  refused('an upload past the end', () => addon.upload(block, 1, view, 1000));
  refused('a download past the end', () => addon.download(block, 64, view, 1000));
  refused('an offset that overflows', () => addon.download(block, 2 ** 53 - 1, view, 1000));
  refused('a negative timeout', () => addon.upload(block, 0, view, -1));
  refused('a timeout that is no number', () => addon.upload(block, 0, view, NaN));
  refused('a view of other numbers', () => upload(new Float32Array(4)));
  refused('a buffer as view', () => upload(new ArrayBuffer(4)));
  refused('shared memory', () => upload(new Uint8Array(new SharedArrayBuffer(4))));
  refused('resizable memory', () => {
    const Resizable = ArrayBuffer as unknown as new (bytes: number, options: object) => ArrayBuffer;
    return upload(new Uint8Array(new Resizable(4, { maxByteLength: 8 })));
  });
  refused('memory given away', () => {
    const gone = new Uint8Array(4);
    structuredClone(gone, { transfer: [gone.buffer] });
    return upload(gone);
  });
  refused('a copy past the end of the target', () => addon.copy(block, 32, block, 0, 64));
  refused('a copy past the end of the source', () => addon.copy(block, 0, block, 32, 64));
  refused('a copy between devices', () => addon.copy(block, 0, otherBlock, 0, 4));

  const launch = (argument: unknown): void => addon.launch(device, 'k', 1, 32, [argument as KernelArgument]);
  refused('an unknown kernel', () => addon.launch(device, 'no_such_kernel', 1, 32, []));
  refused('no thread block', () => addon.launch(device, 'k', 0, 32, []));
  refused('too many threads', () => addon.launch(device, 'k', 1, 1025, []));
  refused('an empty kernel argument', () => launch({}));
  refused('a kernel argument out of range', () => launch({ int32: 2 ** 31 }));
  refused('a kernel pointer past the end', () => launch({ block, byteOffset: 32, byteLength: 33, isWritten: true }));
  refused('a kernel pointer to another device', () =>
    launch({ block: otherBlock, byteOffset: 0, byteLength: 4, isWritten: true }),
  );

  const id = addon.uniqueId();
  const init = (changed: object): unknown =>
    addon.commInit(device, { size: 2, rank: 0, id, timeoutMs: 1000, name: 'x', ...changed });
  refused('a rank outside the world', () => init({ rank: 2 }));
  refused('a world of nobody', () => init({ size: 0 }));
  refused('a short id', () => init({ id: new Uint8Array(127) }));
  refused('an id as text', () => init({ id: 'x'.repeat(128) }));
  refused('a name that is no text', () => init({ name: 3 }));
  refused('a color below -1', () => addon.commSplit(communicator, { color: -2, key: 0, timeoutMs: 1000, name: 'x' }));

  const place = { block, byteOffset: 0 };
  const allReduce = { kind: 'allReduce', dtype: 'float32', op: 'sum', count: 16, send: place, recv: place };
  const run = (changed: object): unknown =>
    addon.collective(communicator, [{ ...allReduce, ...changed } as NcclOperation], { label: 'x', timeoutMs: 1000 });
  refused('no operation', () => addon.collective(communicator, [], { label: 'x', timeoutMs: 1000 }));
  refused('no label', () => addon.collective(communicator, [allReduce as NcclOperation], wrong({ timeoutMs: 1 })));
  refused('an unknown kind', () => run({ kind: 'allToAll' }));
  refused('an unknown dtype', () => run({ dtype: 'float8' }));
  refused('an unknown reduction', () => run({ op: 'xor' }));
  refused('a count past the end', () => run({ count: 17 }));
  refused('a count that overflows', () => run({ count: 2 ** 53 - 1, dtype: 'float64' }));
  refused('an offset between elements', () => run({ count: 1, recv: { block, byteOffset: 2 } }));
  refused('a root outside the world', () => run({ kind: 'broadcast', root: 1 }));
  refused('a peer outside the world', () => run({ kind: 'send', peer: 1 }));
  refused('no root', () => run({ kind: 'reduce' }));
  refused('no receive buffer', () => run({ recv: undefined }));
  refused('a buffer of another device', () => run({ send: { block: otherBlock, byteOffset: 0 } }));
  refused('buffers that overlap', () => run({ count: 8, recv: { block, byteOffset: 4 } }));
  return found;
}
