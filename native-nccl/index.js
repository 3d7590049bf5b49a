'use strict';
/* global __dirname */
/* eslint-disable @typescript-eslint/no-require-imports -- this file is loaded as it is, by require */
// Finds the binary for this platform and checks that it belongs to this package. It never compiles anything.
const { existsSync } = require('node:fs');
const { join } = require('node:path');

/** Of the functions in index.d.ts. */
const INTERFACE_VERSION = 2;
/** Path of a binary to load instead of the packaged one; for tests and for builds of one's own. */
const BINARY_VARIABLE = 'LOCKSTEP_NCCL_ADDON';

const howToBuild =
  'To build one, install a C++ compiler and run `npx node-gyp rebuild` in the folder of lockstep-nccl, with node-gyp and node-addon-api installed (see its README).';

function findBinary() {
  const named = process.env[BINARY_VARIABLE];
  if (named) {
    if (existsSync(named)) return named;
    throw new Error(`lockstep-nccl: ${BINARY_VARIABLE} names ${named}, which is not there.`);
  }
  try {
    return require('node-gyp-build').path(__dirname);
  } catch (error) {
    const { glibcVersionRuntime } = process.report?.getReport().header ?? {};
    const platform = [
      `${process.platform}-${process.arch}`,
      glibcVersionRuntime ? `glibc ${glibcVersionRuntime}` : 'no glibc',
      `Node.js ${process.version}`,
    ].join(', ');
    const looked = `looked in ${join(__dirname, 'prebuilds')} and ${join(__dirname, 'build', 'Release')}`;
    throw new Error(`lockstep-nccl: there is no binary for ${platform} (${looked}). ${howToBuild}`, { cause: error });
  }
}

function load() {
  const path = findBinary();
  let addon;
  try {
    addon = require(path);
  } catch (error) {
    // The loader's words: an older glibc or libstdc++, another architecture, a file that is no binary.
    throw new Error(`lockstep-nccl: ${path} cannot be loaded: ${error.message}. ${howToBuild}`, { cause: error });
  }
  if (addon.INTERFACE_VERSION !== INTERFACE_VERSION) {
    const versions = `${path} has the interface ${addon.INTERFACE_VERSION}, and this package needs ${INTERFACE_VERSION}`;
    throw new Error(`lockstep-nccl: ${versions}. Build it again from the sources of this package.`);
  }
  return addon;
}

module.exports = load();
