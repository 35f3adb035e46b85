# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by demo.sh, which has built tamis and made the folder $work, for the real model $name. It reads
# a long text once, in which one line holds a number, and answers questions on forks of it: reading the
# whole KV cache (full), the pages that quest selects, as many of the newest pages (window), and what an
# eviction has kept before it knew the questions, where the model's file names one.
# $wrong becomes 0 if full and quest answer every question with the number and window answers none.

key=48213
tokens=20 # of an answer at most
rounds=3  # of all questions and arms in turn; tokens/s are medians
. "tools/demo_$name.sh"

model=$(tools/fetch_model.sh "$name")
awk -v sentence="$sentence" -v lines=$lines -v place=$place \
    'NR > lines { exit } { print } NR == place { print sentence }' tests/data/text.txt >"$work/text"

say "the text: $(wc -w <"$work/text") words of the King James Bible; a third in stands \"$sentence\""
say "$reads_it"
say "then full, quest, window${evict:+, $evict} answer each of ${#questions[@]} questions $rounds times in turn"
asked=()
for question in "${questions[@]}"; do
    asked+=(--question "$question")
done
./build/tamis compare --model "$model" --file "$work/text" "${asked[@]}" \
    --select full,quest,window --budget $budget ${evict:+--evict "$evict"} --tokens $tokens --rounds $rounds \
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
    [ -n "$arm" ] || continue
    got=$(right "$arm")
    [ "$wanted" = any ] || [ "$got" -eq "$wanted" ] || wrong=1
    printf '  %-7s %-55s %s of %s right, %5.1f tokens/s\n' "$arm" "$reads" "$got" "$all" \
        "$(mean "$arm" 4)"
done <<LINES
full $all reads the whole KV cache
quest $all reads $budget tokens that its pages promise
window 0 reads the newest $budget tokens
${evict:+$evict any keeps $budget tokens, chosen before the questions}
LINES
printf '\n'
[ $wrong = 0 ] || say 'not as it should be: full and quest find the number, window cannot'
awk -v share="$(mean quest 5)" -v full="$(mean full 4)" -v quest="$(mean quest 4)" 'BEGIN {
    printf "== quest has read %.1f %% of what full reads for each token, and was %.1f times as fast\n",
        100 * share, quest / full
}'
