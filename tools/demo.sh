#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds tamis and asks the shipped model for a key that stands early in a text, three times: reading
# the whole KV cache (full), a part that quest selects, and the newest part (window).
# Exit status: 0 if full and quest answer rightly and window, which cannot see the key, does not.
set -eu
cd "$(dirname "$0")/.."
. tools/packages.sh

key=48213
budget=256
# shellcheck disable=SC2086 # a list of words
install_missing $needed_to_build
say "building into build/"
build build -DCMAKE_BUILD_TYPE=Release -DTAMIS_TOOLS=ON -DTAMIS_TESTS=OFF

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The key goes in after 500 bytes; about 1400 follow, far more than the window keeps.
{
    head -c 500 tests/data/text.txt
    printf ' The red pass key is %s. Remember it. ' "$key"
    tail -c +501 tests/data/text.txt | head -c 1400
    printf '\n'
} >"$work/prompt"
length=$(wc -c <"$work/prompt")

say "a text of $length tokens (bytes); in it: \"The red pass key is $key.\""
say "the question is asked under each selection; budget $budget tokens of each lane"

# ask SELECT [FLAG...]: the answer to $work/answer, the line of figures to $work/figures.
ask() {
    if ! ./build/tamis run --model tests/data/needle.gguf --prompt-file "$work/prompt" \
        --question 'The red pass key is ' --tokens 5 --select "$@" \
        >"$work/answer" 2>"$work/messages"; then
        cat "$work/messages" >&2
        return 1
    fi
    tail -n 1 "$work/messages" >"$work/figures"
}

# figure PATTERN: the part of the line of figures that the pattern's group matches.
figure() {
    sed -n -E "s#.*$1.*#\\1#p" "$work/figures"
}

row() {
    printf '%-8s %-8s %-7s %18s %17s %22s\n' "$@"
}

failed=0
printf '\n'
row select answer right 'prefill tokens/s' 'decode tokens/s' 'KV read per token'
for select in full quest window; do
    case $select in
    full) ask full ;;
    *) ask "$select" --budget "$budget" ;;
    esac
    answer=$(tr -d '\n' <"$work/answer")
    right=no
    [ "$answer" != "$key" ] || right=yes
    row "$select" "$answer" "$right" "$(figure 'prefill ([0-9.]+) tokens/s')" \
        "$(figure 'decode ([0-9.]+) tokens/s')" \
        "$(figure 'KV read ([^,]*)/token') $(figure '/token (\([0-9.]+ %) of full\)'))"
    expected=yes
    [ "$select" != window ] || expected=no
    [ "$right" = "$expected" ] || failed=1
done
printf '\n%s\n' "$(sed -n -E 's/.*(KV held .*)/the last run: \1/p' "$work/figures")"

if [ "$failed" -ne 0 ]; then
    say "not as it should be: full and quest answer $key, window, which never reads the key, does not"
    exit 1
fi
say "quest answers as full does from a part of the cache; window, which never reads the key, cannot"
