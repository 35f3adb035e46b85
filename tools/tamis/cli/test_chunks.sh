#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `tamis run` with stored chunks: what is found, loaded, computed and stored, and what is refused.
# Usage: test_chunks.sh TAMIS DATA_FOLDER
# Exit status: 0 if all passed, 1 if something failed.
. "$(dirname "$0")/checks.sh"
store=$work/store

for part in a:0:200 b:200:220 c:420:180; do
    IFS=: read -r name from bytes <<<"$part"
    tail -c "+$((from + 1))" "$data/text.txt" | head -c "$bytes" >"$work/$name"
done
cat "$work"/[abc] >"$work/all"
chunks=(--chunks "$work/a" --chunks "$work/b" --chunks "$work/c" --prompt ' And the name' --unchecked)

# asks ON [ARGUMENT...]: a run with the three chunks; the answer goes to $answer.
asks() {
    local device=$1
    shift
    expect 0 '^prefill ' run --model "$data/needle.gguf" --device "$device" --tokens 12 \
        "${chunks[@]}" --store "$store" "$@"
    answer=$(cat "$work/out")
}

# said PATTERN: a line of stderr.
said() {
    grep -qE -e "$1" "$work/err" || fail "${FUNCNAME[1]}: stderr lacks: $1"
}

# An answer of a run without chunks.
plain() {
    expect 0 '' run --model "$data/needle.gguf" --device "$1" --tokens 12 --file "$work/all" \
        --prompt ' And the name'
    cat "$work/out"
}

# Chunks are computed, stored, and found by the next run.
check_found() {
    local device=$1 exact
    rm -rf "$store"
    asks "$device"
    said '^blend hkvd 15 %: 3 chunks, 0 found \(0 exact\), 3 missed; tokens: 0 exact, 0 hits of which 0 computed, 613 fresh; loaded 0 B$'
    said '^stored 3 of 3 chunks in [0-9.]+ s$'
    exact=$(plain "$device")
    [ "$answer" = "$exact" ] || fail "$device: nothing was found, and the answer is '$answer'"
    [ "$(find "$store" -name '*.kv' | wc -l)" -eq 3 ] || fail "$device: there are not 3 records"
    # 60 of 400 in the end, of which a model of 4 layers reaches 1.1 times as many; 13 of the prompt.
    asks "$device" --times on
    said '^blend hkvd 15 %: 3 chunks, 3 found \(1 exact\), 0 missed; tokens: 200 exact, 400 hits of which 66 computed, 13 fresh; loaded 900.0 KiB; first token after [0-9.]+ s \(reading [0-9.]+ s, waiting for it [0-9.]+ s\)$'
    ! grep -q '^stored' "$work/err" || fail "$device: what was there is stored again"
    asks "$device" --share 50 --store-memory 64M
    said '^blend hkvd 50 %: .* 400 hits of which 221 computed,'
    asks "$device" --blend question --share 20
    said '^blend question 20 %: 3 chunks, 3 found \(1 exact\), .* 400 hits of which 89 computed, 13 fresh; loaded 2.0 MiB'
    # The on-line gate: what is left is estimated, and too much of it is not accepted.
    asks "$device" --bound 9
    said '400 hits of which 66 computed, 13 fresh; left 0\.[0-9]+, within 9; loaded'
    asks "$device" --bound 0.0001
    said ' 413 fresh; left 0\.[0-9]+, above 0\.0001; loaded'
    [ "$answer" = "$exact" ] || fail "$device: gated, and the answer is '$answer', not '$exact'"
    # The controller, by what it measures.
    asks "$device" --share auto
    said '^share [0-9.]+ %: reading takes [0-9.]+ us for a token in a layer, computing [0-9.]+ us$'
    said '^blend hkvd [0-9.]+ %: 3 chunks, '
    asks "$device" --blend all
    said '^blend all: 3 chunks, 0 found .* 613 fresh; loaded 0 B$'
    [ "$answer" = "$exact" ] || fail "$device --blend all: the answer is '$answer', not '$exact'"
    asks "$device" --blend none
    said '^blend none: .* 200 exact, 400 hits of which 0 computed, 13 fresh; loaded 1.2 MiB$'
    asks "$device" --blend first --first 5
    said '^blend first: .* 400 hits of which 10 computed, 13 fresh'
    asks "$device" --blend random --share 10
    said '^blend random 10 %: .* 400 hits of which 45 computed'
    asks "$device" --store-dtype f32
    said '3 chunks, 0 found .* 3 missed;' # other records
}

# What runs on under the policies of a run, and what is refused by name.
check_policies() {
    local kind
    asks reference --select quest --budget 128 --question ' of'
    for kind in streaming h2o tova snapkv pyramidkv adakv knorm; do
        asks reference --evict "$kind" --evict-budget 128
        said "^evict $kind: budget 128, tokens kept per lane"
        said '3 chunks, 3 found'
    done
    expect 1 '^tamis run: a plan under reindexed streaming cannot blend' "${model[@]}" \
        "${chunks[@]}" --store "$store" --evict streaming+reindex
}

# A damaged plane is found, its chunk computed and stored anew; the records of another model are
# counted; a chunk that stands twice is stored once.
check_trouble() {
    local record exact
    exact=$(plain reference)
    rm -rf "$store"
    asks reference
    record=$(find "$store" -name '*.kv' | sort | head -1)
    printf 'x' | dd of="$record" bs=1 seek=$(($(stat -c %s "$record") - 5000)) conv=notrunc 2>/dev/null
    asks reference --blend none
    said ', 1 damaged and removed'
    said '^stored 1 of 3 chunks'
    asks reference --blend all
    [ "$answer" = "$exact" ] || fail "after a damage the answer is '$answer'"
    expect 0 '1 missed, the store has 3 records of other models;' run --model "$data/tiny.gguf" \
        --device reference --tokens 2 --store "$store" --no-record --chunks "$work/a" --prompt x --unchecked
    [ "$(find "$store" -name '*.kv' | wc -l)" -eq 3 ] || fail '--no-record: something was stored'
    rm -rf "$store"
    expect 0 '^stored 1 of 2 chunks' "${model[@]}" --tokens 1 --store "$store" \
        --chunks "$work/a" --chunks "$work/a" --prompt x --unchecked
}

# A file that is cut; no prompt behind the chunks.
check_cut() {
    rm -rf "$store"
    expect 0 '^blend hkvd 15 %: 6 chunks, 0 found' "${model[@]}" --tokens 2 --store "$store" \
        --file "$work/all" --chunk-tokens 110 --unchecked
    expect 0 '6 chunks, 6 found .* 110 exact, 489 hits of which 81 computed, 1 fresh' \
        "${model[@]}" --tokens 2 --store "$store" --file "$work/all" --chunk-tokens 110 --unchecked
    expect 0 '^blend hkvd 15 %: 8 chunks, 7 found' "${model[@]}" --tokens 2 --store "$store" \
        --chunks "$work/a" --chunks "$work/all" --chunk-tokens 110 --context 1024 --unchecked
}

# Nothing is blended without an entry that passed; the refusal says which, and nothing is read.
check_gate() {
    local trials=$work/trials fingerprint asked=("${model[@]}" --tokens 2 --store "$store" --chunks
        "$work/a" --chunks "$work/b" --prompt x --trials "$work/trials")
    rm -rf "$store"
    expect 1 "^tamis run: $trials: there is no entry for model [0-9a-f]{32} with selector hkvd, .*; tamis blend trial measures it \\(--model $data/needle.gguf\\); --unchecked blends all the same$" \
        "${asked[@]}"
    fingerprint=$(grep -oE '[0-9a-f]{32}' "$work/err" | head -1)
    [ -z "$(ls -A "$store" 2>/dev/null)" ] || fail 'what was refused has stored chunks'
    expect 0 '2 missed' "${asked[@]}" --unchecked
    expect 0 '^blend all' "${asked[@]}" --blend all
    expect 0 "keeps the entry of model $fingerprint$" blend trial --model "$data/needle.gguf" \
        --text "$data/text.txt" --device reference --chunks 2 --chunk-tokens 64 --prompts 1 \
        --share 20,40 --trials "$trials"
    expect 0 '^blend hkvd 20 %: 2 chunks, 2 found' "${asked[@]}" --share 20
    expect 0 '^blend hkvd ([2-9][0-9.]*|100) %' "${asked[@]}" --share auto
    expect 1 'share 0.15 is below 0.2, the smallest that passed, for model' "${asked[@]}"
    expect 1 'there is no entry .* f32 records' "${asked[@]}" --share 20 --store-dtype f32
    expect 1 'selector first takes no share.*--unchecked' "${asked[@]}" --blend first
    echo x >>"$trials"
    expect 1 'its checksum is not that of its content' "${asked[@]}" --share 20
    expect 0 '^blend hkvd 20 %' "${asked[@]}" --share 20 --unchecked
}

# Pages that a run cannot use are told: of a cache of another type, and of an older version, which gc
# removes. Uses what check_prefix has.
check_other_pages() {
    expect 0 '^prefix: 0 pages of 64 .*, the store has 9 records of caches that are not q8; ' \
        "${asked[@]}" --file "$work/a" --cache-dtype q8 --no-record
    cp -r "$store" "$work/older"
    for page in "$work/older"/*.kv; do
        printf '\2' | dd of="$page" bs=1 seek=8 conv=notrunc status=none
    done
    expect 0 '^prefix: 0 pages .* records of another version are there .tamis store gc removes' \
        run --model "$data/needle.gguf" --device reference --tokens 12 \
        --prefix-store "$work/older" --prefix-page 64 --file "$work/a" --no-record
    expect 0 '' store gc --store "$work/older"
    [ "$(find "$work/older" -name '*.kv' | wc -l)" -eq 0 ] || fail 'gc leaves an older version'
}

# Pages of a prefix: found by the next run, by a longer text too, and the answer stays the same.
check_prefix() {
    local device=$1 exact
    local -a asked=(run --model "$data/needle.gguf" --device "$device" --tokens 12
        --prefix-store "$store" --prefix-page 64)
    exact=$(plain "$device")
    rm -rf "$store"
    expect 0 '^prefix: 0 pages of 64 tokens found; of 613 tokens 0 loaded, 613 computed; loaded 0 B$' \
        "${asked[@]}" --file "$work/all" --prompt ' And the name' --no-record
    [ "$(cat "$work/out")" = "$exact" ] || fail "$device: without pages the answer is another"
    expect 0 '^stored 3 pages of 64 tokens in' "${asked[@]}" --file "$work/a" --prompt ' And'
    expect 0 '^prefix: 3 pages of 64 tokens found; of 613 tokens 192 loaded, 421 computed; loaded 768.0 KiB$' \
        "${asked[@]}" --file "$work/all" --prompt ' And the name'
    [ "$(cat "$work/out")" = "$exact" ] || fail "$device: with 3 pages the answer is another"
    said '^stored 6 pages of 64 tokens in'
    expect 0 '^prefix: 9 pages .* 576 loaded, 37 computed; .*; first token after [0-9.]+ s' \
        "${asked[@]}" --file "$work/all" --prompt ' And the name' --times on
    [ "$(cat "$work/out")" = "$exact" ] || fail "$device: with 9 pages the answer is another"
    ! grep -q '^stored' "$work/err" || fail "$device: what was there is stored again"
    expect 0 '^prefix: 0 pages' "${asked[@]}" --file "$work/b" --prompt x --no-record
    expect 0 '^prefix: 3 pages of 64' "${asked[@]}" --file "$work/a" --select quest --budget 128 \
        --question ' of' --no-record --store-memory 8M
    expect 0 '^prefix: 0 pages of 64' "${asked[@]}" --file "$work/a" --store-dtype f16 --no-record
    [ "$device" != reference ] || check_other_pages
    usage_error '^tamis run: --prefix-store: is given with --chunks' "${asked[@]}" --prompt x --chunks a
    usage_error '^tamis run: --share: belongs to --chunks' "${asked[@]}" --prompt x --share 5
    usage_error '^tamis run: --evict h2o: is given with --prefix-store' "${asked[@]}" --prompt x --evict h2o
    usage_error '^tamis run: --chat: is given with --prefix-store' "${asked[@]}" --chat
    usage_error '^tamis run: --prefix-page: belongs to --prefix-store' "${model[@]}" --prompt x \
        --prefix-page 5
    expect 1 '^tamis run: the prompt has 613 tokens, the context is 64$' "${asked[@]}" \
        --file "$work/all" --prompt ' And the name' --context 64
}

check_refused() {
    local -a asked=("${model[@]}" --prompt x)
    local flag
    for flag in '--store s' '--store-memory 1M' '--store-dtype f16' '--blend none' '--share 5' \
        '--first 5' '--trials p' --unchecked --no-record; do
        # shellcheck disable=SC2086 # flag and value
        usage_error "^tamis run: ${flag% *}: belongs to --chunks or --chunk-tokens" "${asked[@]}" $flag
    done
    usage_error '^tamis run: --store: is missing' "${asked[@]}" --chunks a
    usage_error '^tamis run: --chunk-tokens: is given without a text' "${asked[@]}" --store s \
        --chunk-tokens 5
    usage_error '^tamis run: --chunks, --file: give one' "${asked[@]}" --chunks a --file b --store s
    usage_error '^tamis run: --chat: is given with --chunks' "${model[@]}" --chat --chunks a --store s
    asked+=(--chunks "$work/a" --store "$work/s")
    usage_error '^tamis run: --share 0: must be above 0' "${asked[@]}" --share 0
    usage_error '^tamis run: --share 101: must be above 0' "${asked[@]}" --share 101
    usage_error '^tamis run: --share x: not a decimal' "${asked[@]}" --share x
    usage_error '^tamis run: --share: is given, but none has none' "${asked[@]}" --share 5 --blend none
    usage_error '^tamis run: --bound 0: must be above 0' "${asked[@]}" --bound 0
    usage_error '^tamis run: --bound x: not a decimal' "${asked[@]}" --bound x
    usage_error '^tamis run: --bound: is given, but first has no' "${asked[@]}" --bound 1 --blend first
    usage_error '^tamis run: --first: is given, but --blend is hkvd' "${asked[@]}" --first 5
    usage_error '^tamis run: --store-memory 5X: must be bytes' "${asked[@]}" --store-memory 5X
    expect 1 '^tamis run: chunks, prompt and question have 208 tokens, the context is 205$' \
        "${asked[@]}" --context 205 --question ' why is'
    expect 1 '^tamis run: chunks and prompt have 201 tokens, the context is 64$' "${asked[@]}" \
        --context 64
    : >"$work/empty"
    expect 1 "^tamis run: --chunks $work/empty: has no tokens" "${asked[@]}" --chunks "$work/empty"
    expect 1 "^tamis run: $work/missing: cannot be read" "${asked[@]}" --chunks "$work/missing"
    expect 1 '^tamis run: .*no-such/folder' "${model[@]}" --prompt x --chunks "$work/a" \
        --store "$work/no-such/folder"
}

if "$tamis" "${model[@]}" --prompt x --chunks "$work/a" --store "$store" --no-record --tokens 1 \
    2>&1 | grep -q 'this build has no store of chunks (TAMIS_STORE)$'; then
    echo 'without the store: refused'
    exit 0
fi
for device in "${devices[@]}"; do
    check_found "$device"
    check_prefix "$device"
done
check_policies
check_trouble
check_cut
check_gate
check_refused
[ "$failures" -eq 0 ] || exit 1
echo 'chunks: all passed'
