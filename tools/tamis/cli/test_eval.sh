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
on=reference # the device
evaluate() {
    rm -f "$work/out.json"
    expect 0 '' eval "$1" --model "$file" --device "$on" --dtype f32 --json "$work/out.json" \
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

# Chunks and questions in a vocabulary with merges.
check_blend_words() {
    "$tamis" eval blend --help >"$work/out" 2>"$work/err" || return 0
    evaluate blend --text "$data/text.txt" --chunks 3 --keys 2 --chunk-tokens 128 --questions 2 \
        --share 20 --ask one,two,chain --select prefix,hkvd --measured 1
    json 'assert [r["questions"] for r in rows] == [2] * 9, rows'
    json 'assert rows[0]["agreement"] == 1 and rows[1]["kl_mean"] < 1e-4, rows[:2]'
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
    usage_error '^tamis eval ruler: --task vta: must be one of niah-single, .*, fwe; did you mean vt\?$' \
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
    on=$fast evaluate ruler --length 700 --texts 1 --budget 128 --select quest \
        --task niah-single,fwe
    json 'assert [r["trials"] for r in rows] == [1] * 4, rows'
}

# Prompts of stored chunks. What computes all is full itself; a chunk that stands first is exact; what
# computes more is nearer to full.
check_blend() {
    local wrong=(eval blend --model "$data/needle.gguf") small=(--text "$data/text.txt" --chunks 3
        --chunk-tokens 128 --questions 3 --ask one,two,chain --measured 1)
    "$tamis" eval blend --help >"$work/out" 2>"$work/err" || return 0 # built without the store
    succeeds 'examples:' eval blend --help
    usage_error '^tamis eval blend: --model: is missing' eval blend
    usage_error '^tamis eval blend: --chunks 1: must be from 2 to ' "${wrong[@]}" --chunks 1
    usage_error '^tamis eval blend: --share 100: must be from [0-9]+ to 99$' "${wrong[@]}" --share 100
    usage_error '^tamis eval blend: --select all: must be one of prefix, .*, hkvd$' \
        "${wrong[@]}" --select all
    usage_error '^tamis eval blend: --keys 1: --ask two and chain need two keys$' \
        "${wrong[@]}" --keys 1
    expect 1 '^tamis eval blend: --chunk-tokens 16: the keys of a chunk take [0-9]+$' \
        "${wrong[@]}" --chunk-tokens 16 --device reference
    expect 1 '^tamis eval blend: a prompt takes up to [0-9]+ tokens .* states a context of' \
        "${wrong[@]}" --chunk-tokens 65536 --device reference
    expect 1 'check_layer is 9; there are 4 layers$' "${wrong[@]}" --check-layer 9 \
        --chunk-tokens 64 --device reference
    file=$data/needle.gguf
    evaluate blend "${small[@]}" --share 20,60 --select prefix,reuse,first,random,hkvd \
        --stored f32
    json 'assert len(rows) == 3 * 9 and all(r["questions"] == 3 for r in rows), rows'
    json 'assert all(r["agreement"] == 1 and r["kl_mean"] == 0 == r["measured"]
for r in rows if r["arm"] == "full"), rows'
    json 'assert all(r["rows_computed"] == 1 for r in rows if r["arm"] == "full"), rows'
    json 'assert all(r["kl_mean"] < 1e-8 and max(r["v_deviation"]) < 1e-5
for r in rows if r["arm"] == "prefix"), rows'
    json 'assert all(r["v_deviation"][0] < 1e-6 and r["k_deviation"][0] < 1e-6
for r in rows[1:9]), rows'
    json 'last = {r["arm"] + str(r.get("share", "")): r for r in rows[:9]}
v = {name: r["v_deviation"][-1] for name, r in last.items() if name != "full"}
assert 0 < v["hkvd0.6"] < v["hkvd0.2"] < v["random0.2"] < v["reuse"] * 1.01, v
assert v["first0.6"] < v["first0.2"] < v["reuse"], v
assert last["hkvd0.6"]["v_deviation"][1] < 1e-6 < last["reuse"]["v_deviation"][1], last'
    json 'layers = root["layers"]
assert [x["layer"] for x in layers] == list(range(len(rows[1]["v_deviation"]))), layers
assert layers[-1]["rank_correlation"] is None, layers
assert all(-1 <= x["rank_correlation"] <= 1 for x in layers[1:-1]), layers
assert all(0.2 <= x["held"][0] <= x["held"][1] <= 1 for x in layers[1:]), layers'
    # By the question: each one is a prompt of its own, of the same tokens.
    on=$fast evaluate blend --text "$data/text.txt" --chunks 3 --chunk-tokens 128 --questions 2 \
        --ask one --measured 1 --share 20 --select reuse,question
    json 'of = {r["arm"]: r for r in rows}
assert of["question"]["agreement"] == 1 and of["question"]["questions"] == 2, rows
assert of["question"]["v_deviation"][-1] < of["reuse"]["v_deviation"][-1], rows
assert of["reuse"]["rows_computed"] < of["question"]["rows_computed"] < 1, rows'
    on=$fast evaluate blend "${small[@]}" --share 20
    grep -v ttft_seconds "$work/out.json" >"$work/first"
    on=$fast evaluate blend "${small[@]}" --share 20
    grep -v ttft_seconds "$work/out.json" | cmp -s - "$work/first" ||
        fail 'blend: a second run says something else'
    file=$work/model.gguf
}

file=$work/model.gguf
for vocabulary in smollm spm; do
    "$python" "$maker" "$data/tokens/$vocabulary.gguf" "$file" || exit 1
    "$tamis" tokenize --model "$file" --text a >"$work/out" 2>"$work/err" || {
        grep -q PCRE2 "$work/err" && continue
        fail "$vocabulary: is not read"
    }
    check_vocabulary
    check_blend_words
done
check_blend
check_bos
check_ruler
check_scale
check_window
[ "$failures" -eq 0 ] || exit 1
echo 'eval: all passed'
