#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `tamis store`: what is put is listed, verified and removed. Usage: test_store.sh TAMIS DATA_FOLDER
# Exit status: 0 if all passed, 1 if something failed.
. "$(dirname "$0")/checks.sh"
folder=$work/chunks
head -c 100 "$data/text.txt" >"$work/a"
head -c 230 "$data/text.txt" | tail -c 130 >"$work/b"

# put OPTION...: with JSON in $work/out.json.
put() {
    rm -f "$work/out.json"
    expect 0 '' store put --model "${file:-$data/tiny.gguf}" --store "$folder" --device reference \
        --json "$work/out.json" "$@"
}

# of COMMAND OPTION...: the same of another command.
of() {
    rm -f "$work/out.json"
    expect "${status:-0}" '' store "$1" --store "$folder" --json "$work/out.json" "${@:2}"
}

key_of_row() {
    "$python" - "$work/out.json" "$1" <<'END'
import json, sys
print(json.load(open(sys.argv[1]))['rows'][int(sys.argv[2])]['key'])
END
}

check_help() {
    succeeds '^usage: tamis store NAME' store --help
    for name in put list verify gc; do
        succeeds 'examples:' store "$name" --help
    done
    usage_error '^tamis store: frob: unknown command, must be one of put, list, verify, gc' store frob
    usage_error '^tamis store put: --model: is missing' store put
    usage_error '^tamis store put: --store or --redis: is missing' store put --model x
    usage_error '^tamis store put: --file: is missing' store put --model x --store y
    usage_error '^tamis store put: --chunk 0: must be from 1 to ' store put --chunk 0
    usage_error '^tamis store put: --dtype f8: must be one of f32, f16, bf16' store put --dtype f8
    for salt in 12 0123456789abcdeF0123456789abcdef 0123456789abcdef0123456789abcdef0; do
        usage_error "^tamis store put: --salt $salt: not 32 digits" \
            store put --model x --store y --file z --salt "$salt"
    done
    for bytes in 0 x 1X 1KK -1 1.5G 99999999999999999999 20000000T; do
        usage_error "^tamis store gc: --bytes $bytes: must be bytes, as 64M or 67108864$" \
            store gc --store x --bytes "$bytes"
    done
    usage_error '^tamis store list: --store or --redis: is missing' store list
    usage_error '^tamis store verify: --store or --redis: is missing' store verify
    usage_error '^tamis store gc: --store or --redis: is missing' store gc
    usage_error '^tamis store list: --redis: stands in the place' store list --store x --redis y
    usage_error '^tamis store list: --prefix: belongs to --redis' store list --store x --prefix y
    usage_error '^tamis store list: --database: belongs to' store list --store x --database 1
    usage_error '^tamis store gc: --others: needs --model' store gc --store x --others
    usage_error '^tamis store gc: --model: belongs to --others' store gc --store x --model y
    usage_error '^tamis store gc: --device: belongs to --others' store gc --store x --device y
    for name in list verify gc; do
        expect 1 "^tamis store $name: $folder: cannot be read: No such file" \
            store "$name" --store "$folder"
    done
    [ ! -e "$folder" ] || fail 'a folder was made'
}

check_put() {
    put --file "$work/a" --file "$work/b" --chunk 60
    json 'assert [(r["chunk"], r["tokens"], r["known"]) for r in rows] == [
        (1, 60, False), (2, 40, False), (1, 60, False), (2, 60, False), (3, 10, False)]
assert root["tool"] == "tamis store put" and root["sink"] == 0 and root["dtype"] == "f16"
assert len({r["key"] for r in rows}) == 5 and len(root["fingerprint"]) == 32'
    [ "$(find "$folder" -name '*.kv' | wc -l)" -eq 5 ] || fail 'five files'
    [ -e "$folder/$(key_of_row 3).kv" ] || fail 'a file has the name of its key'
    grep -qE "^$(key_of_row 1)  $work/a chunk 2: 40 tokens, .* KiB, stored in [0-9.]+ s$" \
        "$work/out" || fail 'the line of a chunk'
    put --file "$work/a" --chunk 60
    json 'assert [r["known"] for r in rows] == [True, True]'
    grep -q 'was there$' "$work/out" || fail 'the line of a chunk that was there'

    # Another model, type or salt shares nothing; standard input is a file like any other.
    put --dtype f32 --file - <"$work/a"
    json 'assert [(r["tokens"], r["known"]) for r in rows] == [(100, False)]'
    put --dtype f32 --file "$work/a"
    json 'assert [r["known"] for r in rows] == [True]'
    put --dtype f32 --file "$work/a" --salt 00000000000000000000000000000001
    json 'assert [r["known"] for r in rows] == [False]'
    file=$data/needle.gguf put --file "$work/a"
    json 'assert [r["known"] for r in rows] == [False]'

    # Attention reads the cache: its type decides what is computed.
    folder=$work/caches put --file "$work/a"
    folder=$work/caches put --file "$work/a" --cache-dtype q4
    json 'assert root["cache_dtype"] == "q4" and [r["known"] for r in rows] == [False]'
    folder=$work/caches of list
    json 'assert sorted(r["cache_dtype"] for r in rows) == ["f16", "q4"]'

    expect 1 "^tamis store put: $work/none: cannot be read" store put --model "$data/tiny.gguf" \
        --store "$folder" --device reference --file "$work/none"
    : >"$work/empty"
    expect 1 "^tamis store put: $work/empty: has no tokens" store put --model "$data/tiny.gguf" \
        --store "$folder" --device reference --file "$work/empty"
    printf 'ab\tc' >"$work/tab"
    expect 1 "^tamis store put: $work/tab: .*lacks byte 9, at place 2" store put \
        --model "$data/tiny.gguf" --store "$folder" --device reference --file "$work/tab"
    expect 1 "text.txt: a chunk of 98754 tokens; the model states a context of 256, and --chunk" \
        store put --model "$data/tiny.gguf" --store "$folder" --device reference \
        --file "$data/text.txt"
    expect 1 'a, chunk 1: a record of [0-9]+ bytes: the disk tier is limited to 4096' store put \
        --model "$data/tiny.gguf" --store "$work/small" --bytes 4K --device reference \
        --file "$work/a"
}

check_list() {
    of list
    json 'assert len(rows) == 8 and root["damaged"] == 0
assert sorted(r["tokens"] for r in rows) == [10, 40, 60, 60, 60, 100, 100, 100]
tiny = [r for r in rows if r["dtype"] == "f32"]
assert all((r["layers"], r["kv_heads"], r["head_dim"]) == (2, 1, 64) for r in tiny)
assert sorted(r["salt"][-1] for r in tiny) == ["0", "1"] and len({r["fingerprint"] for r in rows}) == 2
assert [r["last_used"] for r in rows] == sorted(r["last_used"] for r in rows)
import time
assert all(0 <= time.time() - r["last_used"] < 3600 for r in rows)
assert all(r["parent"] == 32 * "0" and r["sink"] == 0 for r in rows)'
    grep -qE '^8 records, [0-9.]+ [KM]iB$' "$work/out" || fail 'the last line of a list'
    grep -qE "^[0-9a-f]{32} +40 +0 +2 x 1 x 64 f16 +f16 +[0-9a-f]{32} .* $(date -u +%Y)-" "$work/out" ||
        fail 'the line of a record'
}

# Behind bos, where the file wants it: another record than the same tokens alone.
check_sink() {
    "$python" "$keys" "$data/tiny.gguf" "$work/bos.gguf" tokenizer.ggml.bos_token_id=5 \
        tokenizer.ggml.add_bos_token=true
    put --file "$work/a"
    local alone
    alone=$(key_of_row 0)
    file=$work/bos.gguf put --file "$work/a"
    json 'assert root["sink"] == 1 and rows[0]["tokens"] == 100 and not rows[0]["known"]'
    [ "$(key_of_row 0)" != "$alone" ] || fail 'bos is a sink'
    file=$work/bos.gguf put --file "$work/a" --bare
    json 'assert root["sink"] == 0 and rows[0]["known"]'
    [ "$(key_of_row 0)" = "$alone" ] || fail '--bare is without it'
}

check_verify() {
    of verify
    json 'assert rows == [] and root["records"] == 10 and root["damaged"] == 0'
    of list
    local plane header
    plane=$(key_of_row 2) header=$(key_of_row 4)
    printf 'x' | dd of="$folder/$plane.kv" bs=1 seek=5000 conv=notrunc 2>/dev/null
    printf 'x' | dd of="$folder/$header.kv" bs=1 seek=60 conv=notrunc 2>/dev/null
    status=1 of verify
    grep -q "^tamis store verify: $folder: 2 records were damaged$" "$work/err" || fail 'the reason'
    grep -qE "^$plane  was damaged, and has been removed: [0-9]+ tokens, " "$work/out" ||
        fail 'the line of a damaged record'
    json 'assert root["records"] == 8 and root["damaged"] == 2 and len(rows) == 1'
    [ "$(key_of_row 0)" = "$plane" ] || fail 'the key of a damaged record'
    if [ -e "$folder/$plane.kv" ] || [ -e "$folder/$header.kv" ]; then
        fail 'damaged records are gone'
    fi
    of verify
    json 'assert root["records"] == 8 and root["damaged"] == 0'
}

check_gc() {
    of list
    local newest
    newest=$(key_of_row -1)
    of gc
    json 'assert rows[0]["records"] == 8 and rows[0]["evicted"] == 0 and rows[0]["others"] == 0'
    printf 'x' | dd of="$folder/$(of list && key_of_row 1).kv" bs=1 seek=60 conv=notrunc 2>/dev/null
    : >"$folder/$newest.1-1.tmp"
    of gc
    json 'assert rows[0]["records"] == 7 and rows[0]["damaged"] == 1 and rows[0]["leftovers"] == 1'
    of gc --others --model "$work/bos.gguf" --device reference
    json 'assert rows[0]["others"] == 1 and rows[0]["records"] == 6'
    of list
    json 'assert len({r["fingerprint"] for r in rows}) == 2 and {r["sink"] for r in rows} == {0, 1}'
    of gc --others --model "$data/tiny.gguf" --device reference
    json 'assert rows[0]["others"] == 1 and rows[0]["records"] == 5'
    of gc --bytes 140K
    json 'assert 0 < rows[0]["records"] < 5 and rows[0]["bytes"] <= 140 << 10
assert rows[0]["evicted"] == 5 - rows[0]["records"]'
    [ -e "$folder/$newest.kv" ] || fail 'what was used last stays'
    grep -qE '^removed: 0 damaged, .* 0 of other models, [0-9]+ for the limit$' "$work/out" ||
        fail 'what was removed'
}

# The same on a server.
check_redis() {
    local place
    start_server || { echo "redis: skipped: $why"; return; }
    place=(--redis "$socket" --prefix p: --database 2 --json "$work/out.json")
    expect 0 '' store put --model "$data/tiny.gguf" --device reference --file "$work/a" --chunk 60 \
        "${place[@]}"
    json 'assert [(r["tokens"], r["known"]) for r in rows] == [(60, False), (40, False)]'
    expect 0 '' store put --model "$data/tiny.gguf" --device reference --file "$work/a" --chunk 60 \
        "${place[@]}"
    json 'assert [r["known"] for r in rows] == [True, True]'
    succeeds '^0 records' store list --redis "$socket" --database 2
    expect 0 '' store list "${place[@]}"
    json 'assert sorted(r["tokens"] for r in rows) == [40, 60] and root["store"].endswith("/socket")'
    expect 0 '' store verify "${place[@]}"
    json 'assert root["records"] == 2 and root["damaged"] == 0'
    expect 0 '' store gc --others --model "$work/bos.gguf" --device reference "${place[@]}"
    json 'assert rows[0]["others"] == 0 and rows[0]["records"] == 2'
    expect 0 '' store gc --bytes 50K "${place[@]}"
    json 'assert rows[0]["evicted"] == 1 and rows[0]["records"] == 1'
    stop_server
    expect 1 "^tamis store list: redis $socket: connecting: " store list "${place[@]}"
    expect 1 "^tamis store verify: redis $socket: connecting: " store verify "${place[@]}"
}

check_help
check_put
check_list
check_sink
check_verify
check_gc
check_redis
[ "$failures" -eq 0 ] || exit 1
echo 'store: all passed'
