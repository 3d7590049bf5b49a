import { mkdirSync, statSync } from 'node:fs';
import { dirname } from 'node:path';

/**
 * Make `folder` and those above it that are missing. `mkdirSync` with `recursive` never returns where a folder cannot be
 * made although its parent is there, as in Linux's /proc.
 *
 * @throws the error of the system for the folder that cannot be made
 */
export function makeFolder(folder: string): void {
  const missing: string[] = [];
  for (let path = folder; !exists(path); path = dirname(path)) missing.push(path);
  for (const path of missing.reverse()) makeOne(path);
}

/** A file in the way too: the folder below it fails then. */
function exists(path: string): boolean {
  return path === dirname(path) || statSync(path, { throwIfNoEntry: false }) !== undefined;
}

/** Another launcher may make the same folder at the same time. */
function makeOne(path: string): void {
  try {
    mkdirSync(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST' || !statSync(path).isDirectory()) throw error;
  }
}
