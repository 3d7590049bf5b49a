/** The running Node as a compressed file. */
import { execFileSync } from 'node:child_process';
import { cpSync, mkdtempSync, renameSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** Which binary it is. */
export interface NodeBinary {
  readonly path: string;
  readonly version: string;
  readonly bytes: number;
  readonly modifiedMs: number;
}

/**
 * Of the 86 MB of Node 20 without symbols, xz makes 25.9 MB in 6 s at level 1, 24.8 MB in 13 s at 3, and 22.1 MB in 20 s at
 * 6 (two cores); 9e leaves 21.9 MB. It is packed once, so time matters less than what travels.
 */
const XZ_LEVEL = 6;

/** Write `target`, unless it is there and of the same binary: `packed`. */
export function packNode(target: string, packed: NodeBinary | undefined): NodeBinary {
  const { size, mtimeMs } = statSync(process.execPath);
  const node = { path: process.execPath, version: process.version, bytes: size, modifiedMs: mtimeMs };
  if (JSON.stringify(packed) === JSON.stringify(node)) return node;
  const folder = mkdtempSync(join(tmpdir(), 'lockstep-gpu-bundle-'));
  try {
    const copy = join(folder, 'node');
    cpSync(process.execPath, copy);
    execFileSync('strip', [copy]);
    execFileSync('xz', [`-${XZ_LEVEL}`, '--threads=0', copy], { stdio: ['ignore', 'inherit', 'inherit'] });
    cpSync(`${copy}.xz`, `${target}.partial`);
    renameSync(`${target}.partial`, target);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  return node;
}
