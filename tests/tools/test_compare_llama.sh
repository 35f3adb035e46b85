#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# compare_llama.sh, compare_ggml.sh and llama_attention.sh without a network: their options, and the
# tables that are made of files as a run writes them.
# Usage: test_compare_llama.sh TOOLS
set -u
tools=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# expect STATUS TEXT COMMAND...: the exit status, and a text that is printed.
expect() {
    local status=$1 text=$2 was=0
    shift 2
    "$@" >"$work/said" 2>&1 || was=$?
    if [ $was != "$status" ] || ! grep -q -F -e "$text" "$work/said"; then
        printf 'FAIL %s: status %s, wanted %s and: %s\n' "$*" $was "$status" "$text"
        sed 's/^/    /' "$work/said"
        failed=1
    fi
}

for script in compare_llama.sh compare_ggml.sh; do
    run=$tools/$script
    expect 0 "Usage: $script [OPTIONS]" "$run" --help
    expect 0 'Exit status: 0' "$run" -h
    expect 2 "$script: --speed: no such option" "$run" --speed
    expect 2 'tamis: no such option' "$run" tamis
    expect 2 '--rounds: takes a value' "$run" --rounds
    expect 2 '--rounds 0: must be a whole number from 1 to 1000' "$run" --rounds 0
    expect 2 '--threads 2x: must be a whole number' "$run" --threads 2x
    expect 2 '--version ../x: is no version' "$run" --version ../x
    expect 1 "$work/none: is no program" "$run" --tamis "$work/none"
done
run=$tools/llama_attention.sh
expect 0 'Usage: llama_attention.sh [OPTIONS]' "$run" --help
expect 2 '--speed: no such option' "$run" --speed
expect 2 'speed: must be one of full time keys' "$run" --measure speed
expect 2 '--budget 1000: must be a multiple of 16' "$run" --budget 1000
expect 2 '--context 10: must be a whole number from 100' "$run" --context 10
expect 1 "$work/none: is no program" "$run" --tamis "$work/none"
run=$tools/compare_llama.sh
expect 2 '--models ,: must name some of' "$run" --models ,
expect 2 'gpt2: must be one of smollm2 gemma3 llama3.2-1b llama2-7b' "$run" --models smollm2,gpt2
expect 2 'llama2-7b: answers are those of' "$run" --models llama2-7b
expect 2 'size: must be one of speed answers' "$run" --measure size
expect 2 '--contexts 100,: must be numbers' "$run" --contexts 100,
expect 2 '--contexts 1: must be a whole number from 2' "$run" --contexts 100,1
expect 2 '--context: no such option' "$run" --context 100

# Two rounds: of the three times each the median of a round's ratios, and the faster attention.
step() {
    printf '{"device_name": "a processor", "weight_bytes": 9000000, "read_gb_per_s": 10, "rows": [
        {"select": "full", "step_us": %s, "kv_bytes": 1000000, "share_of_read": 0.5},
        {"select": "quest", "budget": 64, "step_us": 1000, "share_of_read": 0.9}]}' "$1"
}
for round in 1 2; do
    stem=$work/small.$round
    printf 'what tokens ms\nprompt 1000 %s\ndecode 200 4\n' $((1000 * round)) >"$stem.on.txt"
    printf 'what tokens ms\nprompt 1000 9000\ndecode 200 2\n' >"$stem.off.txt"
    printf 'prefill 3000.0 tokens/s, decode -\n' >"$stem.prompt.txt"
    step 2000 >"$stem.200.json"
done
# Planted keys: the prompts' length, the key in each, and which answers have it.
keys=$tools/compare_llama/keys.py
mkdir "$work/keys"
python3 "$keys" write "$tools/../tests/data/text.txt" 300 3 "$work/keys"
for i in 0 1 2; do
    key=$(sed -n "$((i + 1))p" "$work/keys/keys.txt")
    expect 0 "magic number is $key. Remember it." cat "$work/keys/$i.txt"
    [ "$(wc -c <"$work/keys/$i.txt")" -lt 1400 ] && [ "$(wc -c <"$work/keys/$i.txt")" -gt 1100 ] || {
        echo "FAIL: $i.txt has $(wc -c <"$work/keys/$i.txt") bytes"
        failed=1
    }
    printf 'x\nanswer\tllama.cpp\tp\t %s.\nanswer\tquest\tp\t 1%s\n' "$key" $i >"$work/keys/$i.answers"
    printf 'no' >"$work/keys/$i.tamis"
done
printf '%s' "$key" >"$work/keys/2.tamis"
expect 0 'llama.cpp                    3 of 3  +++' python3 "$keys" count 3 "$work/keys"
expect 0 'llama.cpp, quest by tamis    0 of 3  ---' python3 "$keys" count 3 "$work/keys"
expect 0 'tamis alone, quest           1 of 3  --+' python3 "$keys" count 3 "$work/keys"
: >"$work/keys/1.answers"
expect 1 '1.answers has 0 answers, of 2' python3 "$keys" count 3 "$work/keys"

table=$tools/compare_llama/table.py stems=("$work/small.1" "$work/small.2")
expect 0 '| small | prompt of 1,000, tokens/s | 750.0 (on) |  | 3000.0 |  | 4.50 |  |  |  |' \
    python3 "$table" "${stems[@]}"
expect 0 '| small | step of 200, ms | 2.00 (off) | 0.50 | 2.00 | 0.50 | 1.00 | 1.00 | 0.90 | 2.00 |' \
    python3 "$table" "${stems[@]}"
expect 0 'Medians of 2 rounds, read bandwidth 10.0 GB/s (10.0 to 10.0). tamis on a processor.' \
    python3 "$table" "${stems[@]}"
expect 1 'small.3.on.txt: cannot be read' python3 "$table" "$work/small.3"
echo 'prefill fast' >"$work/small.2.prompt.txt"
expect 1 'small.2.prompt.txt: does not say how fast' python3 "$table" "${stems[@]}"
expect 2 'usage: table.py' python3 "$table"

# A character that is not whole at an answer's end counts for nothing.
for prompt in 1 2; do
    for arm in f32 tamis llama-on llama-off llama-f32; do
        printf 'an answer\n' >"$work/$prompt.$arm"
    done
done
printf 'an answer\xe2\x80\n' >"$work/1.llama-off"
printf 'another\n' >"$work/2.llama-on"
answers=$tools/compare_llama/answers.py
expect 0 "Greedy answers of ${work##*/} with 32 tokens" python3 "$answers" "$work" 32
expect 0 '| tamis | 2 of 2 |  |' python3 "$answers" "$work" 32
expect 0 '| llama.cpp, flash attention | 1 of 2 | 2 |' python3 "$answers" "$work" 32
expect 0 '| llama.cpp, no flash attention | 2 of 2 |  |' python3 "$answers" "$work" 32
rm "$work/2.llama-f32"
expect 1 '2.llama-f32: No such file' python3 "$answers" "$work" 32
[ $failed = 0 ] && echo 'all is well'
exit $failed
