#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Shows that the checker catches broken kernels: one wrong index, one write past the end, and, under
# oclgrind, one missing barrier. Fails when a mutant survives or the unbroken kernels do not pass.
# 77 without an OpenCL device or without oclgrind.
# usage: mutants.sh <tamis-check> <cl_kernels>
set -u
check=$1
kernels=$2
here=$(dirname "$0")
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
survivors=0

command -v oclgrind >/dev/null || { echo "oclgrind is not installed"; exit 77; }

# restore: fresh copies of all kernels.
restore() {
    rm -rf "$work/kernels"
    cp -r "$kernels" "$work/kernels" || exit 2
}

# mutate <file> <sed script>: the script must change the copy.
mutate() {
    restore
    sed "$2" "$kernels/$1" >"$work/kernels/$1"
    cmp -s "$kernels/$1" "$work/kernels/$1" && { echo "'$2' does not change $1"; exit 2; }
}

# caught <what> <text that must appear> <command...>: the command must fail and say so.
caught() {
    what=$1 text=$2
    shift 2
    if TAMIS_KERNEL_DIR=$work/kernels "$@" >"$work/log" 2>&1 || ! grep -q "$text" "$work/log"; then
        echo "SURVIVED: $what"
        cat "$work/log"
        survivors=$((survivors + 1))
        return
    fi
    echo "caught: $what: $(grep -m 1 "$text" "$work/log" | cut -c 1-140)"
}

base="--device opencl --form base --list smoke"
small="--form base --list oclgrind score_pages"
restore
TAMIS_KERNEL_DIR=$work/kernels "$check" $base score_pages argmax >"$work/log" 2>&1
status=$?
[ $status -eq 77 ] && { cat "$work/log"; exit 77; }
[ $status -eq 0 ] || { echo "the unbroken kernels fail:"; cat "$work/log"; exit 1; }
TAMIS_KERNEL_DIR=$work/kernels sh "$here/oclgrind.sh" "$check" $small >"$work/log" 2>&1 ||
    { echo "the unbroken kernels fail under oclgrind:"; cat "$work/log"; exit 1; }

mutate score.cl 's/load16(pair + HEAD_DIM)/load16(pair)/'
caught "wrong index in score.cl" "FAIL score_pages" "$check" $base score_pages

mutate argmax.cl 's/out\[out_offset + row\] =/out[out_offset + n_rows] = &/'
caught "write past the end in argmax.cl" "past the end of" "$check" $base argmax

mutate score.cl '/barrier(CLK_LOCAL_MEM_FENCE)/d'
caught "missing barrier in score.cl" "data race" sh "$here/oclgrind.sh" "$check" $small

[ $survivors -eq 0 ]
