#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds a test of several threads under ThreadSanitizer, with the library that it needs, and runs
# it: a race in this library's own code fails it. Drivers are not instrumented.
# Usage: threads_tsan.sh SOURCE FOLDER OPENCL TEST ARGUMENTS...: OPENCL is ON or OFF; TEST is a folder
# of tests/ and a program in it; each of ARGUMENTS is one run, its words separated by blanks
set -eu
source=$1
folder=$2
opencl=$3
test=$4
shift 4

cmake -S "$source" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DTAMIS_SANITIZE=thread \
    -DTAMIS_OPENCL="$opencl" -DTAMIS_NVCC=OFF -DTAMIS_TOOLS=OFF -DTAMIS_TESTS=ON >"$folder.log" 2>&1 &&
    cmake --build "$folder" --target "$(basename "$test")" >>"$folder.log" 2>&1 || {
    cat "$folder.log"
    exit 1
}
# Intel's driver loads a library with RTLD_DEEPBIND, which sanitizers refuse, and the loader of drivers
# loads all that are installed. So PoCL is the only one here.
pocl=/etc/OpenCL/vendors/pocl.icd
[ ! -e "$pocl" ] || export OCL_ICD_VENDORS=$pocl
# Where the kernel scatters addresses more widely than ThreadSanitizer's runtime knows, it does not
# start unless that is switched off.
plain=
! setarch --addr-no-randomize true 2>/dev/null || plain='setarch --addr-no-randomize'
for arguments in "$@"; do
    # shellcheck disable=SC2086 # lists of words
    $plain "$folder/tests/$test" $arguments
done
