/** Files and folders that are still there after a power failure. */
import { randomBytes } from 'node:crypto';
import { open, rename, rm, type FileHandle } from 'node:fs/promises';
import { endianness } from 'node:os';
import { dirname } from 'node:path';
import { UnsupportedError } from '../core/errors';
import { makeFolder } from '../core/make-folder';

/** Bytes handed to the system in one call; it may take fewer. */
const WRITE_BYTES = 2 ** 24;

/** Buffers handed to the system in one call; Linux takes no more than 1024. */
const WRITE_BUFFERS = 512;

/** 64 random bits as 16 hex digits, for names that nobody else has. */
export function nonce(): string {
  return randomBytes(8).toString('hex');
}

/** @throws UnsupportedError on a machine whose numbers are not stored as the files have them */
export function requireLittleEndian(what: string): void {
  if (endianness() === 'LE') return;
  throw new UnsupportedError(`${what}: not supported on big-endian machines: the files hold little-endian numbers.`);
}

/** Write `buffers`, in order, at the end of what was written; they are not copied. */
export async function writeBuffers(file: FileHandle, buffers: Iterable<Uint8Array>): Promise<void> {
  let batch: Uint8Array[] = [];
  let bytes = 0;
  for (const buffer of buffers) {
    if (buffer.byteLength === 0) continue;
    batch.push(buffer);
    bytes += buffer.byteLength;
    if (bytes < WRITE_BYTES && batch.length < WRITE_BUFFERS) continue;
    await writeBatch(file, batch);
    batch = [];
    bytes = 0;
  }
  if (batch.length > 0) await writeBatch(file, batch);
}

/** The system may take only a part, on a file system that is nearly full for one. */
async function writeBatch(file: FileHandle, batch: readonly Uint8Array[]): Promise<void> {
  let rest = batch;
  while (rest.length > 0) {
    const { bytesWritten } = await file.writev(rest);
    rest = without(rest, bytesWritten);
  }
}

/** What is left of `buffers` after their first `count` bytes. */
function without(buffers: readonly Uint8Array[], count: number): Uint8Array[] {
  let skipped = count;
  return buffers.flatMap((buffer) => {
    const rest = buffer.subarray(Math.min(skipped, buffer.byteLength));
    skipped -= buffer.byteLength - rest.byteLength;
    return rest.byteLength > 0 ? [rest] : [];
  });
}

/** Fill `target` from byte `position`. @returns false if the file ends before */
export async function readInto(file: FileHandle, target: Uint8Array, position: number): Promise<boolean> {
  let done = 0;
  while (done < target.byteLength) {
    const { bytesRead } = await file.read(target, done, target.byteLength - done, position + done);
    if (bytesRead === 0) return false;
    done += bytesRead;
  }
  return true;
}

/** Make a new file: `write` fills it, then it is made durable. Its name is durable once its folder is. */
export async function writeNewFile(path: string, write: (file: FileHandle) => Promise<void>): Promise<void> {
  const file = await open(path, 'wx');
  try {
    await write(file);
    await file.sync();
  } finally {
    await file.close();
  }
}

/** Make the names in a folder durable. */
export async function syncFolder(path: string): Promise<void> {
  const folder = await openFolder(path);
  if (folder === undefined) return;
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

/** Undefined on Windows, where a folder cannot be opened, and its names are as durable as the system makes them. */
async function openFolder(path: string): Promise<FileHandle | undefined> {
  return process.platform === 'win32' ? undefined : open(path, 'r');
}

/** Make a folder, and those above it, unless they are there; their names are durable then. */
export async function makeDurableFolder(path: string): Promise<void> {
  for (const made of await makeFolder(path)) await syncFolder(dirname(made));
}

/** Put a new file where an old one may be: whatever happens, `path` is the whole old one or the whole new one. */
export async function replaceFile(path: string, write: (file: FileHandle) => Promise<void>): Promise<void> {
  const temporary = `${path}.${nonce()}.tmp`;
  try {
    await writeNewFile(temporary, write);
    await rename(temporary, path);
  } catch (error) {
    await removeIfPossible(temporary);
    throw error;
  }
  await syncFolder(dirname(path));
}

/** Clean up after a failure, which is what the caller has to hear of: that this fails as well is not. */
export async function removeIfPossible(path: string): Promise<void> {
  await rm(path, { recursive: true, force: true }).catch(() => undefined);
}
