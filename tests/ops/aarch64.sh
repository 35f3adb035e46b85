#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles the CPU forms of attention for AArch64, which nothing here runs: they must compile for
# every dtype, and widen f16, q8 and q4 by NEON's vector instructions, not one element at a time.
# usage: aarch64.sh <folder of kernels>; 77 without the clang that PoCL brings.
# The calling conventions of SPIR are taken out: only drivers' compilers know them.
set -u
clang=
for version in 20 19 18 17 16 15; do
    ! command -v clang-$version >/dev/null || clang=clang-$version
done
[ -n "$clang" ] || { echo "no clang of version 15 to 20"; exit 77; }
case $("$clang" -print-targets 2>/dev/null) in
*aarch64*) ;;
*) echo "$clang lacks the target aarch64"; exit 77 ;;
esac
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
    echo "$1"
    failures=$((failures + 1))
}

# compile KERNEL DTYPE GROUP: to $work/s
compile() {
    "$clang" -target aarch64-linux-gnu -x cl -cl-std=CL1.2 -Xclang -finclude-default-header -O2 \
        -I"$kernels" -DHAVE_PREFETCH=1 -DHAVE_FP16_VECTORS=1 -DDTYPE="$2" -DGROUP="$3" -S \
        -emit-llvm -o "$work/ll" "$kernels/$1" 2>"$work/log" &&
        sed 's/spir_kernel //g; s/spir_func //g' "$work/ll" >"$work/plain.ll" &&
        "$clang" -target aarch64-linux-gnu -O2 -S -o "$work/s" "$work/plain.ll" 2>>"$work/log"
}

# holds KERNEL DTYPE GROUP INSTRUCTION: the code has it, on vectors.
holds() {
    grep -qE "^[[:space:]]$4[[:space:]]+v[0-9]+\." "$work/s" ||
        fail "$1, dtype $2, group $3: no $4 on vectors"
}

kernels=$1
cases=0
for dtype in 0 1 2 3 4 5; do
    for group in 1 4; do
        for kernel in attend_cpu sparse_attend_cpu attend_rows_cpu score_cpu observe_cpu value_cpu \
            replace_rows_cpu; do
            cases=$((cases + 1))
            if ! compile "$kernel.cl" $dtype $group; then
                fail "$kernel, dtype $dtype, group $group: does not compile"
                cat "$work/log"
                continue
            fi
            case $kernel:$dtype in
            attend_cpu:1 | sparse_attend_cpu:1) holds $kernel $dtype $group fcvtl ;;
            attend_cpu:[345] | sparse_attend_cpu:[345])
                holds $kernel $dtype $group "[su]cvtf"
                [ $dtype -eq 5 ] || holds $kernel $dtype $group sshll
                [ $dtype -eq 3 ] || holds $kernel $dtype $group ushll
                ;;
            esac
        done
    done
done
echo "$cases compiled, $failures failures"
[ $failures -eq 0 ]
