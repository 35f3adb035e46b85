#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The commands on blends from outside: usage: test_blend.sh TAMIS DATA_FOLDER
# Exit status: 0 all passed, 1 a test failed, 77 a build without the store.
. "$(dirname "$0")/checks.sh"

"$tamis" blend trial --help >"$work/out" 2>"$work/err" ||
    { echo 'skipped: built without the store'; exit 77; }
trial=$work/settings/blend.trials
own=(blend trial --model "$data/needle.gguf" --text "$data/text.txt" --chunks 3 --chunk-tokens 96
    --prompts 2 --answer 6 --suffix 8 --share 60,20,60)
check=("${own[@]}" --trials "$trial" --json "$work/out.json")

# entry NAME: the value of a line of the only entry.
entry() {
    sed -n "s/^$1 //p" "$trial"
}

check_usage() {
    local wrong=(blend trial --model "$data/needle.gguf")
    succeeds 'examples:' blend trial --help
    succeeds 'examples:' blend list --help
    usage_error '^tamis blend trial: --model: is missing' blend trial
    usage_error '^tamis blend trial: --share 100: must be from [0-9]+ to 99$' "${wrong[@]}" --share 100
    usage_error '^tamis blend trial: --select first: must be one of hkvd, question, random$' \
        "${wrong[@]}" --select first
    usage_error '^tamis blend trial: --max-kl -1: must be at least 0 and at most ' "${wrong[@]}" --max-kl -1
    usage_error '^tamis blend trial: --min-agreement 1.5: must be at least 0 and at most 1$' \
        "${wrong[@]}" --min-agreement 1.5
    usage_error 'tamis blend: put: unknown command, must be one of trial, list$' blend put
    expect 1 '^tamis blend trial: .*/short: has [0-9]+ tokens; a chunk of 512 with' "${wrong[@]}" \
        --text "$work/short" --device reference --trials "$trial"
    expect 1 '^tamis blend trial: --sink bos: the file names no such token$' "${wrong[@]}" \
        --text "$data/text.txt" --sink bos --device reference --trials "$trial"
    HOME='' XDG_CONFIG_HOME='' expect 1 '^tamis blend trial: --trials: is missing, and there is no' \
        "${wrong[@]}"
    [ ! -e "$trial" ] || fail 'a check that failed has kept an entry'
}

# More is computed, and less is lost; the entry has what the report says.
check_measures() {
    expect 0 "keeps the entry of model [0-9a-f]{32}$" "${check[@]}" --device "$1"
    json 'assert [r["share"] for r in rows] == [0.2, 0.6], rows
assert all(r["passed"] and r["agreement"] == 1 and r["answers_same"] == 2 for r in rows), rows
assert rows[0]["rows_computed"] < rows[1]["rows_computed"] < 1, rows
assert all(0 < rows[1][d] < rows[0][d] < 0.6
    for d in ("k_deviation", "v_deviation", "attention_deviation", "left")), rows
assert 0 <= rows[1]["kl_mean"] <= rows[0]["kl_mean"] <= rows[0]["kl_p95"] < 0.05, rows
assert root["share"] == 0.2 and len(root["fingerprint"]) == 32, root'
    grep -q 'smallest share that passed: 0.2$' "$work/out" || fail 'the share is not told'
    [ "$(entry share)" = 0.200000000 ] || fail "the entry has share $(entry share)"
    [ "$(entry selector) $(entry schedule) $(entry check-layer)" = 'hkvd falling 1' ] ||
        fail 'the entry has other settings'
    [ "$(entry chunks) $(entry chunk-tokens) $(entry records)" = '3 96 f16' ] ||
        fail 'the entry was measured otherwise'
    [ "$(grep -c '^figures .* passed$' "$trial")" -eq 2 ] || fail 'the entry lacks figures'
    succeeds '^needle +[0-9a-f]{32} +hkvd +falling +1 +f16 +f16 +0 +0.2 ' blend list \
        --trials "$trial"
}

# The prompt's question selects; the entry is another one, and the gate knows it.
check_question() {
    expect 0 "keeps the entry of model [0-9a-f]{32}$" "${own[@]}" --trials "$work/asked" \
        --json "$work/out.json" --device "$fast" --select question
    json 'assert root["select"] == "question" and [r["share"] for r in rows] == [0.2, 0.6], rows
assert all(r["passed"] and r["agreement"] == 1 for r in rows), rows
assert 0 < rows[1]["v_deviation"] < rows[0]["v_deviation"], rows'
    grep -q '^selector question$' "$work/asked" || fail 'the entry has another selector'
}

# A bound that nothing keeps: the entry says so in the place of the one before.
check_bounds() {
    expect 1 '^tamis blend trial: no share passed: KL must be at most 0, agreement at least 1$' \
        "${check[@]}" --device "$fast" --max-kl 0 --min-agreement 1
    [ "$(entry share)" = 0.000000000 ] || fail "the entry has share $(entry share)"
    json 'assert root["share"] is None and not any(r["passed"] for r in rows), rows'
    succeeds '^needle .* -  +-  +-$' blend list --trials "$trial"
    expect 0 '' "${check[@]}" --device "$fast" --schedule flat --stored f32 --dtype f32
    [ "$(grep -c '^entry ' "$trial")" -eq 2 ] || fail 'other settings are not another entry'
    "$tamis" blend list --trials "$trial" --json "$work/out.json" >"$work/out" 2>"$work/err"
    json 'assert [r.get("share") for r in rows] == [None, 0.2], rows
assert [r["schedule"] for r in rows] == ["falling", "flat"], rows'
    cp "$trial" "$work/kept"
    expect 0 '' "${check[@]}" --device "$fast" --dry-run --seed 3
    cmp -s "$trial" "$work/kept" || fail 'a dry run has kept an entry'
}

# What is not a whole file of trials is neither used nor replaced.
check_damage() {
    local damaged=': its checksum is not that of its content'
    sed 's/share 0.6/share 0.5/' "$work/kept" >"$trial"
    expect 1 "^tamis blend list: $trial$damaged" blend list --trials "$trial"
    expect 1 "^tamis blend trial: $trial$damaged" "${check[@]}" --device "$fast"
    sed 's/share 0.6/share 0.5/' "$work/kept" | cmp -s - "$trial" || fail 'it was replaced'
    head -c 100 "$work/kept" >"$trial"
    expect 1 "^tamis blend list: $trial$damaged" blend list --trials "$trial"
    echo '{}' >"$trial"
    expect 1 "^tamis blend list: $trial: is no file of blend trials" blend list \
        --trials "$trial"
    rm "$trial"
    expect 0 '' blend list --trials "$trial"
    [ "$(wc -l <"$work/out")" -eq 1 ] || fail 'a file that does not exist has entries'
}

# The user's own file, where none is named.
check_default() {
    mkdir "$work/home"
    HOME=$work/home XDG_CONFIG_HOME='' \
        expect 0 "blend trial: $work/home/.config/tamis/blend.trials keeps" "${own[@]}" \
        --device "$fast"
    XDG_CONFIG_HOME=$work/home expect 0 "blend trial: $work/home/tamis/blend.trials keeps" \
        "${own[@]}" --device "$fast"
    XDG_CONFIG_HOME=$work/home succeeds '^needle ' blend list
}

echo 'few words' >"$work/short"
check_usage
for device in "${devices[@]}"; do
    rm -f "$trial"
    check_measures "$device"
done
check_bounds
check_question
check_damage
check_default
[ "$failures" -eq 0 ] || exit 1
echo 'blend: all passed'
