import { mkdir, stat } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';

/**
 * Make `folder` and those above it that are missing. Node's `mkdir` with `recursive` never settles where a folder cannot be
 * made although its parent is there, as in Linux's /proc.
 *
 * @returns the folders that this call has made, as absolute paths, the outermost first
 * @throws the error of the system for the folder that cannot be made
 */
export async function makeFolder(folder: string): Promise<string[]> {
  const missing: string[] = [];
  for (let path = resolve(folder); !(await isThere(path)); path = dirname(path)) missing.unshift(path);
  const made: string[] = [];
  for (const path of missing) if (await makeOne(path)) made.push(path);
  if (missing.length === 0 && !(await isFolder(folder))) await mkdir(folder); // a file is in the way: the system says so
  return made;
}

/** A file in the way too: the folder below it fails then. */
async function isThere(path: string): Promise<boolean> {
  if (path === dirname(path)) return true;
  try {
    await stat(path);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return false;
    if ((error as NodeJS.ErrnoException).code === 'ENOTDIR') return false;
    throw error;
  }
}

/** Somebody else may make the same folder at the same time. @returns whether it was this call */
async function makeOne(path: string): Promise<boolean> {
  try {
    await mkdir(path);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST' && (await isFolder(path))) return false;
    throw error;
  }
}

async function isFolder(path: string): Promise<boolean> {
  return (await stat(path)).isDirectory();
}
