/** Where the checks run: libraries, device, system; and what the environment of the checks has to say about them. */
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { release } from 'node:os';
import { join } from 'node:path';
import type { DeviceInfo, Probe } from '../../src/backend/nccl/addon';
import { asError } from '../../src/core/errors';

export interface Machine {
  /** The libraries are this repository's CPU stand-ins: nothing here says anything about a GPU. */
  readonly isStandIn: boolean;
  readonly probe: Probe | undefined;
  readonly device: DeviceInfo | undefined;
  /** Why there is no probe, or how NCCL was found. */
  readonly remarks: readonly string[];
  /** Variables for the processes of checks. */
  readonly environment: Readonly<Record<string, string>>;
  readonly node: string;
  readonly kernel: string;
  readonly glibc: string;
  /** As nvidia-smi names it. */
  readonly gpu: string | undefined;
  /** What bundle.ts says about the bundle. */
  readonly bundle: unknown;
}

/** By run.sh: where python3 says that its NCCL is. */
const HINT = 'GPU_CHECK_NCCL_HINT';
const PROBE_LIMIT_MS = 30_000;

export function describeMachine(): Machine {
  const { environment, found, remarks } = findLibraries();
  const isStandIn = isOfStandIns(found?.device);
  return {
    isStandIn,
    probe: found?.probe,
    device: found?.device,
    remarks,
    environment: { ...environment, GPU_CHECK_STAND_INS: isStandIn ? '1' : '0' },
    node: process.version,
    kernel: release(),
    glibc: glibcVersion(),
    gpu: nvidiaSmi(),
    bundle: readBundle(),
  };
}

export function machineLines(machine: Machine): string[] {
  const { isStandIn, probe, device, remarks } = machine;
  const memory = device === undefined ? '' : `, ${(device.totalBytes / 2 ** 30).toFixed(1)} GiB`;
  const capability = device === undefined ? '' : `, compute capability ${device.computeCapability.join('.')}`;
  return [
    isStandIn
      ? 'STAND-INS: this runs on CPU stand-ins of the driver and of NCCL, and shows nothing about a GPU'
      : 'GPU check',
    `node ${machine.node}, kernel ${machine.kernel}, glibc ${machine.glibc}, nvidia-smi: ${machine.gpu ?? 'not there'}`,
    libraryLine('CUDA driver', probe?.cuda),
    libraryLine('NCCL', probe?.nccl),
    device === undefined ? 'no device' : `device 0 of ${probe?.deviceCount}: ${device.name}${memory}${capability}`,
    ...remarks,
  ];
}

function libraryLine(name: string, library: Probe['cuda'] | undefined): string {
  if (library === undefined) return `${name}: not probed`;
  if (library.isLoaded) return `${name} ${library.version}, ${library.path}`;
  return `${name}: not loaded: ${library.error}; tried ${library.tried.join(', ')}`;
}

/** A bundle of a dry run says so, and the stand-in driver names its devices so. */
function isOfStandIns(device: DeviceInfo | undefined): boolean {
  return process.env['GPU_CHECK_STAND_INS'] === '1' || /stand-in/i.test(device?.name ?? '');
}

interface Found {
  readonly probe: Probe;
  readonly device: DeviceInfo | undefined;
}

/** Lockstep has to find NCCL by itself; where it does not, that is remarked, and the hint used for all other checks. */
function findLibraries(): Pick<Machine, 'environment' | 'remarks'> & { readonly found: Found | undefined } {
  const remarks: string[] = [];
  const hint = process.env[HINT] ?? '';
  let found: Found | undefined;
  try {
    found = probe({});
    if (found.probe.nccl.isLoaded || hint === '' || hint === process.env['LOCKSTEP_NCCL_LIBRARY']) {
      return { environment: {}, remarks, found };
    }
    const tried = found.probe.nccl.tried.join(', ');
    remarks.push(`NCCL was not found by ${tried}; python3 names ${hint}, which is used below`);
    const environment = { LOCKSTEP_NCCL_LIBRARY: hint };
    return { environment, remarks, found: probe(environment) };
  } catch (error) {
    remarks.push(`the probe failed: ${asError(error).message}`);
    return { environment: {}, remarks, found };
  }
}

function probe(environment: Readonly<Record<string, string>>): Found {
  const output = execFileSync(process.execPath, [join(__dirname, 'probe-process.js')], {
    env: { ...process.env, ...environment },
    encoding: 'utf8',
    timeout: PROBE_LIMIT_MS,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  // libraries may print before it
  return JSON.parse(output.trim().split('\n').at(-1) ?? '') as Found;
}

function glibcVersion(): string {
  const { header } = process.report.getReport() as { readonly header: { readonly glibcVersionRuntime?: string } };
  return header.glibcVersionRuntime ?? 'unknown';
}

function nvidiaSmi(): string | undefined {
  try {
    const query = ['--query-gpu=name,driver_version', '--format=csv,noheader'];
    return execFileSync('nvidia-smi', query, { encoding: 'utf8', timeout: 10_000, stdio: ['ignore', 'pipe', 'ignore'] })
      .trim()
      .replace(/\n/g, '; ');
  } catch {
    return undefined; // not installed, or not working: the driver is probed by itself
  }
}

function readBundle(): unknown {
  const path = join(__dirname, '..', '..', '..', 'bundle.json');
  return existsSync(path) ? JSON.parse(readFileSync(path, 'utf8')) : undefined;
}
