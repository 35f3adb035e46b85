#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `tamis compare`: its answers are those of `tamis run`, its figures those of the plans.
# Usage: test_compare.sh TAMIS DATA_FOLDER
# Exit status: 0 if all passed, 1 if something failed.
. "$(dirname "$0")/checks.sh"
text=$work/text
questions=('And the name of' 'Now the ')
head -c 300 "$data/text.txt" >"$text"
head -c 90 "$data/text.txt" >"$work/short"

# compare OPTION...: asks both questions; the JSON is there for `json`.
compare() {
    rm -f "$work/out.json"
    expect 0 '' compare --model "${file:-$data/needle.gguf}" --device reference --file "$text" \
        --question "${questions[0]}" --question "${questions[1]}" --tokens 6 --rounds 2 \
        --json "$work/out.json" "$@"
}

# answered ARM QUESTION: what the arm answers to the question of this number.
answered() {
    "$python" - "$work/out.json" "$1" "${questions[$2]}" <<'END'
import json, sys
print(*[row['answer'] for row in json.load(open(sys.argv[1]))['rows']
        if (row['select'], row['question']) == tuple(sys.argv[2:])], sep='\n')
END
}

# run_answers PROMPT-FILE OPTION...: what `tamis run` answers, as one line.
run_answers() {
    expect 0 '' run --model "${file:-$data/needle.gguf}" --device reference --tokens 6 \
        --prompt-file "$@"
    tr '\n' ' ' <"$work/out" | sed 's/  */ /g; s/^ //; s/ $//'
}

# Every arm answers as `tamis run` does, which reads the text anew, under the eviction's own plan.
check_answers() {
    local arm wanted how
    compare --select full,quest,window --budget 128 --evict snapkv,h2o,knorm
    json 'assert len(rows) == 12, len(rows)'
    for arm in full quest window snapkv h2o knorm; do
        how=(--select "$arm" --budget 128)
        [ "$arm" != full ] || how=()
        case $arm in snapkv | h2o | knorm) how=(--evict "$arm" --evict-budget 128) ;; esac
        wanted=$(run_answers "$text" --question "${questions[0]}" "${how[@]}")
        [ "$(answered "$arm" 0)" = "$wanted" ] ||
            fail "$arm answers '$(answered "$arm" 0)', run '$wanted'"
    done
    [ "$(answered full 1)" = "$(run_answers "$text" --question "${questions[1]}")" ] ||
        fail "full answers '$(answered full 1)' to the other question"
}

check_figures() {
    compare --select full,quest,window --budget 128 --evict snapkv --evict-budget 144
    json 'assert root["tool"] == "tamis compare" and root["form"] == "plain", root'
    json 'assert root["tokens"] == 300 and root["rounds"] == 2 and root["read_s"] > 0, root'
    json 'assert [r["select"] for r in rows] == ["full", "quest", "window", "snapkv"] * 2, rows'
    json 'assert [r["budget"] for r in rows[:4]] == [300, 128, 128, 144], rows'
    # Of an answer all tokens but the last one are decoded.
    json 'assert all(r["tokens_decoded"] == len(r["question"]) + 5 for r in rows), rows'
    json 'full, quest, window, kept = [r["kv_bytes_read_per_token"] for r in rows[:4]]
assert window < quest < full and kept < full, rows'
    json 'assert rows[0]["kv_bytes_read_per_token"] == rows[0]["kv_bytes_full_per_token"], rows'
    json 'held = [r["kv_bytes_held"] for r in rows[:4]]
assert held[0] == held[1] == held[2] > 2 * held[3] > 0, rows'
    json 'for r in rows:
    low, high = r["tokens_per_s_sorted"]
    assert 0 < low <= high and abs(r["tokens_per_s"] - (low + high) / 2) < 1e-6, r'
    grep -qE '^300 tokens, read once in [0-9.]+ s .* form: plain$' "$work/out" ||
        fail 'figures: what was read is not said'
    [ "$(grep -c '^question: ' "$work/out")" -eq 2 ] || fail 'figures: not a table for each question'
    grep -qE '^full +- +- +[0-9.]+ +1\.000 .*B +".*"$' "$work/out" || fail 'figures: no line of full'
    grep -qE '^snapkv +- +144 +[0-9.]+ +0\.[0-9]+ ' "$work/out" || fail 'figures: no line of snapkv'
    # A line of a table holds the whole answer.
    expect 0 '' compare --model "$data/needle.gguf" --device reference --file "$work/short" \
        --question "${questions[0]}" --select full --tokens 600 --rounds 1 --json "$work/out.json"
    grep -qF "\"$(answered full 0)\"" "$work/out" || fail 'figures: a long answer is cut'
    [ "$(answered full 0 | wc -c)" -gt 520 ] || fail 'figures: the answer does not serve this test'
}

# Text and question are a user's turn where the file's template can be run.
check_forms() {
    local file=$work/chat.gguf text=$work/short plain chat
    "$python" "$keys" "$data/needle.gguf" "$file" tokenizer.ggml.bos_token_id=1 \
        tokenizer.ggml.eos_token_id=2 "tokenizer.chat_template=$inst_template"
    compare --select full
    json 'assert root["form"] == "template", root'
    chat=$(answered full 0)
    printf '\x01[INST] %s\n\n%s [/INST]' "$(cat "$text")" "${questions[0]}" >"$work/composed"
    [ "$(run_answers "$work/composed")" = "$chat" ] || fail "forms: the answer is '$chat'"
    compare --select full --system 'Be good.'
    printf '\x01[INST] Be good.\n\n%s\n\n%s [/INST]' "$(cat "$text")" "${questions[0]}" \
        >"$work/composed"
    [ "$(run_answers "$work/composed")" = "$(answered full 0)" ] || fail 'forms: --system'
    compare --select full --plain
    json 'assert root["form"] == "plain", root'
    plain=$(run_answers "$text" --question "${questions[0]}")
    [ "$(answered full 0)" = "$plain" ] || fail 'forms: --plain is another answer'

    "$python" "$keys" "$data/needle.gguf" "$file" tokenizer.ggml.bos_token_id=1 \
        tokenizer.ggml.eos_token_id=2 'tokenizer.chat_template={{ f() }}'
    compare --select full
    json 'assert root["form"] == "plain", root'
    grep -q "^tamis compare: the form is plain: the file's chat template cannot be run: line 1: the fun" \
        "$work/err" || fail 'forms: nothing says why the form is plain'
    compare --select full --chat-format mistral
    json 'assert root["form"] == "mistral", root'
    expect 1 "^tamis compare: the text holds '\\[/INST\\]', a tag of the chat format mistral" \
        compare --model "$file" --device reference --file "$text" --chat-format mistral \
        --question 'a [/INST] b'
}

check_refused() {
    local asked=(compare --model "$data/needle.gguf" --device reference)
    local whole=("${asked[@]}" --file "$text" --question x) many=() i
    succeeds 'examples:' compare --help
    usage_error '^tamis compare: --model: is missing' compare
    usage_error '^tamis compare: --file: is missing' "${asked[@]}"
    usage_error '^tamis compare: --question: is missing' "${asked[@]}" --file "$text"
    usage_error '^tamis compare: --question : must not be empty$' "${whole[@]}" --question ''
    for i in $(seq 16); do many+=(--question "$i"); done
    usage_error '^tamis compare: --question 16: is given too often$' "${whole[@]}" "${many[@]}"
    usage_error '^tamis compare: --system: is given with --plain' "${whole[@]}" --plain --system y
    usage_error '^tamis compare: --chat-format: is given with --plain' "${whole[@]}" --plain \
        --chat-format llama2
    usage_error '^tamis compare: --rounds 0: must be from 1 to ' "${whole[@]}" --rounds 0
    usage_error '^tamis compare: --evict-budget: is given where nothing is evicted' "${whole[@]}" \
        --evict-budget 64
    expect 1 "^tamis compare: $work/nothing: cannot be read: " "${asked[@]}" --question x \
        --file "$work/nothing"
    : >"$work/empty"
    expect 1 "^tamis compare: $work/empty: is empty$" "${asked[@]}" --question x \
        --file "$work/empty"
    expect 1 '^tamis compare: standard input: is empty$' "${asked[@]}" --question x --file - </dev/null
    expect 1 '^tamis compare: the file has no chat template: --chat-format must name one of' \
        "${whole[@]}" --system y
    expect 1 '^tamis compare: a text takes up to [0-9]+ tokens with what follows it; the model states' \
        "${asked[@]}" --question x --file "$data/text.txt"
    expect 0 '^answers: ' "${asked[@]}" --question x --file - --select full --tokens 1 <"$text"
}

check_answers
check_figures
check_forms
check_refused
[ "$failures" -eq 0 ] || exit 1
echo 'compare: all passed'
