# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by demo.sh --smollm2, which has built tamis and made the folder $work. SmolLM2-135M-Instruct
# reads a text of 7,000 tokens once, in which one line holds a number, and answers questions on
# forks of it: reading the whole KV cache (full), the pages that quest selects, as many of the newest
# pages (window), and what an eviction has kept before it knew the questions (snapkv).
# $wrong becomes 0 if full and quest answer every question with the number and window answers none.

key=48213
# Twice, as in the pass keys of Mohtashami and Jaggi: quest reads whole pages, and a number whose digits
# stand in two pages may come out as the half of one.
sentence="The special magic number is $key. Remember it. $key is the special magic number."
budget=2048 # tokens that quest and window read of each lane, and snapkv keeps
tokens=20   # of an answer at most
rounds=3    # of all questions and arms in turn; tokens/s are medians
questions=(
    'What is the special magic number?'
    'What is the special magic number mentioned in the text?'
    'Tell me the special magic number.'
)

model=$(tools/fetch_model.sh)

# Ruth, Jonah and the beginning of Mark, in the public domain; the sentence stands a third in.
awk -v sentence="$sentence" 'NR > 200 { exit } { print } NR == 70 { print sentence }' \
    tests/data/text.txt >"$work/text"

say "the text: $(wc -w <"$work/text") words of the King James Bible; a third in stands \"$sentence\""
say "SmolLM2-135M reads it once, one to three minutes on two cores"
say "then full, quest, window and snapkv answer each of ${#questions[@]} questions $rounds times in turn"
asked=()
for question in "${questions[@]}"; do
    asked+=(--question "$question")
done
./build/tamis compare --model "$model" --file "$work/text" "${asked[@]}" \
    --select full,quest,window --budget $budget --evict snapkv --tokens $tokens --rounds $rounds \
    >"$work/table"
printf '\n'
cat "$work/table"

# right ARM: how many of the arm's answers hold the number.
right() {
    grep -c "^$1 .*\".*\<$key\>.*\"" "$work/table" || true
}

# mean ARM COLUMN: over the questions.
mean() {
    awk -v arm="$1" -v column="$2" '$1 == arm { sum += $column; n++ } END { print sum / n }' \
        "$work/table"
}

printf '\n'
wrong=0
all=${#questions[@]}
while read -r arm wanted reads; do
    got=$(right "$arm")
    [ "$wanted" = any ] || [ "$got" -eq "$wanted" ] || wrong=1
    printf '  %-7s %-55s %s of %s right, %5.1f tokens/s\n' "$arm" "$reads" "$got" "$all" \
        "$(mean "$arm" 4)"
done <<LINES
full $all reads the whole KV cache
quest $all reads $budget tokens that its pages promise
window 0 reads the newest $budget tokens
snapkv any keeps $budget tokens, chosen before the questions
LINES
printf '\n'
[ $wrong = 0 ] || say 'not as it should be: full and quest find the number, window cannot'
awk -v share="$(mean quest 5)" -v full="$(mean full 4)" -v quest="$(mean quest 4)" 'BEGIN {
    printf "== quest has read %.1f %% of the KV cache for each token, and was %.1f times as fast as full\n",
        100 * share, quest / full
}'
