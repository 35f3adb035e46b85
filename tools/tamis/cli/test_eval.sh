#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `tamis eval` with models of other vocabularies than bytes, whose weights are random, and `eval ruler`:
# usage: test_eval.sh TAMIS DATA_FOLDER RANDOM_MODEL.py PYTHON
# Exit status: 0 if all passed, 1 if something failed, 77 if this build or machine lacks a part.
. "$(dirname "$0")/checks.sh"
maker=$3
python=$4
"$python" -c 'import numpy' 2>/dev/null || { echo 'skipped: takes NumPy'; exit 77; }

# evaluate NAME OPTION...: on the model under test, small, on the reference.
evaluate() {
    rm -f "$work/out.json"
    expect 0 '' eval "$1" --model "$file" --device reference --dtype f32 --json "$work/out.json" \
        "${@:2}"
}

check_vocabulary() {
    local text=(--text "$data/text.txt")
    evaluate passkey "${text[@]}" --length 300 --texts 2 --keys 2 --budget 128 --evict snapkv
    json 'assert [r["trials"] for r in rows] == [4] * 4, rows'
    json 'assert all(r["length"] == 300 and len(r["depth_accuracy"]) == 2 for r in rows), rows'
    evaluate eviction "${text[@]}" --length 300 --questions 2 --seeds 1 --budget 128 --evict snapkv
    json 'assert [r["evict"] for r in rows] == ["full", "quest", "snapkv"], rows'
    json 'assert rows[0]["output_error"] < 1e-6 < rows[2]["output_error"], rows'
    evaluate recall "${text[@]}" --length 300 --tokens 2 --texts 1 --select quest --budget 512
    json 'assert all(r["recall"] == 1 for r in rows if "recall" in r), rows'
    evaluate perplexity "${text[@]}" --length 200 --tokens 8 --texts 2 --select quest --budget 512
    json 'assert rows[0]["nll"] > 0 and rows[0]["nll"] == rows[1]["nll"], rows'
    evaluate ruler --task niah-multikey,fwe --length 900 --texts 1 --budget 128 --select quest \
        --evict streaming --question later,known
    json 'assert [r["trials"] for r in rows] == [4] * 4 + [1] * 4, rows'
    json 'assert [r.get("question") for r in rows[:4]] == [None, None, "later", "known"], rows'
}

# RoPE scaling may multiply logits, here by a millionth: the true attention is uniform, and so is that
# of the arms.
check_scale() {
    "$python" "$keys" "$data/needle.gguf" "$work/flat.gguf" llama.rope.scaling.attn_factor=0.001
    file=$work/flat.gguf
    evaluate recall --text "$data/text.txt" --length 300 --tokens 2 --texts 1 --select oracle \
        --budget 128
    json 'assert rows[0]["select"] == "full" and rows[0]["error"] < 1e-5, rows[0]'
    json 'assert all(0.9 <= r["sparsity"] < 0.91 for r in rows if "sparsity" in r), rows'
}

# Recall compares full with itself, also where a sliding window just holds the text; it refuses a longer
# text. A runner has the window, so what evictions are compared with has it too.
check_window() {
    local select=(--tokens 4 --texts 1 --select full)
    local refused='^tamis eval recall: --length, --tokens: a text takes up to 13 tokens, more than '
    refused+='the model.s sliding window of 12; together they must be at most 12$'
    "$python" "$keys" "$data/needle.gguf" "$work/window.gguf" llama.attention.sliding_window=12
    for file in "$work/window.gguf" "$data/models/mistral.gguf"; do
        expect 1 "$refused" eval recall --model "$file" --text "$data/text.txt" --device reference \
            --length 4,9 "${select[@]}"
        [ "$(wc -l <"$work/err")" -eq 1 ] || fail 'recall: a text beyond the window is found late'
    done
    file=$work/window.gguf
    evaluate recall --text "$data/text.txt" --length 8 "${select[@]}"
    json 'assert rows[0]["select"] == "full" and rows[0]["error"] < 1e-5, rows[0]'
    evaluate eviction --text "$data/text.txt" --length 200 --questions 1 --seeds 1 --evict none \
        --budget 16
    json 'assert [r["evict"] for r in rows] == ["full"] and rows[0]["output_error"] < 1e-6, rows'
}

# Where the file wants bos, a passage begins with it.
check_bos() {
    local with
    evaluate perplexity --text "$data/text.txt" --length 20 --tokens 8 --texts 1 --select full
    with=$(sed -n 's/.*"nll":[[:space:]]*\([0-9.]*\).*/\1/p' "$work/out.json")
    "$python" "$maker" "$data/tokens/spm.gguf" "$file" --no-bos
    evaluate perplexity --text "$data/text.txt" --length 20 --tokens 8 --texts 1 --select full
    json "assert abs(rows[0]['nll'] - $with) > 1e-4, rows"
}

check_ruler() {
    local wrong=(eval ruler --model "$data/needle.gguf")
    succeeds 'examples:' eval ruler --help
    succeeds 'The tasks of RULER' eval ruler --help
    usage_error '^tamis eval ruler: --model: is missing' eval ruler
    usage_error '^tamis eval ruler: --task vta: must be one of niah-single, .*, fwe$' \
        "${wrong[@]}" --task vta
    usage_error '^tamis eval ruler: --question: is given where nothing is evicted' \
        "${wrong[@]}" --question known
    usage_error '^tamis eval ruler: --question soon: must be one of later, known$' \
        "${wrong[@]}" --evict snapkv --question soon
    expect 1 '^tamis eval ruler: --length 150: the shortest text of vt has [0-9]+ tokens$' \
        "${wrong[@]}" --task niah-single,vt --length 700,150 --device reference
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail 'ruler: a text that cannot be made is found late'
    evaluate ruler --length 1200 --texts 1 --select quest --score minmax,mean --budget 128 \
        --task vt,niah-single,vt
    json 'assert [r["task"] for r in rows[::3]] == ["vt", "niah-single"], rows'
    json 'assert [r["score"] for r in rows[:3]] == ["-", "minmax", "mean"], rows'
    json 'assert all(0 <= r["ci95"][0] <= r["accuracy"] <= r["ci95"][1] <= 1 for r in rows), rows'
    json 'assert all(r["kv_bytes_read_per_token"] < 0.25 * r["kv_bytes_full_per_token"]
for r in rows if r["select"] == "quest"), rows'
    grep -vE '"tokens_per_s"' "$work/out.json" >"$work/first"
    evaluate ruler --length 1200 --texts 1 --select quest --score minmax,mean --budget 128 \
        --task vt,niah-single
    grep -vE '"tokens_per_s"' "$work/out.json" | cmp -s - "$work/first" ||
        fail 'ruler: a second run says something else'
    # The shipped model of bytes, whose answers nobody expects to be right.
    file=$data/needle.gguf
    evaluate ruler --length 700 --texts 1 --budget 128 --select quest --task niah-single,fwe \
        --device "$fast"
    json 'assert [r["trials"] for r in rows] == [1] * 4, rows'
}

file=$work/model.gguf
for vocabulary in smollm spm; do
    "$python" "$maker" "$data/tokens/$vocabulary.gguf" "$file" || exit 1
    "$tamis" tokenize --model "$file" --text a >"$work/out" 2>"$work/err" || {
        grep -q PCRE2 "$work/err" && continue
        fail "$vocabulary: is not read"
    }
    check_vocabulary
done
check_bos
check_ruler
check_scale
check_window
[ "$failures" -eq 0 ] || exit 1
echo 'eval: all passed'
