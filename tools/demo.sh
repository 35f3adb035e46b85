#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds tamis and asks the shipped model for a key that stands in the middle of a text of 10,000
# tokens: reading the whole KV cache (full), the pages that quest selects, and as many of the newest
# pages (window). Then what quest has read of the cache, and how much faster it was.
# Exit status: 0 if full and quest answer with the key, and window does not, which cannot know it.
# Usage: demo.sh             the shipped model, as above
#        demo.sh --smollm2   the same on a real model, SmolLM2-135M, and 7,000 tokens; minutes on two cores
#        demo.sh --gemma3    on Gemma 3 270M, and 16,000 tokens; minutes, too
set -eu
cd "$(dirname "$0")/.."
export LC_ALL=C # figures have a decimal point, whatever the user's language
. tools/packages.sh

case $#${1-} in
0 | 1--smollm2 | 1--gemma3) ;;
1--help | 1-h)
    sed -n '3,11s/^# //p' tools/demo.sh
    exit 0
    ;;
*)
    printf 'demo.sh: %s: takes no argument but --smollm2 or --gemma3 (see --help)\n' "$*" >&2
    exit 2
    ;;
esac

model=tests/data/needle.gguf
text=docs/examples/prompt.txt
question='The red pass key is '
key=$(sed -n 's/.*The red pass key is \([0-9]*\)\..*/\1/p' "$text")
budget=256 # tokens that quest and window read of each lane
tokens=100 # of an answer: it begins with the key, and the others are there to be timed
rounds=3   # of full and quest in turn; the fastest of each are compared, for others slow both down

# shellcheck disable=SC2086 # a list of words
install_missing $needed_to_build
kernels=OFF # CUDA's, which nvcc compiles for minutes
! has_cuda_driver || kernels=AUTO
say "building into build/$([ $kernels = AUTO ] || echo ' without CUDA kernels: there is no CUDA driver')"
build build -DCMAKE_BUILD_TYPE=Release -DTAMIS_TOOLS=ON -DTAMIS_TESTS=OFF -DTAMIS_NVCC=$kernels

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ $# = 1 ]; then
    name=${1#--}
    . tools/demo_real.sh
    exit "$wrong"
fi

# ask SELECT [OPTION...]: the answer's beginning goes to SELECT.answer, the line of figures behind
# SELECT.figures.
ask() {
    local select=$1
    shift
    ./build/tamis run --model "$model" --prompt-file "$text" --question "$question" \
        --tokens $tokens --select "$select" "$@" >"$work/text" 2>"$work/said" || {
        cat "$work/said" >&2
        exit 1
    }
    head -c ${#key} "$work/text" >"$work/$select.answer"
    grep '^prefill ' "$work/said" >>"$work/$select.figures"
}

# most PATTERN SELECT: of the numbers that the pattern's group matches in the lines of figures.
most() {
    sed -n -E "s|.*$1.*|\1|p" "$work/$2.figures" | sort -g | tail -n 1
}

say "the text: $text, $(wc -c <"$text") tokens (bytes); in the middle of it \"$question$key.\""
say "the question: \"$question\"; full and quest answer it $rounds times in turn"
for ((i = 0; i < rounds; i++)); do
    ask full
    ask quest --budget $budget
done
ask window --budget $budget

printf '\n'
wrong=0
while read -r select wanted reads; do
    answer=$(cat "$work/$select.answer")
    verdict=wrong
    [ "$answer" != "$key" ] || verdict=right
    [ $verdict = "$wanted" ] || wrong=1
    printf '  %-7s reads %-45s "%s", which is %s\n' "$select" "$reads and answers" "$answer" "$verdict"
done <<END
full right the whole KV cache
quest right $budget tokens that its pages promise
window wrong the newest $budget tokens
END
printf '\n'
[ $wrong = 0 ] || { say "not as it should be: full and quest find the key, window cannot"; exit 1; }

share=$(most '\(([0-9.]+) % of full\)' quest)
speed_up=$(awk -v a="$(most 'decode ([0-9.]+) tokens/s' full)" \
    -v b="$(most 'decode ([0-9.]+) tokens/s' quest)" 'BEGIN { printf "%.1f", b / a }')
say "quest has read $share % of the KV cache for each token, and was $speed_up times as fast as full"
