#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command with another OpenCL implementation than the machine's own: the only one it sees, or
# all of them beside the machine's own.
#   tools/other_opencl.sh intel COMMAND...     Intel's runtime for CPUs, from PyPI (130 MB, once)
#   tools/other_opencl.sh rusticl COMMAND...   Mesa's Rusticl on llvmpipe, Debian's mesa-opencl-icd
#   tools/other_opencl.sh all COMMAND...       both, and what is in /etc/OpenCL/vendors
# What is fetched lies in $TAMIS_TEST_CACHE (~/.cache/tamis-test). Exit status: the command's; 77
# with the reason where the implementation cannot be had on this machine.
set -eu
kind=${1:-}
[ $# -ge 2 ] || { sed -n '3,9s/^# //p' "$0" >&2; exit 2; }
shift
cache=${TAMIS_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tamis-test}

cannot() {
    printf 'skipped: %s\n' "$*"
    exit 77
}

# Wheels, by exact versions; the ICD loader that one brings must not shadow the system's.
fetch_intel() {
    local to=$1 work log wheel
    [ "$(uname -m)" = x86_64 ] || cannot "Intel's OpenCL runtime is for x86-64, this is $(uname -m)"
    command -v python3 >/dev/null && python3 -m pip --version >/dev/null 2>&1 ||
        cannot "fetching Intel's OpenCL runtime takes python3 with pip"
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/intel.XXXXXX")
    log=$work/log
    if ! python3 -m pip download --quiet --no-deps --dest "$work/wheels" intel-opencl-rt==2026.2.0 \
        intel-cmplr-lib-rt==2026.2.0 tbb==2023.2.0 >"$log" 2>&1; then
        tail -n 3 "$log"
        rm -rf "$work"
        cannot "PyPI did not give Intel's OpenCL runtime"
    fi
    for wheel in "$work"/wheels/*.whl; do
        python3 -m zipfile -e "$wheel" "$work/unpacked"
    done
    rm -rf "$work/wheels" "$log"
    find "$work" -name 'libOpenCL.so*' -delete
    mv -T "$work" "$to" 2>/dev/null || rm -rf "$work" # another one was faster
}

add_intel() {
    local folder=$cache/intel-2026.2.0 libraries
    [ -d "$folder" ] || fetch_intel "$folder"
    find "$folder/unpacked" -name libintelocl.so >"$vendors/intel.icd"
    [ -s "$vendors/intel.icd" ] || { echo "no libintelocl.so in $folder" >&2; exit 1; }
    libraries=$(find "$folder/unpacked" -type d -path '*/data/lib' | paste -sd :)
    export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

add_rusticl() {
    local library
    library=$(find /usr/lib -name libRusticlOpenCL.so.1 2>/dev/null | head -n 1)
    [ -n "$library" ] || cannot "Rusticl is not installed (Debian: mesa-opencl-icd)"
    echo "$library" >"$vendors/rusticl.icd"
    export RUSTICL_ENABLE=llvmpipe
}

vendors=$(mktemp -d)
trap 'rm -rf "$vendors"' EXIT
case $kind in
intel) add_intel ;;
rusticl) add_rusticl ;;
all)
    cp /etc/OpenCL/vendors/*.icd "$vendors" 2>/dev/null || :
    add_intel
    add_rusticl
    ;;
*)
    printf '%s: no such implementation: intel, rusticl or all\n' "$kind" >&2
    exit 2
    ;;
esac
export OCL_ICD_VENDORS=$vendors
"$@"
