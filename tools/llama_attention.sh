#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs llama.cpp with its decode attention computed by tamis (docs/examples/llama_cpp): how far full
# attention is from llama.cpp's own, the time of a decode step with quest beside llama.cpp's, and how many
# keys planted in natural text each of them finds again, and tamis alone.
#
# llama.cpp is that in the source of PyPI's package llama-cpp-python (77 MB), 0.3.36 or newer. It is kept
# and built in the user's cache folder, $XDG_CACHE_HOME or ~/.cache, under tamis/llama.cpp. Time takes a
# machine that does nothing else.
#
# Usage: llama_attention.sh [OPTIONS]
#   --tamis FILE       the program (default build/tamis of this tree); libtamis lies beside it
#   --measure W[,W]    full, time, keys (default all)
#   --model FILE       a GGUF file (default SmolLM2, fetched)
#   --context N        tokens in front of a decode step (default 7500)
#   --budget N         tokens that quest reads (default 1024)
#   --device ID        of tamis (default opencl)
#   --threads N        of both (default 2)
#   --samples N        decode steps that are timed (default 15)
#   --texts N          prompts with a key (default 10)
#   --version V        of llama-cpp-python (default the newest)
#   --folder DIR       keeps llama.cpp's source and build, in place of the cache folder
#   --built yes        does nothing, with exit status 77, where llama.cpp is not built yet or the model
#                      cannot be fetched
#   --out DIR          keeps prompts and answers
# CMAKE_BUILD_PARALLEL_LEVEL is how many jobs build (default one for each processor).
# Exit status: 0; 1 something is missing or failed, stderr says what; 2 wrong usage; 3 the registry
# cannot be reached, or there is no pip to ask it with; 77 see --built.
set -eu
. "$(dirname "$0")/llama_cpp.sh"

measure=full,time,keys model='' context=7500 budget=1024 device=opencl threads=2 samples=15 texts=10
built=no
read_options 'tamis measure model context budget device threads samples texts version folder built out' "$@"
is_list --measure "$measure" full time keys
is_list --built "$built" yes no
is_number --context "$context" 100000 100
is_number --budget "$budget" 100000 16
is_number --threads "$threads" 256
is_number --samples "$samples" 1000
is_number --texts "$texts" 100
[ $((budget % 16)) = 0 ] || refuse "--budget $budget: must be a multiple of 16"
check_options
libraries=$(dirname "$tamis")
[ -f "$libraries/libtamis.so" ] || fail "$libraries/libtamis.so: is not there"
if [ "$built" = yes ]; then
    version=${version:-$(newest)}
    [ -n "$version" ] && [ -f "$folder/$version/build/src/libllama.a" ] || {
        say "llama.cpp is not built in $folder"
        exit 77
    }
fi

get_llama llama
make_out
if [ -z "$model" ]; then
    model=$("$tools/fetch_model.sh" smollm2 9>&-) || {
        status=$?
        [ "$built" = no ] || exit 77
        exit $status
    }
fi

example=$tools/../docs/examples/llama_cpp
for part in attention program; do
    step cc -std=c11 -O2 -Wall -Wextra -isystem "$source/include" -isystem "$source/ggml/include" \
        -isystem "$source/ggml/src" -I"$tools/../lib/include" -c "$example/$part.c" -o "$work/$part.o" ||
        fail "$example/$part.c does not build with $package $version"
done
step cc "$work/attention.o" "$work/program.o" "$build/src/libllama.a" "$build/ggml/src/libggml.a" \
    "$build/ggml/src/libggml-cpu.a" "$build/ggml/src/libggml-base.a" -L"$libraries" -ltamis \
    -Wl,-rpath,"$(cd "$libraries" && pwd)" -lstdc++ -lm -pthread -ldl -o "$work/llama_attention" ||
    fail "the example does not link with $package $version"

export POCL_MAX_PTHREAD_COUNT=$threads
# theirs WHAT PROMPT...
theirs() {
    local what=$1
    shift
    "$work/llama_attention" --model "$model" --measure "$what" --device "$device" --budget "$budget" \
        --threads "$threads" --samples "$samples" "$@" || fail "llama.cpp with tamis failed"
}

# number_tokens STEM: the numbers of the tokens of STEM.txt, in STEM.ids.
number_tokens() {
    "$tamis" tokenize --model "$model" --file "$1.txt" >"$work/tokens" || fail 'tamis tokenize failed'
    sed -n "s/^ *\([0-9]*\) '.*/\1/p" "$work/tokens" >"$1.ids"
}

keys=$tools/compare_llama/keys.py
say "writing $texts prompts of about $context tokens"
python3 "$keys" write "$tools/../tests/data/text.txt" "$context" "$texts" "$out"
for ((i = 0; i < texts; i++)); do
    number_tokens "$out/$i"
done

printf 'llama.cpp of %s %s with %s, %s threads.\n' "$package" "$version" \
    "$("$tamis" --version | head -n 1)" "$threads" >&3
for what in full time; do
    case ,$measure, in
    *,$what,*)
        say "$what"
        theirs $what "$out/0.ids" >&3
        ;;
    esac
done
case ,$measure, in
*,keys,*)
    for ((i = 0; i < texts; i++)); do
        say "key $((i + 1)) of $texts"
        theirs answers --answer 8 "$out/$i.ids" >"$out/$i.answers"
        "$tamis" run --model "$model" --prompt-file "$out/$i.txt" --tokens 8 --ignore-eos \
            --select quest --budget "$budget" --device "$device" \
            >"$out/$i.tamis" 2>"$work/log" </dev/null || {
            cat "$work/log"
            fail 'tamis run failed'
        }
    done
    python3 "$keys" count "$texts" "$out" >&3
    ;;
esac
