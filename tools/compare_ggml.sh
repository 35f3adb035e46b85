#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Measures decode attention of tamis beside that of ggml's CPU backend, in turn, round after round,
# and prints a table. ggml is that in the source of PyPI's package llama-cpp-python (77 MB), 0.3.36
# or newer; it is kept and built in the user's cache folder, $XDG_CACHE_HOME or ~/.cache, under
# tamis/llama.cpp. What is measured how is said in tools/compare_ggml/attention.c and by
# `tamis bench attention --help`. ggml reads two layouts of the same cache: tokens, where the KV
# heads of a token lie side by side, as llama.cpp keeps its cache, and heads, where the tokens of a
# KV head do. The table names the faster one.
#
# Usage: compare_ggml.sh [OPTIONS]
#   --tamis FILE      the program (default build/tamis of this tree)
#   --shapes S[,S]    llama2-7b, llama3-8b (default both)
#   --dtypes D[,D]    element types of the cache: f16, q8 (ggml's q8_0), k8v4 (ggml's q8_0 for K,
#                     q4_1 for V), q4 (q4_1 for both) (default all)
#   --context N       tokens in the cache (default 32768)
#   --budget N        tokens of a lane that quest reads (default 2048)
#   --threads N       of both (default 2)
#   --rounds N        (default 5)
#   --samples N       of each measurement in each round (default 3)
#   --version V       of llama-cpp-python (default the newest)
#   --folder DIR      keeps llama.cpp's source and build in place of the cache folder
#   --out DIR         keeps what each measurement printed, a file each
# CMAKE_BUILD_PARALLEL_LEVEL is how many jobs build (default one for each processor).
# Exit status: 0 the table was printed; 1 something is missing or failed, stderr says what; 2 wrong
# usage; 3 the registry cannot be reached, or there is no pip to ask it with.
set -eu
. "$(dirname "$0")/llama_cpp.sh"

shapes=llama2-7b,llama3-8b dtypes=f16,q8,k8v4,q4
context=32768 budget=2048 threads=2 rounds=5 samples=3
read_options 'tamis shapes dtypes context budget threads rounds samples version folder out' "$@"
is_list --shapes "$shapes" llama2-7b llama3-8b
is_list --dtypes "$dtypes" f16 q8 k8v4 q4
is_number --context "$context" 1048576
is_number --budget "$budget" "$context"
is_number --threads "$threads" 512
is_number --rounds "$rounds" 1000
is_number --samples "$samples" 1000
check_options

get_llama ggml-base ggml-cpu
build_with compare_ggml/attention.c ggml/src/libggml-cpu.a ggml/src/libggml-base.a
make_out

# ggml FILE SHAPE DTYPE
ggml() {
    local dtype=$3
    case $dtype in
    q8) dtype=q8_0 ;;
    k8v4) dtype=q8_0/q4_1 ;;
    q4) dtype=q4_1 ;;
    esac
    "$work/attention" --shape "$2" --dtype "$dtype" --context "$context" --threads "$threads" \
        --samples "$samples" >"$1.txt" || fail "$2, $3: ggml was not measured"
    sed '1d' "$1.txt"
}

# ours FILE SHAPE DTYPE
ours() {
    POCL_MAX_PTHREAD_COUNT=$threads "$tamis" bench attention --shape "$2" --context "$context" \
        --dtype "$3" --select full,quest --budget "$budget" --repeat "$samples" \
        --json "$1.json" >"$work/log" 2>&1 || {
        cat "$work/log"
        fail "$2, $3: $tamis was not measured"
    }
    grep -E '^[0-9]+ +(full|quest) ' "$work/log" || true
}

files=()
for ((round = 1; round <= rounds; round++)); do
    for shape in ${shapes//,/ }; do
        for dtype in ${dtypes//,/ }; do
            file=$out/$shape.$dtype.$round
            say "round $round of $rounds: $shape, $dtype"
            if [ $((round % 2)) = 1 ]; then
                ggml "$file" "$shape" "$dtype"
                ours "$file" "$shape" "$dtype"
            else
                ours "$file" "$shape" "$dtype"
                ggml "$file" "$shape" "$dtype"
            fi
            files+=("$file")
        done
    done
done
printf 'ggml of %s %s\n\n' "$package" "$version" >&3
python3 "$tools/compare_ggml/table.py" "${files[@]}" >&3
