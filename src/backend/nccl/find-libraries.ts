/** Where the CUDA driver and NCCL may be. Names go to the system's loader; paths are of files that are there. */
import { existsSync, readdirSync } from 'node:fs';
import { homedir } from 'node:os';
import { delimiter, dirname, join, resolve } from 'node:path';
import { environmentVariable } from '../../core/environment';
import type { LibraryPaths } from './addon';

export const CUDA_LIBRARY_VARIABLE = 'LOCKSTEP_CUDA_LIBRARY';
export const NCCL_LIBRARY_VARIABLE = 'LOCKSTEP_NCCL_LIBRARY';

/** NVIDIA's wheels put it into the first, those for one major version of CUDA into the others. */
const wheelFolders = ['nccl', 'cu13', 'cu12'];

/**
 * What to try, in order. A path that a variable names is all there is to try: with another library in its place, a typing
 * error would go unnoticed.
 */
export function libraryPaths(): LibraryPaths {
  const cuda = environmentVariable(CUDA_LIBRARY_VARIABLE);
  const nccl = environmentVariable(NCCL_LIBRARY_VARIABLE);
  return {
    cuda: cuda === undefined ? ['libcuda.so.1'] : [cuda],
    nccl: nccl === undefined ? ['libnccl.so.2', 'libnccl.so', ...ncclInPython(pythonPrefixes())] : [nccl],
  };
}

/**
 * NCCL in the Python environments under `prefixes`, without running Python; of each the newest Python first.
 *
 * @param prefixes folders that hold lib/python3.*
 */
export function ncclInPython(prefixes: readonly string[]): string[] {
  const found = prefixes.flatMap((prefix) => [
    ...packageFolders(prefix).flatMap((packages) =>
      wheelFolders.map((folder) => join(packages, 'nvidia', folder, 'lib', 'libnccl.so.2')),
    ),
    join(prefix, 'lib', 'libnccl.so.2'), // Conda's own package
  ]);
  return [...new Set(found)].filter((path) => existsSync(path));
}

/** The environment that is active, that of the python3 which a shell would run, then the user's, then the machine's. */
function pythonPrefixes(): string[] {
  const active = ['VIRTUAL_ENV', 'CONDA_PREFIX'].map(environmentVariable).filter((prefix) => prefix !== undefined);
  const optional = entries('/opt').map((name) => join('/opt', name));
  return [...active, ...prefixesOnPath(), ...userPrefixes(), '/usr', '/usr/local', ...optional];
}

/** None for a user without a home, as in containers that run under a number of no user. */
function userPrefixes(): string[] {
  try {
    return [join(homedir(), '.local')];
  } catch {
    return [];
  }
}

/** An environment may be on PATH without having been activated. */
function prefixesOnPath(): string[] {
  const folders = (environmentVariable('PATH') ?? '').split(delimiter).filter((folder) => folder !== '');
  return folders.filter((folder) => existsSync(join(folder, 'python3'))).map((folder) => dirname(resolve(folder)));
}

function packageFolders(prefix: string): string[] {
  return ['lib', 'lib64'].flatMap((library) =>
    entries(join(prefix, library))
      .filter((name) => name.startsWith('python3'))
      .sort((a, b) => b.localeCompare(a, 'en', { numeric: true }))
      .flatMap((python) => ['site-packages', 'dist-packages'].map((kind) => join(prefix, library, python, kind))),
  );
}

/** Of a folder; none where it is not there or not ours to read. */
function entries(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}
