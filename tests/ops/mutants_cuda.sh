#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Shows that the driver on the CPU catches broken CUDA kernels: a race in shared memory (a barrier
# is missing), one in global memory (a ticket without order), a barrier that not all threads reach,
# a read past the end; and the checker a wrong index, linear on matrix units without a part, a
# barrier or a block's share, and scales and integers of q8 that are not those of the contract.
# Fails when a mutant survives or the unbroken kernels do not pass.
# usage: mutants_cuda.sh <tamis-check> <root of the tree> <libcuda_on_cpu.so> <C++ compiler>
set -u
check=$1
root=$2
driver=$3
compiler=$4
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
survivors=0
form=base

# build <stem>: the kernels of $work/<stem>.cu, as tests/cuda_on_cpu/CMakeLists.txt compiles them.
build() {
    "$compiler" -std=c++17 -x c++ -O2 -g1 -fPIC -shared -fno-exceptions -fsanitize=thread \
        --param tsan-instrument-func-entry-exit=0 -fno-tree-vectorize -fno-store-merging \
        -Wno-unknown-pragmas -I "$root/cuda_kernels" -I "$root" -c "$work/$1.cu" \
        -o "$work/$1.o" || exit 2
    "$compiler" -shared -o "$work/$1.so" "$work/$1.o" "$driver" || exit 2
    echo "cuda_on_cpu $1 $work/$1.so" >"$work/$1.fatbin"
}

# run <arguments of tamis-check>: on the kernels in $work, and on so many multiprocessors that small
# cases are split over several blocks.
run() {
    CUDA_ON_CPU_MULTIPROCESSORS=132 TAMIS_CUDA_DRIVER=$driver TAMIS_CUDA_KERNELS=$work "$check" \
        --device cuda:0 --form $form --list smoke "$@" >"$work/log" 2>&1
}

# mutant <what> <stem> <op> <sed script> <text that must appear> [<file>]: the script must change
# the copy of the file, <stem>.cu or a header that this one includes itself.
mutant() {
    file=${6:-$2.cu}
    cp "$root/cuda_kernels/$2.cu" "$work/$2.cu"
    sed "$4" "$root/cuda_kernels/$file" >"$work/$file"
    if cmp -s "$work/$file" "$root/cuda_kernels/$file"; then
        echo "'$4' does not change $file"
        exit 2
    fi
    build "$2"
    [ "$file" = "$2.cu" ] || rm "$work/$file"
    if run "$3" || ! grep -q "$5" "$work/log"; then
        echo "SURVIVED: $1"
        cat "$work/log"
        survivors=$((survivors + 1))
        return
    fi
    echo "caught: $1: $(grep -m 1 "$5" "$work/log" | cut -c 1-170)"
}

# What a mutant runs beside itself: the images that lie by the driver.
cp "$(dirname "$driver")"/kernels/*.fatbin "$work" || exit 2
for stem in argmax embed; do
    cp "$root/cuda_kernels/$stem.cu" "$work/$stem.cu"
    build $stem
    run $stem || { echo "the unbroken kernels fail:"; cat "$work/log"; exit 1; }
done

mutant "missing barrier in argmax.cu" argmax argmax '/block_sync();/d' "race"
mutant "ticket without order in sparse_attend.cu" sparse_attend sparse_attend \
    '1i #include "tests/cuda_on_cpu/calls.h"\
#define cpu_atomic_add_acq_rel cpu_atomic_add' "race in global memory"
mutant "divergent barrier in argmax.cu" argmax argmax \
    's/^    block_sync();/    if (warp_id() == 3)\n        block_sync();\n    else\n        block_sync();/' \
    "divergent barrier"
mutant "overrun in argmax.cu" argmax argmax \
    's/min(i + j \* THREADS, a.dim - 1)/i + j * THREADS + (1 << 20)/' "out of bounds"
mutant "wrong index in embed.cu" embed embed 's/tokens\[row\]/tokens[0]/' "FAIL embed"
mutant "scale of half a block in q8.cuh" bounds bounds 's/shuffle_xor(most, 2u)/most/' \
    "FAIL bounds" q8.cuh
mutant "hi rounded down in bounds.cu" bounds bounds 's/<Q8_UP>/<Q8_DOWN>/' "FAIL bounds"
mutant "nearest rounded down in q8.cuh" rows write_rows 's/x > middle/false/' "FAIL write_rows" \
    q8.cuh
mutant "scales left behind in compact.cu" compact compact \
    's/words\[place_of(l.to/words[place_of(l.pages/' "FAIL compact"
mutant "words of one thread alone in compact.cu" compact copy_slots \
    's/i < words; i += parts/i == part; i += parts/' "FAIL copy_slots"
mutant "wrong stride in convert.cu" convert convert 's/row \* a.y_stride/row * a.x_stride/' \
    "FAIL convert"
mutant "entry behind the lane in take_lists.cu" take_lists take_lists \
    's/entry >= end/entry > end/' "FAIL take_lists"
mutant "minimum rounded up in q8.cuh" rows write_rows 's/> size ? d - 1/> size ? d/' \
    "FAIL write_rows" q8.cuh

form=auto
for stem in linear linear_mma; do
    cp "$root/cuda_kernels/$stem.cu" "$work/$stem.cu"
    build $stem
done
run linear || { echo "the unbroken kernels fail:"; cat "$work/log"; exit 1; }
mutant "missing part in linear_mma.cu" linear_mma linear \
    's/part\[n\]\[h\]\[place_of/part[0][h][place_of/' "FAIL linear"
mutant "missing barrier in linear_mma.cu" linear_mma linear \
    's/block_sync(); \/\* this stage/\/* this stage/' "race"
mutant "missing share in linear_mma.cu" linear_mma linear \
    's/s < gridDim.y; s++/s < gridDim.y - 1; s++/' "FAIL linear"

mutant "wrong scale of K in attend_q8.cuh" attend_mma 'attend:*q8*' \
    's/column_key(i) \* BLOCKS + block/column_key(i) * BLOCKS/' "FAIL attend" attend_q8.cuh
mutant "wrong way back in attend_q8.cuh" attend_mma 'attend:*q8*' \
    's/(254 - raise)/(255 - raise)/' "FAIL attend" attend_q8.cuh
mutant "minima left out in attend_q8.cuh" attend_mma 'attend:*k8v4*' \
    's/sum + least\[m\]/sum/' "FAIL attend" attend_q8.cuh
mutant "wrong half of a byte in attend_q8.cuh" attend_mma 'attend:*k8v4*' \
    's/high = bytes >> 4/high = bytes/' "FAIL attend" attend_q8.cuh
mutant "minima of K left out in attend_q8.cuh" attend_mma 'attend:*q4*' \
    's/fmaf(widen(of\[0\]), q.sums/fmaf(0.0f, q.sums/' "FAIL attend" attend_q8.cuh
mutant "wrong half of a byte of K in attend_q8.cuh" attend_mma 'attend:*q4*' \
    's/bytes >> 4 \* step/bytes/' "FAIL attend" attend_q8.cuh

[ $survivors -eq 0 ]
