/**
 * Make kernels/kernels.ptx of kernels/kernels.cu, which must be done after each change of it; needs nvcc, and no GPU.
 *
 *     node scripts/ptx.mjs [--check]
 *
 * The text is assembled for every architecture below that this ptxas knows, as a driver would. With --check nothing is
 * written: the committed file must be what would be. `NVCC` and `PTXAS` override the compilers.
 * Exit: 0 made, or equal, 1 not, 2 wrong arguments, 3 no nvcc.
 */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';

const kernelFolder = join(dirname(fileURLToPath(import.meta.url)), '..', 'kernels');
const source = join(kernelFolder, 'kernels.cu');
const output = join(kernelFolder, 'kernels.ptx');
const nvcc = process.env.NVCC || 'nvcc';
const ptxas = process.env.PTXAS || 'ptxas';

/** See [Note: same bits] in kernels.cu for -fmad. */
const flags = ['-ptx', '-arch=compute_75', '-fmad=false'];
/** nvcc states its own, and a driver refuses text newer than itself; nothing here needs more than CUDA 11.0. */
const ptxVersion = '7.0';
const architectures = ['sm_75', 'sm_80', 'sm_90', 'sm_100', 'sm_120'];

function isMissing(compiler) {
  try {
    execFileSync(compiler, ['--version'], { stdio: 'ignore' });
    return false;
  } catch {
    return true;
  }
}

function compile(folder) {
  const raw = join(folder, 'raw.ptx');
  execFileSync(nvcc, [...flags, source, '-o', raw], { stdio: ['ignore', 'inherit', 'inherit'] });
  const text = readFileSync(raw, 'utf8').replace(/^\.version .*$/m, `.version ${ptxVersion}`);
  const sourceHash = createHash('sha256').update(readFileSync(source)).digest('hex');
  return `// Made of kernels.cu by scripts/ptx.mjs; do not edit.\n// sha256 of kernels.cu: ${sourceHash}\n${text}`;
}

/** Whether every architecture that this ptxas knows takes the text; says what it found. */
function assemble(text, folder) {
  if (isMissing(ptxas)) {
    process.stdout.write(`not assembled: ${ptxas} cannot be run\n`);
    return true;
  }
  const known = execFileSync(ptxas, ['--help'], { encoding: 'utf8' });
  const input = join(folder, 'kernels.ptx');
  writeFileSync(input, text);
  for (const architecture of architectures) {
    if (!known.includes(`'${architecture}'`)) {
      process.stdout.write(`${architecture}: not known to this ptxas\n`);
      continue;
    }
    try {
      execFileSync(ptxas, [`-arch=${architecture}`, input, '-o', join(folder, 'kernels.cubin')], { stdio: 'inherit' });
      process.stdout.write(`${architecture}: assembled\n`);
    } catch {
      process.stderr.write(`ptx.mjs: ptxas refuses the text for ${architecture}\n`);
      return false;
    }
  }
  return true;
}

/** Without the comments, which name the build of the compiler; but with the one that names the source. */
const withoutComments = (text) => text.replace(/^\/\/(?! sha256).*\n/gm, '');

function main() {
  const isCheck = process.argv[2] === '--check';
  if (process.argv.length > (isCheck ? 3 : 2)) {
    process.stderr.write('ptx.mjs: the one argument is --check\n');
    return 2;
  }
  if (isMissing(nvcc)) {
    process.stderr.write(`ptx.mjs: no CUDA compiler: ${nvcc} cannot be run\n`);
    return 3;
  }
  const folder = mkdtempSync(join(tmpdir(), 'lockstep-ptx-'));
  try {
    const text = compile(folder);
    if (!assemble(text, folder)) return 1;
    if (!isCheck) writeFileSync(output, text);
    else if (withoutComments(readFileSync(output, 'utf8')) !== withoutComments(text)) {
      process.stderr.write('ptx.mjs: kernels.ptx is not what this nvcc makes of kernels.cu; run scripts/ptx.mjs\n');
      return 1;
    }
    return 0;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

process.exitCode = main();
