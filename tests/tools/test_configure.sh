#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What CMake makes of its options: the tests without pkg-config, the GPUs that nvcc compiles for, and
# an nvcc that is missing. A script stands in for nvcc; nothing is built.
# Usage: test_configure.sh TREE
set -u
tree=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# configure NAME OPTION...: into $work/NAME; what CMake said is in $work/NAME.log.
configure() {
    name=$1
    shift
    cmake -S "$tree" -B "$work/$name" -G Ninja -DTAMIS_OPENCL=OFF -DTAMIS_TOOLS=OFF \
        -DTAMIS_TESTS=OFF -DTAMIS_NVCC_PROGRAM="$work/nvcc" "$@" >"$work/$name.log" 2>&1
}

# expect WHAT COMMAND...
expect() {
    what=$1
    shift
    "$@" >/dev/null && return
    echo "FAIL $what"
    sed 's/^/    /' "$work/$name.log" | tail -n 8
    failed=1
}

# options NAME TEXT: nvcc's command line for a kernel holds the text.
options() {
    grep -q -F -e "$2" "$work/$1/build.ninja"
}

# lacks NAME TEXT
lacks() {
    ! options "$1" "$2"
}

cat >"$work/nvcc" <<'END'
#!/bin/sh
echo 'Cuda compilation tools, release 13.0, V13.0.88'
END
chmod +x "$work/nvcc"

expect 'tests without pkg-config' configure bare -DTAMIS_TESTS=ON -DTAMIS_NVCC=OFF \
    -DPKG_CONFIG_EXECUTABLE=/nonexistent

expect 'the usual architectures' configure usual -DTAMIS_NVCC=ON
expect 'machine code and PTX for 8.0' options usual 'arch=compute_80,code=[sm_80,compute_80]'
expect 'machine code for 9.0' options usual 'arch=compute_90a,code=sm_90a'

expect 'one architecture' configure one -DTAMIS_NVCC=ON -DTAMIS_CUDA_ARCHITECTURES=90a \
    -DTAMIS_NVCC_FLAGS=-lineinfo
expect 'machine code for 9.0 alone' options one 'arch=compute_90a,code=sm_90a'
expect 'lines' options one ' -lineinfo '
expect 'nothing for 8.0' lacks one compute_80
expect 'no PTX that no other GPU takes' lacks one ,compute_90a

configure wrong -DTAMIS_NVCC=ON '-DTAMIS_CUDA_ARCHITECTURES=80;hopper'
expect 'an architecture that is none' grep '"hopper" is no compute' "$work/wrong.log"
# Where CMake looks nowhere by itself there is no nvcc; what else it needs it is told.
unset CUDA_PATH
configure missing -DTAMIS_NVCC=ON -DTAMIS_NVCC_PROGRAM=TAMIS_NVCC_PROGRAM-NOTFOUND \
    -DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF -DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF \
    -DCMAKE_IGNORE_PATH=/usr/local/cuda/bin "-DCMAKE_MAKE_PROGRAM=$(command -v ninja)" \
    "-DCMAKE_C_COMPILER=$(command -v cc)"
expect 'an nvcc that is missing' grep 'there is no nvcc' "$work/missing.log"
[ $failed = 0 ] && echo 'all is well'
exit $failed
