/**
 * Buffers while their call is in flight.
 *
 * [Note: checks on buffers] With `checks: 'all'` a call that has to wait keeps a copy of what it contributes and
 * fills what it will receive into with poison. When it completes, a contribution that differs from its copy, or a
 * poisoned buffer that is not all poison, was changed by the caller. Copies and comparisons are memcpy and memcmp.
 * The last rank to arrive does not wait, so its buffers need nothing of this.
 */
import { bytesOf, byteSize, copyBuffer, dtypeOf, isDetached, isFloatDType, type HostBuffer } from '../../core/dtype';
import type { SnapshotPool } from './snapshot-pool';

/** Every byte 0xFF is a NaN in all floating formats. */
const FLOAT_POISON = 0xff;
/** -606348325 in int32: unlikely as data, easy to recognise. */
const INTEGER_POISON = 0xdb;

/** A buffer that its owner changed although the call had not finished. */
export interface BufferChange {
  /** What the call does with it. */
  readonly use: 'send' | 'receive' | 'both';
  /** The first element that changed, or what became of its memory. */
  readonly what: number | MemoryLoss;
}

/** The memory was transferred away, or the ArrayBuffer was resized so that the array is longer or shorter now. */
export type MemoryLoss = 'detached' | 'resized';

/** What became of the memory of `buffer`, which had `length` elements when the call was made. */
export function lossOf(buffer: HostBuffer, length: number): MemoryLoss | undefined {
  if (buffer.length === length && length > 0) return undefined;
  if (isDetached(buffer)) return 'detached';
  return buffer.length === length ? undefined : 'resized';
}

export interface InFlightOptions {
  /** What the rank contributes. */
  readonly send: HostBuffer | undefined;
  /** Where its result goes; may be `send`, or share memory with it. */
  readonly recv: HostBuffer | undefined;
  /** Also poison `recv`, and look for changes later. */
  readonly isChecked: boolean;
  /** `recv` is the caller's data, not a buffer for results alone: `restore` brings it back. */
  readonly isRecvKept: boolean;
  readonly pool: SnapshotPool;
}

export class InFlightBuffers {
  /** What the rank contributes, safe from changes. */
  readonly contribution: HostBuffer | undefined;
  readonly #send: HostBuffer | undefined;
  readonly #recv: HostBuffer | undefined;
  readonly #isChecked: boolean;
  readonly #pool: SnapshotPool;
  /** What `recv` held before. */
  readonly #saved: HostBuffer | undefined;

  constructor({ send, recv, isChecked, isRecvKept, pool }: InFlightOptions) {
    this.#send = send;
    this.#recv = recv;
    this.#isChecked = isChecked;
    this.#pool = pool;
    this.#saved = isChecked && isRecvKept && recv !== undefined ? pool.copy(recv) : undefined;
    this.contribution = send === undefined ? undefined : pool.copy(send);
    if (isChecked && recv !== undefined) bytesOf(recv).fill(poisonOf(recv));
  }

  /** The first element that the caller changed, if any. The memory has to be there still: see `lossOf`. */
  findChange(): BufferChange | undefined {
    if (!this.#isChecked) return undefined;
    return this.#findChangeOfRecv() ?? this.#findChangeOfSend();
  }

  /** Put back what the caller had in buffers that poison covers; for a call that failed. */
  restore(): void {
    if (this.#recv !== undefined && this.#saved !== undefined) putBack(this.#recv, this.#saved);
    if (!this.#isChecked || this.#send === undefined || this.contribution === undefined) return;
    if (this.#recv !== undefined && sharedRange(this.#send, this.#recv) !== undefined) {
      putBack(this.#send, this.contribution);
    }
  }

  /** Nobody reads the contribution any more. */
  release(): void {
    if (this.contribution !== undefined) this.#pool.release(this.contribution);
    if (this.#saved !== undefined) this.#pool.release(this.#saved);
  }

  #findChangeOfRecv(): BufferChange | undefined {
    if (this.#recv === undefined || this.#recv.length === 0) return undefined;
    const bytes = bytesOf(this.#recv);
    const poison = poisonOf(this.#recv);
    const isWhole = bytes[0] === poison && isEqual(bytes.subarray(1), bytes.subarray(0, bytes.length - 1));
    if (isWhole) return undefined;
    const index = Math.floor(bytes.findIndex((byte) => byte !== poison) / byteSize(dtypeOf(this.#recv)));
    return { use: this.#send === this.#recv ? 'both' : 'receive', what: index };
  }

  #findChangeOfSend(): BufferChange | undefined {
    if (this.#send === undefined || this.contribution === undefined || this.#send === this.#recv) return undefined;
    const poisoned = this.#recv === undefined ? undefined : sharedRange(this.#send, this.#recv);
    const now = bytesOf(this.#send);
    const before = bytesOf(this.contribution);
    const [from, to] = poisoned ?? [now.length, now.length];
    const index = firstDifference(now, before, 0, from) ?? firstDifference(now, before, to, now.length);
    if (index === undefined) return undefined;
    return { use: 'send', what: Math.floor(index / byteSize(dtypeOf(this.#send))) };
  }
}

/** Where the memory is gone there is nothing to bring back. */
function putBack(buffer: HostBuffer, before: HostBuffer): void {
  if (lossOf(buffer, before.length) === undefined) copyBuffer(buffer, before);
}

function poisonOf(buffer: HostBuffer): number {
  return isFloatDType(dtypeOf(buffer)) ? FLOAT_POISON : INTEGER_POISON;
}

function isEqual(a: Uint8Array, b: Uint8Array): boolean {
  return Buffer.compare(a, b) === 0;
}

function firstDifference(a: Uint8Array, b: Uint8Array, from: number, to: number): number | undefined {
  if (from >= to || isEqual(a.subarray(from, to), b.subarray(from, to))) return undefined;
  for (let i = from; i < to; i++) if (a[i] !== b[i]) return i;
  return undefined;
}

/** The bytes of `a` that are also bytes of `b`: from, to. */
function sharedRange(a: HostBuffer, b: HostBuffer): readonly [number, number] | undefined {
  if (a.buffer !== b.buffer) return undefined;
  const from = Math.max(0, b.byteOffset - a.byteOffset);
  const to = Math.min(a.byteLength, b.byteOffset + b.byteLength - a.byteOffset);
  return from < to ? [from, to] : undefined;
}
