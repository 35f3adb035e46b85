#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_cuda_driver.sh TOOLS: the demo has nvcc compile CUDA kernels only where the list of libraries
# has a CUDA driver; a toolkit alone is none.
set -eu
. "$1/packages.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
LDCONFIG=$work/ldconfig

# lists TEXT: what ldconfig prints.
lists() {
    printf '#!/bin/sh\necho "$*" | grep -qx -- -p && echo "%s"\n' "$1" >"$LDCONFIG"
    chmod +x "$LDCONFIG"
}

fail() {
    echo "$*"
    exit 1
}

lists '	libcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1'
has_cuda_driver || fail "a driver was not found"
for toolkit in libcudart.so.13 libcuda.so libcuda.so.10 libOpenCL.so.1; do
    lists "	$toolkit (libc6,x86-64) => /usr/local/cuda/lib64/$toolkit"
    ! has_cuda_driver || fail "$toolkit was taken for a driver"
done
LDCONFIG=$work/none
! has_cuda_driver || fail "without ldconfig a driver was found"
grep -q 'has_cuda_driver || kernels=AUTO' "$1/demo.sh" || fail "demo.sh does not ask"
grep -q 'TAMIS_NVCC=$kernels' "$1/demo.sh" || fail "demo.sh does not tell CMake"
