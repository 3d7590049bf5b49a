#!/usr/bin/env bash
# Check this machine's GPU, driver and NCCL with Lockstep: a line per check, and report.json in $OUT (default: this folder).
#
#     bash run.sh [group...]
#
# Needs: bash, and xz or python3 to unpack Node. Writes to this folder, $OUT and the folder for temporary files alone.
set -uo pipefail

out=${OUT:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)}
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 2
here=$PWD
export OUT=$out

unpack() {
  if command -v xz >/dev/null; then
    xz -dc node.xz
  else
    python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open("node.xz"), sys.stdout.buffer, 1 << 20)'
  fi
}
if [ ! -x node ]; then
  unpack >node.partial && chmod +x node.partial && mv node.partial node || { echo "run.sh: node.xz could not be unpacked"; exit 2; }
fi
./node --version >/dev/null || { echo "run.sh: this folder's Node does not run on this machine ($(uname -sm))"; exit 2; }

# A bundle of a dry run brings CPU stand-ins of the driver and of NCCL.
if [ -f stand-ins.sh ]; then . ./stand-ins.sh; fi

# Lockstep looks for NCCL by itself; what python3 knows is for comparison, and for the rest of the run if it finds none.
nccl_of_python() {
  command -v python3 >/dev/null || return 0
  PYTHONDONTWRITEBYTECODE=1 timeout 20 python3 - <<'PYTHON'
import glob, site, sysconfig
folders = [*map(sysconfig.get_paths().get, ("purelib", "platlib")), *site.getsitepackages(), site.getusersitepackages()]
for folder in dict.fromkeys(folders):
    for path in sorted(glob.glob(folder + "/nvidia/*/lib/libnccl.so.2")):
        print(path)
        raise SystemExit
PYTHON
}
if [ -z "${LOCKSTEP_NCCL_LIBRARY:-}" ]; then
  GPU_CHECK_NCCL_HINT=$(nccl_of_python)
  export GPU_CHECK_NCCL_HINT
fi

# Where containers mount the driver, in case the loader was not told.
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/nvidia/lib64

# The driver keeps what it compiles; not in the home folder. NCCL's warnings go to check.log.
export CUDA_CACHE_PATH=$here/.cuda-cache NCCL_DEBUG=${NCCL_DEBUG:-WARN}

# The checks bound themselves; this is for the runner.
exec timeout -k 5 178 ./node js/native-nccl/gpu-check/main.js "$@"
