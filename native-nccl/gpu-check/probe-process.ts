/** Prints what the libraries and device 0 are, as JSON: a process of its own, as a driver can end it. */
import { libraryPaths } from './libraries';
import { requireAddon } from '../../src/backend/nccl/addon';

const addon = requireAddon();
const probe = addon.probe(libraryPaths());
// without NCCL the addon says nothing about devices
const isUsable = probe.cuda.isLoaded && probe.nccl.isLoaded && probe.deviceCount > 0;
const device = isUsable ? addon.deviceInfo(0) : undefined;
process.stdout.write(`${JSON.stringify({ probe, device })}\n`);
