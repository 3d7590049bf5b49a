/** The addon with both libraries loaded, or in words why this machine cannot have that. */
import { asError } from '../../core/errors';
import { withFullStop } from '../../core/full-stop';
import { ADDON_PACKAGE, INTERFACE_VERSION, type LibraryProbe, type NcclAddon, type Probe, requireAddon } from './addon';
import { CUDA_LIBRARY_VARIABLE, libraryPaths, NCCL_LIBRARY_VARIABLE } from './find-libraries';

/** Sends and receives of older ones are not reliably on the stream when a non-blocking call has returned. */
const OLDEST_NCCL = 22403;

export type NcclLoad = { readonly addon: NcclAddon; readonly probe: Probe } | { readonly reason: string };

/** Loads on the first call in a process; later calls find the same, whatever the environment says by then. */
export function loadNccl(): NcclLoad {
  if (process.platform !== 'linux') return { reason: `NCCL runs on Linux only, and this is ${process.platform}.` };
  let addon: NcclAddon;
  try {
    addon = requireAddon();
  } catch (error) {
    return { reason: describeRequireError(error) };
  }
  if (addon.INTERFACE_VERSION !== INTERFACE_VERSION) return { reason: describeInterface(addon.INTERFACE_VERSION) };
  const probe = addon.probe(libraryPaths());
  const reason = describeProbe(probe);
  return reason === undefined ? { addon, probe } : { reason };
}

/** Why a program cannot use what was found; undefined if it can. */
export function describeProbe({ cuda, nccl, deviceCount }: Probe): string | undefined {
  const hasNoDevice = deviceCount === 0 && (cuda.isLoaded || (cuda.error ?? '').includes('CUDA_ERROR_NO_DEVICE'));
  if (!cuda.isLoaded && !hasNoDevice) {
    const advice = `Install NVIDIA's driver, or set ${CUDA_LIBRARY_VARIABLE} to its path.`;
    return `${describeLibrary('the CUDA driver', cuda)} ${advice}`;
  }
  if (hasNoDevice) {
    const driver = `the CUDA driver (${cuda.path ?? 'path unknown'}, CUDA ${cudaVersionText(cuda.version)})`;
    return `${driver} found no device. See what nvidia-smi lists, and whether CUDA_VISIBLE_DEVICES hides it.`;
  }
  if (isTooOld(nccl)) {
    const found = `NCCL ${ncclVersionText(nccl.version)} (${nccl.path ?? 'path unknown'})`;
    return `${found} is too old: ${ncclVersionText(OLDEST_NCCL)} or newer is needed. ${ncclAdvice}`;
  }
  if (!nccl.isLoaded) return `${describeLibrary('NCCL', nccl)} ${ncclAdvice}`;
  return undefined;
}

const ncclAdvice =
  `Install the system's package of NCCL (libnccl2) or the wheel nvidia-nccl-cu13 or nvidia-nccl-cu12 in the active ` +
  `Python environment, or set ${NCCL_LIBRARY_VARIABLE} to the path of libnccl.so.2.`;

function describeLibrary(name: string, { error, path, tried }: LibraryProbe): string {
  const where = path === undefined ? `looked for ${tried.join(', ')}` : `in ${path}`;
  return `${name} cannot be used (${where}): ${withFullStop(error ?? 'the loader did not say why')}`;
}

function isTooOld(nccl: LibraryProbe): nccl is LibraryProbe & { readonly version: number } {
  return nccl.version !== undefined && nccl.version > 0 && nccl.version < OLDEST_NCCL;
}

/** As 2.24.3 of 22403; up to 2.8 the minor version took one digit of hundreds. */
export function ncclVersionText(version: number): string {
  const major = version < 10_000 ? 1000 : 10_000;
  return [Math.floor(version / major), Math.floor((version % major) / 100), version % 100].join('.');
}

/** As 13.0 of 13000. */
export function cudaVersionText(version: number | undefined): string {
  return version === undefined ? 'of an unknown version' : `${Math.floor(version / 1000)}.${(version % 1000) / 10}`;
}

function describeRequireError(error: unknown): string {
  const { message } = asError(error);
  const isAbsent = (error as { code?: unknown } | undefined)?.code === 'MODULE_NOT_FOUND';
  if (isAbsent && message.includes(`'${ADDON_PACKAGE}'`)) {
    return `the package ${ADDON_PACKAGE} is not installed. Install it beside lockstep: npm install ${ADDON_PACKAGE}`;
  }
  return message;
}

function describeInterface(found: unknown): string {
  const advice = 'Install versions of lockstep and lockstep-nccl that belong together.';
  return `${ADDON_PACKAGE} has the interface ${String(found)}, and this version of lockstep uses ${INTERFACE_VERSION}. ${advice}`;
}
