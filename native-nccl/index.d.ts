/**
 * The addon as JavaScript sees it. It holds no policy: it converts, calls and says what came of it. Lockstep's NcclBackend
 * (src/backend/nccl/) is the one user; these functions are not for programs.
 *
 * Order: commands of a device run in the order in which they are given (one queue, one engine thread). What they do on
 * the device may overlap, but accesses to the same buffer happen in the order of the commands, whatever their streams.
 *
 * Errors: an argument of the wrong type or out of range throws a TypeError or RangeError at once. All else is a
 * NativeFailure: thrown by synchronous functions, or the reason of a rejection.
 */

/** Number of this interface; a library and an addon with different ones do not work together. */
export const INTERFACE_VERSION: number;

/** `code` of an Error that the addon makes. */
export type NativeFailureCode =
  /** The driver or NCCL is not there, or cannot be used; or the process can have no more threads. */
  | 'UNAVAILABLE'
  /** The device has no memory left, not even after unused memory was given back. */
  | 'OUT_OF_MEMORY'
  /** A CUDA call failed. After a sticky error `isDeviceLost` is true, and every later call on the device fails with the first one. */
  | 'CUDA'
  /** An NCCL call failed, or a communicator reported an asynchronous error. */
  | 'NCCL'
  /** Not finished within its timeout. A communicator that timed out has been aborted. */
  | 'TIMEOUT'
  /** The communicator was aborted, by commAbort or after the failure of another operation, whose message is part of this one. */
  | 'ABORTED'
  /** The device, buffer or communicator was closed or released before. */
  | 'CLOSED';

export interface NativeFailure extends Error {
  readonly code: NativeFailureCode;
  /** The library function that failed, as 'ncclAllReduce'. */
  readonly call?: string;
  /** What that function returned. */
  readonly result?: number;
  /** ncclGetLastError, where NCCL said more. */
  readonly detail?: string;
  readonly isDeviceLost?: boolean;
}

/** What became of loading one library. */
export interface LibraryProbe {
  readonly isLoaded: boolean;
  /** What was given to the loader, for the one that loaded. */
  readonly path?: string;
  /** Every name or path that was tried, in order. */
  readonly tried: readonly string[];
  /** cuDriverGetVersion (13000 is 13.0), or ncclGetVersion (22403 is 2.24.3). */
  readonly version?: number;
  /** What the loader or the library said against it. */
  readonly error?: string;
}

export interface Probe {
  readonly cuda: LibraryProbe;
  readonly nccl: LibraryProbe;
  /** 0 where the driver is not loaded. */
  readonly deviceCount: number;
}

/** Paths or names to give to the loader, in order; the first that loads is used. */
export interface LibraryPaths {
  readonly cuda: readonly string[];
  readonly nccl: readonly string[];
}

/**
 * Load the libraries; the first call in a process decides, later ones say what it found. Never throws for a library
 * that is missing, too old or incomplete.
 */
export function probe(paths: LibraryPaths): Probe;

export interface DeviceInfo {
  readonly name: string;
  /** Of the hardware, 32 hexadecimal digits. */
  readonly uuid: string;
  /** As '0000:3b:00.0'. */
  readonly pciBusId: string;
  readonly totalBytes: number;
  /** As [9, 0]. */
  readonly computeCapability: readonly [number, number];
}
export function deviceInfo(index: number): DeviceInfo;

declare const deviceTag: unique symbol;
declare const blockTag: unique symbol;
declare const communicatorTag: unique symbol;
export interface Device {
  readonly [deviceTag]: true;
}
/** Device memory. Reference counted: this handle and every command in flight hold it. */
export interface Block {
  readonly [blockTag]: true;
}
export interface Communicator {
  readonly [communicatorTag]: true;
}

/**
 * Open the device, start its engine, load all kernels; on a thread of its own, since making a context and compiling kernels
 * may take the driver seconds. @param ptx text of the module; undefined: no kernels
 */
export function openDevice(index: number, options: { readonly ptx?: string | undefined }): Promise<Device>;
/** The same on the calling thread. */
export function openDeviceSync(index: number, options: { readonly ptx?: string | undefined }): Device;
/** Abort what runs, free everything, end the engine. Idempotent. */
export function closeDevice(device: Device): Promise<void>;
/** Settles when every command given before has finished on the device. */
export function synchronize(device: Device, timeoutMs: number): Promise<void>;

/** Memory of `byteLength` bytes, aligned to 512; its contents are undefined. byteLength 0 is legal. */
export function allocate(device: Device, byteLength: number): Block;
/** Drop this handle. The memory is used again when no command in flight needs it. Idempotent. */
export function release(block: Block): void;
/**
 * Give unused memory back to the driver, once all commands given before have finished on the device; later ones wait. Nothing
 * is given back where a communicator is leaked.
 */
export function trim(device: Device): Promise<void>;

/** Host to device. The view must stay as it is, and its memory where it is (not transferred), until the promise settles. */
export function upload(block: Block, byteOffset: number, view: Uint8Array, timeoutMs: number): Promise<void>;
/** Device to host. After the promise has settled, either way, the addon does not write to the view any more. */
export function download(block: Block, byteOffset: number, view: Uint8Array, timeoutMs: number): Promise<void>;
/** Device to device, on the compute stream. Errors come with the next promise of this device. */
export function copy(
  target: Block,
  targetOffset: number,
  source: Block,
  sourceOffset: number,
  byteLength: number,
): void;

/** One argument of a kernel, in the order of its parameters. `isWritten` of a pointer: the kernel changes that memory. */
export type KernelArgument =
  | { readonly block: Block; readonly byteOffset: number; readonly byteLength: number; readonly isWritten: boolean }
  | { readonly uint64: number }
  | { readonly int32: number }
  | { readonly float32: number };
/** Launch on the compute stream. Errors come with the next promise of this device. @throws RangeError for an unknown kernel */
export function launch(
  device: Device,
  kernel: string,
  gridSize: number,
  blockSize: number,
  args: readonly KernelArgument[],
): void;

/** ncclGetUniqueId, 128 bytes. This process must live until all ranks have initialised their communicators. */
export function uniqueId(): Uint8Array;
export function commInit(
  device: Device,
  options: {
    readonly size: number;
    readonly rank: number;
    readonly id: Uint8Array;
    readonly timeoutMs: number;
    /** For messages and the flight recorder. */
    readonly name: string;
  },
): Promise<Communicator>;
/** Collective over the parent, on which nothing else may be in flight. @param color -1: no part in the child; then undefined */
export function commSplit(
  parent: Communicator,
  options: { readonly color: number; readonly key: number; readonly timeoutMs: number; readonly name: string },
): Promise<Communicator | undefined>;

/** ncclDataType_t by name; 16-bit floats as in Lockstep. */
export type NcclDType = 'int8' | 'uint8' | 'int32' | 'int64' | 'float16' | 'bfloat16' | 'float32' | 'float64';
export type NcclReduceOp = 'sum' | 'product' | 'min' | 'max' | 'average';

interface Operand {
  readonly block: Block;
  readonly byteOffset: number;
}
/** Counts are elements, in NCCL's sense: of allGather what each rank sends, of reduceScatter what each receives. */
export type NcclOperation = { readonly count: number; readonly dtype: NcclDType } & (
  | { readonly kind: 'allReduce'; readonly send: Operand; readonly recv: Operand; readonly op: NcclReduceOp }
  | { readonly kind: 'broadcast'; readonly send: Operand; readonly recv: Operand; readonly root: number }
  | {
      readonly kind: 'reduce';
      readonly send: Operand;
      /** Not looked at on other ranks than the root. */
      readonly recv: Operand;
      readonly op: NcclReduceOp;
      readonly root: number;
    }
  | { readonly kind: 'allGather'; readonly send: Operand; readonly recv: Operand }
  | { readonly kind: 'reduceScatter'; readonly send: Operand; readonly recv: Operand; readonly op: NcclReduceOp }
  | { readonly kind: 'send'; readonly send: Operand; readonly peer: number }
  | { readonly kind: 'recv'; readonly recv: Operand; readonly peer: number }
);
/**
 * Issue the operations on the communication stream, as one NCCL group where there are several. Settles when they are
 * done on the device.
 * @param label what this call is, for messages and the flight recorder
 * @param timeoutMs from now; when it is over the promise rejects and the communicator is aborted
 */
export function collective(
  communicator: Communicator,
  operations: readonly NcclOperation[],
  options: { readonly label: string; readonly timeoutMs: number },
): Promise<void>;

/** End what is in flight on the communicators, together, on a helper thread, and use them no more. Returns at once; idempotent. */
export function commAbort(communicators: readonly Communicator[], reason: string): void;
/**
 * Finalize and destroy; aborts instead where something is in flight or has failed, or at the timeout. Idempotent. Rejects with
 * what NCCL said against it; the communicator is gone all the same, or leaked where the message says so.
 */
export function commDestroy(communicator: Communicator, timeoutMs: number): Promise<void>;

export interface DeviceStats {
  /** Grows while the engine is alive. */
  readonly heartbeat: number;
  /** Commands that the engine has not begun. */
  readonly queued: number;
  /** Commands begun and not finished. */
  readonly inFlight: number;
  /** Bytes taken from the driver; of those, bytes that live blocks occupy. */
  readonly reservedBytes: number;
  readonly usedBytes: number;
  /** As the driver says. */
  readonly freeBytes: number;
  readonly totalBytes: number;
  /** Communicators whose abort did not return in time; their memory is lost until the process ends. */
  readonly leakedCommunicators: number;
}
export function stats(device: Device): DeviceStats;

/** What happened to the last operations, oldest first; at most 512. */
export interface FlightRecord {
  readonly communicator: string;
  /** Of this operation in its communicator, from 0. */
  readonly sequence: number;
  readonly label: string;
  readonly state: 'queued' | 'issued' | 'launched' | 'done' | 'failed';
  /** Milliseconds since the device was opened, by state reached; undefined: not reached. */
  readonly queuedMs: number;
  readonly issuedMs?: number;
  readonly launchedMs?: number;
  readonly endedMs?: number;
  readonly error?: string;
}
/** Works also after the device was lost or closed. */
export function flightRecorder(device: Device): readonly FlightRecord[];
