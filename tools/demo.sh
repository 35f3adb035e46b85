#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds tamis and asks the shipped model for keys that stand all over long texts, reading the whole
# KV cache (full), the pages that quest selects, the newest pages (window), and the best pages that
# can be known (oracle).
# Exit status: 0 if full finds at least 90 % of the keys, quest with a budget of 512 at most 10 points
# fewer, and window with as many tokens less than 40 %.
set -eu
cd "$(dirname "$0")/.."
. tools/packages.sh

model=tests/data/needle.gguf
text=tests/data/text.txt
length=10000 # tokens of a text
texts=2
keys=10 # of a text
budget=512 # the one that is judged

# shellcheck disable=SC2086 # a list of words
install_missing $needed_to_build
say "building into build/"
build build -DCMAKE_BUILD_TYPE=Release -DTAMIS_TOOLS=ON -DTAMIS_TESTS=OFF

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# found SELECT BUDGET: keys that were found, in thousandths of all; full's budget is the length.
found() {
    awk -v select_is="$1" -v budget_is="$2" '
        { name = $1; value = $2; gsub(/[":]/, "", name); gsub(/[",]/, "", value) }
        name == "select" { selected = value }
        name == "budget" { budget = value }
        name == "accuracy" && selected == select_is && budget == budget_is {
            printf "%.0f\n", 1000 * value
            rows++
        }
        END { exit rows != 1 }' "$work/passkey.json" ||
        { echo "no single row of $1 with budget $2 in what tamis eval passkey wrote" >&2; exit 1; }
}

# percent THOUSANDTHS
percent() {
    printf '%d.%d %%' $(($1 / 10)) $(($1 % 10))
}

say "$texts texts of $length tokens (bytes); in each $keys keys: \"The red pass key is 12345.\""
say "every key is asked for under each selection; a budget is what it reads of each lane, in tokens"
if ! ./build/tamis eval passkey --model "$model" --text "$text" --length "$length" --texts "$texts" \
    --keys "$keys" --seed 0 --select full,quest,window,oracle --score minmax \
    --budget 256,512,1024 --json "$work/passkey.json" >"$work/table"; then
    say "tamis eval passkey failed"
    exit 1
fi
printf '\n'
cat "$work/table"
printf '\n'

full=$(found full "$length")
quest=$(found quest "$budget")
window=$(found window "$budget")
if [ "$full" -lt 900 ] || [ "$quest" -lt $((full - 100)) ] || [ "$window" -ge 400 ]; then
    say "not as it should be: full $(percent "$full") (at least 90 %), quest with $budget tokens" \
        "$(percent "$quest") (at most 10 points fewer), window with as many" \
        "$(percent "$window") (below 40 %)"
    exit 1
fi
say "full finds $(percent "$full") of the keys; quest, which reads $budget of $length tokens," \
    "$(percent "$quest"); window, which reads as many but only the newest, $(percent "$window")"
