#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Compiles the OpenCL programs that the host builds on GPUs by the GPUs' own compilers, none of which
# needs its GPU, and tells registers, spills, occupancy and widths of loads.
# Usage: gpu_compilers.sh [--install] [OPTION...]
#   --install   installs the Debian packages that are missing
#   OPTION      those of gpu_compilers.py; the common ones:
#     --small --targets A,B --files A.cl --jobs N --json FILE --check FILE --update FILE
# ptxas, for NVIDIA's GPUs, is CUDA's: from PATH, /usr/local/cuda/bin or $PTXAS.
set -eu
cd "$(dirname "$0")/.."
. tools/packages.sh

if [ "${1-}" = --help ] || [ "${1-}" = -h ]; then
    sed -n '3,10s/^# //p' tools/gpu_compilers.sh
    python3 tools/gpu_compilers.py --help
    exit 0
fi
if [ "${1-}" = --install ]; then
    shift
    # shellcheck disable=SC2086 # lists of words
    install_missing $needed_to_build $needed_for_programs $needed_for_gpu_compilers
fi

# The list alone: neither CUDA kernels nor the command line.
say "the list of programs into build-programs/" >&2
generator=()
[ -f build-programs/CMakeCache.txt ] || generator=(-G Ninja)
quietly cmake -S . -B build-programs "${generator[@]}" -DTAMIS_CUDA=OFF -DTAMIS_TOOLS=OFF \
    -DTAMIS_TESTS=ON >&2
quietly cmake --build build-programs --parallel "$(nproc)" --target cl-programs >&2
exec python3 tools/gpu_compilers.py "$@" build-programs/tests/cl_programs/cl-programs \
    tests/data/models
