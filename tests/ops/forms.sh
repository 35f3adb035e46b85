#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Fails when an op of the contract lacks a form: its check in tests/ops/<stem>.c, its meaning in
# host/reference/<stem>.c, its kernels in cl_kernels/<stem>.cl and cuda_kernels/<stem>.cu, its
# contract in host/ops/. An optional op may have no reference and no base kernel, but some kernel. And when
# an op is called past tms_run_<op>, or a backend checks the contract's rules once more.
# usage: forms.sh <root of the tree>
set -u
cd "$1" || exit 2
missing=0

miss() {
    echo "op $1: $2"
    missing=$((missing + 1))
}

# "name" or "name optional" of every op in the list of the contract.
ops() {
    list REQUIRED
    list MODEL
    list OPTIONAL | sed 's/$/ optional/'
}

# list <which>: the names in the list TMS_<which>_OPS.
list() {
    sed -n "/^#define TMS_$1_OPS(/{:more /\\\\\$/{N;b more};p}" host/ops.h |
        grep -o 'X(with, [a-z_]*)' | sed '/X(with, with)/d; s/X(with, \([a-z_]*\))/\1/'
}

count=0
while read -r op optional; do
    count=$((count + 1))
    file=$(grep -l "\.name = \"$op\"" tests/ops/*.c)
    if [ -z "$file" ]; then
        miss "$op" "no check in tests/ops"
        continue
    fi
    stem=$(basename "$file" .c)
    past=$(grep -rnE "backend(->|\.)$op\(" lib tests tools --include=*.c --include=*.h)
    [ -n "$past" ] && miss "$op" "called past tms_run_$op: $past"
    grep -q "^/\* $op: " host/ops/*.h || miss "$op" "no contract '$op: ...' in host/ops/"
    [ -f "host/opencl/$stem.c" ] || miss "$op" "no host/opencl/$stem.c"
    [ -f "host/cuda/$stem.c" ] || miss "$op" "no host/cuda/$stem.c"
    if [ "$optional" = optional ]; then
        ls cl_kernels/"$stem"*.cl >/dev/null 2>&1 || miss "$op" "no cl_kernels/$stem*.cl"
        [ -f "cuda_kernels/$stem.cu" ] || miss "$op" "no cuda_kernels/$stem.cu"
        continue
    fi
    grep -q "tms_reference_$op(" "host/reference/$stem.c" 2>/dev/null ||
        miss "$op" "no tms_reference_$op in host/reference/$stem.c"
    # An op that is others, one after another, where there is no kernel for all of them.
    grep -q tms_chain_run "host/opencl/$stem.c" "host/cuda/$stem.c" && continue
    grep -q "^__kernel .* void $op" "cl_kernels/$stem.cl" 2>/dev/null ||
        miss "$op" "no kernel $op... in cl_kernels/$stem.cl"
    grep -qE "KERNEL(_[A-Z]+)?\($op" "cuda_kernels/$stem.cu" 2>/dev/null ||
        miss "$op" "no kernel $op... in cuda_kernels/$stem.cu"
done <<LIST
$(ops)
LIST

for file in $(grep -l 'host/checks.h"' host/*/*.[ch]); do
    miss rules "$file includes host/checks.h: tms_run_<op> has checked them"
done

# Every kernel file belongs to a stem, to what drives a device (probe), or joins files.
for file in cl_kernels/*.cl cuda_kernels/*.cu; do
    stem=$(basename "${file%.*}")
    stem=${stem%_cpu}
    stem=${stem%_gpu}
    stem=${stem%_rows}
    stem=${stem%_mma}
    case $stem in attention | cache | probe | small) continue ;; esac
    [ -f "tests/ops/$stem.c" ] || miss "$stem" "$file has no tests/ops/$stem.c"
done

if [ "$count" -lt 10 ]; then
    echo "only $count ops found in host/ops.h: has its list changed its shape?"
    exit 1
fi
echo "$count ops, $missing forms missing"
[ "$missing" -eq 0 ]
