/** What stands between `node` and the script on a rank's command line. */
import { createRequire } from 'node:module';
import { dirname, extname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { BackendUnavailableError } from '../core/errors';

const TYPESCRIPT = ['.ts', '.mts', '.cts', '.tsx'];

/**
 * Options of Node.js for `script`, the guard of rank-guard.ts included.
 *
 * @throws BackendUnavailableError if it is TypeScript, which neither this Node.js nor an installed tsx can run
 */
export function nodeArguments(script: string): readonly string[] {
  return [...guardArguments(), ...(TYPESCRIPT.includes(extname(script)) ? typescriptArguments(script) : [])];
}

function guardArguments(): readonly string[] {
  const guard = join(__dirname, `rank-guard${extname(__filename)}`);
  // From a checkout we are TypeScript ourselves.
  const loader = extname(__filename) === '.ts' ? ['--require', createRequire(__filename).resolve('tsx/cjs')] : [];
  return [...loader, '--require', guard];
}

function typescriptArguments(script: string): readonly string[] {
  const loader = findTsx(script);
  if (loader !== undefined) return ['--import', pathToFileURL(loader).href];
  if (runsTypescriptItself()) return [];
  throw new BackendUnavailableError(
    `lockstep run: ${script} is TypeScript, and the package tsx was not found from ${dirname(script)} or from the current folder. Install it (npm install --save-dev tsx), or compile the script and run the .js file.`,
  );
}

function findTsx(script: string): string | undefined {
  for (const from of [script, join(process.cwd(), 'package.json')]) {
    try {
      return createRequire(from).resolve('tsx');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'MODULE_NOT_FOUND') throw error;
    }
  }
  return undefined;
}

/** Node.js 22.18 and 23.6 strip types without a flag. */
function runsTypescriptItself(): boolean {
  return Boolean((process.features as { readonly typescript?: string | false }).typescript);
}
