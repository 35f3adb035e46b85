#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Measures models on tamis beside llama.cpp on the CPU, in turn, round after round, and prints two
# tables: the speed of a prompt and of decode steps behind contexts, and in how many prompts either
# answers as the model does in f32. Speed takes a machine that does nothing else: llama.cpp's
# threads wait for each other in loops, and are many times as slow where one lacks a processor.
#
# llama.cpp is that in the source of PyPI's package llama-cpp-python (77 MB), 0.3.36 or newer. It is
# kept and built in the user's cache folder, $XDG_CACHE_HOME or ~/.cache, under tamis/llama.cpp, and
# so are the random models (5 GB).
#
# A step is measured as is said in tools/compare_llama/model.c and by `tamis bench model --help`,
# with a cache of f16; the prompt as `tamis run` reads it, in a new process in each round. llama.cpp
# runs with and without flash attention; the table names the faster one. "of read" is what a step
# reads, weights, keys and values as tamis counts them, over its time, as a share of the read
# bandwidth that was measured in the same round.
#
# Answers are greedy, of SmolLM2 (Q4_1) and Gemma 3 270M (Q4_K_M) to the prompts of
# tools/compare_llama/prompts.txt. In f32 are the same weights without their blocks, on tamis's
# reference with a cache of f32.
#
# Usage: compare_llama.sh [OPTIONS]
#   --tamis FILE       the program (default build/tamis of this tree)
#   --measure W[,W]    speed, answers (default both)
#   --models M[,M]     smollm2, gemma3, and of speed alone, with random weights in Q4_0,
#                      llama3.2-1b, llama2-7b (default all)
#   --prompt N         about as many tokens in the prompt (default 1000)
#   --contexts N[,N]   tokens that a decode step sees (default 100,2000,7500)
#   --budget N         tokens of a lane that quest reads; it is measured in contexts above that
#                      (default 1024)
#   --threads N        of both (default 2)
#   --rounds N         (default 3)
#   --samples N        steps of each context in each round (default 9)
#   --tokens N         of an answer (default 32)
#   --version V        of llama-cpp-python (default the newest)
#   --folder DIR       keeps llama.cpp's source, its build and the models, in place of the cache
#                      folder
#   --out DIR          keeps what was measured, a file each
# CMAKE_BUILD_PARALLEL_LEVEL is how many jobs build (default one for each processor).
# Exit status: 0 the tables were printed; 1 something is missing or failed, stderr says what; 2
# wrong usage; 3 the registry cannot be reached, or there is no pip to ask it with.
set -eu
. "$(dirname "$0")/llama_cpp.sh"

measure=speed,answers models=smollm2,gemma3,llama3.2-1b,llama2-7b
prompt=1000 contexts=100,2000,7500 budget=1024 threads=2 rounds=3 samples=9 tokens=32
read_options 'tamis measure models prompt contexts budget threads rounds samples tokens version
    folder out' "$@"
is_list --measure "$measure" speed answers
is_list --models "$models" smollm2 gemma3 llama3.2-1b llama2-7b
real=$(printf '%s\n' ${models//,/ } | grep -x -e smollm2 -e gemma3 || true)
case ,$measure, in
*,answers,*) [ -n "$real" ] || refuse "--models $models: answers are those of smollm2 or gemma3" ;;
esac
is_number --prompt "$prompt" 100000 10
case $contexts in
'' | ,* | *, | *,,*) refuse "--contexts $contexts: must be numbers with a comma between" ;;
esac
for context in ${contexts//,/ }; do
    is_number --contexts "$context" 1000000 2
done
is_number --budget "$budget" 1000000
is_number --threads "$threads" 512
is_number --rounds "$rounds" 1000
is_number --samples "$samples" 1000
is_number --tokens "$tokens" 1000
check_options

get_llama llama
build_with compare_llama/model.c src/libllama.a ggml/src/libggml.a ggml/src/libggml-cpu.a \
    ggml/src/libggml-base.a
make_out

# with_gguf SCRIPT ARGUMENT...: in Python with the package gguf, fetched where it is missing.
with_gguf() {
    local python=$folder/python
    if ! PYTHONPATH=$python python3 -c 'import gguf' 2>/dev/null; then
        have_pip || unreachable 'takes python3 with pip (Debian: python3-pip), which is not here'
        say 'fetching gguf from PyPI'
        rm -rf "$python"
        step python3 -m pip install --no-cache-dir --disable-pip-version-check --retries 2 \
            --target "$python" gguf || unreachable 'pip did not get gguf'
    fi
    PYTHONPATH=$python step python3 "$@" || fail "$1: failed"
}

# get_model NAME: its path is then in files[NAME].
declare -A files
get_model() {
    local file=$folder/models/$1.q4_0.gguf
    if [[ " ${real//$'\n'/ } " = *" $1 "* ]]; then
        file=$("$tools/fetch_model.sh" "$1" 9>&-) || exit
    elif [ ! -f "$file" ]; then
        say "writing $file"
        mkdir -p "$folder/models"
        with_gguf "$tools/make_random_model.py" "$work/model.gguf" --shape "$1" --type q4_0
        mv "$work/model.gguf" "$file"
    fi
    files[$1]=$file
}

# ours OUT COMMAND...: what it says on stderr is in $work/log.
ours() {
    local to=$1
    shift
    POCL_MAX_PTHREAD_COUNT=$threads "$tamis" "$@" >"$to" 2>"$work/log" </dev/null || {
        cat "$work/log"
        fail "$tamis $1 failed"
    }
}

# theirs OUT OPTION...
theirs() {
    local to=$1
    shift
    "$work/model" --threads "$threads" "$@" >"$to" || fail 'llama.cpp failed'
}

# number_tokens MODEL STEM: the numbers of the tokens of STEM.txt, in STEM.ids.
number_tokens() {
    ours "$work/tokens" tokenize --model "${files[$1]}" --file "$2.txt"
    sed -n "s/^ *\([0-9]*\) '.*/\1/p" "$work/tokens" >"$2.ids"
}

# ---- Speed ---------------------------------------------------------------------------------------

# words N
words() {
    printf ' the%.0s' $(seq "$1")
}

# write_prompt NAME: $work/NAME.txt, and the numbers of its tokens in NAME.ids.
write_prompt() {
    words 100 >"$work/$1.txt"
    number_tokens "$1" "$work/$1"
    words $(((prompt * 100 - 1) / $(wc -l <"$work/$1.ids") + 1)) >"$work/$1.txt"
    number_tokens "$1" "$work/$1"
}

# read_prompt NAME
read_prompt() {
    ours "$work/answer" run --model "${files[$1]}" --prompt-file "$work/$1.txt" --tokens 1 \
        --ignore-eos --context $((2 * prompt + 64))
}

# theirs_in_round STEM NAME
theirs_in_round() {
    local flash
    for flash in on off; do
        say "llama.cpp, flash attention $flash"
        theirs "$1.$flash.txt" --model "${files[$2]}" --prompt "$work/$2.ids" \
            --contexts "$contexts" --samples "$samples" --flash $flash
        cat "$1.$flash.txt"
    done
}

# ours_in_round STEM NAME
ours_in_round() {
    local context select
    say tamis
    read_prompt "$2"
    grep '^prefill' "$work/log" | tee "$1.prompt.txt"
    for context in ${contexts//,/ }; do
        select=(--select full)
        [ "$context" -le "$budget" ] || select=(--select quest --budget "$budget")
        ours "$1.$context.txt" bench model --model "${files[$2]}" --context "$context" \
            --repeat "$samples" "${select[@]}" --json "$1.$context.json"
        sed 1d "$1.$context.txt"
    done
}

measure_speed() {
    local name round stem side sides stems=()
    for name in ${models//,/ }; do
        get_model "$name"
        write_prompt "$name"
        read_prompt "$name" # builds kernels; not counted
    done
    for ((round = 1; round <= rounds; round++)); do
        sides='theirs ours'
        [ $((round % 2)) = 1 ] || sides='ours theirs'
        for name in ${models//,/ }; do
            stem=$out/$name.$round
            say "round $round of $rounds: $name"
            for side in $sides; do
                "${side}_in_round" "$stem" "$name"
            done
            stems+=("$stem")
        done
    done
    python3 "$tools/compare_llama/table.py" "${stems[@]}" >&3
}

# ---- Answers -------------------------------------------------------------------------------------

# measure_answers_of NAME
measure_answers_of() {
    local line stem flash count=0 file f32=$work/f32.gguf to=$out/answers/$1
    local ask=(--tokens "$tokens" --ignore-eos --context 2048)
    mkdir -p "$to"
    get_model "$1"
    file=${files[$1]}
    with_gguf "$tools/compare_llama/f32.py" "$file" "$f32"
    while IFS= read -r line; do
        count=$((count + 1)) stem=$to/$count
        say "$1, prompt $count: $line"
        printf %s "$line" >"$stem.txt"
        number_tokens "$1" "$stem"
        ours "$stem.f32" run --model "$f32" --prompt-file "$stem.txt" "${ask[@]}" \
            --cache-dtype f32 --device reference
        ours "$stem.tamis" run --model "$file" --prompt-file "$stem.txt" "${ask[@]}"
        for flash in on off; do
            theirs "$stem.llama-$flash" --model "$file" --prompt "$stem.ids" --answer "$tokens" \
                --flash $flash
        done
        theirs "$stem.llama-f32" --model "$f32" --prompt "$stem.ids" --answer "$tokens" \
            --flash off --cache f32
    done <"$tools/compare_llama/prompts.txt"
    python3 "$tools/compare_llama/answers.py" "$to" "$tokens" >&3
}

measure_answers() {
    local name
    for name in $real; do
        measure_answers_of "$name"
    done
}

printf 'llama.cpp of %s %s beside %s, %s threads.\n' "$package" "$version" \
    "$("$tamis" --version | head -n 1)" "$threads" >&3
for part in ${measure//,/ }; do
    printf '\n' >&3
    "measure_$part"
done
