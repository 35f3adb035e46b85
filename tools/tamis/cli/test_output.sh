#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What --json writes, and where to: usage: test_output.sh TAMIS DATA_FOLDER
# Exit status: 0 if all passed, 1 if something failed.
. "$(dirname "$0")/checks.sh"

# is_json WHAT FILE TOOL: the file is one object with the members that every file has, in their order.
is_json() {
    "$python" - "$2" "$3" <<'END' || fail "$1: is not what --json writes"
import json, sys
root = json.load(open(sys.argv[1]))
names = list(root)
assert names[:4] == ['tool', 'version', 'commit', 'device'] and names[-1] == 'rows', names
assert root['tool'] == sys.argv[2], root['tool']
assert root['rows'] and all(isinstance(row, dict) for row in root['rows'])
assert root['commit'] and ('header' not in root), root['commit']
END
}

# json_of TOOL ARGUMENT...: what the command writes to a file, in $work/out.json.
json_of() {
    local tool=$1
    shift
    rm -f "$work/out.json"
    expect 0 '' "$@" --json "$work/out.json"
    is_json "$tool" "$work/out.json" "$tool"
}

# The tokens of a text, and the answers of a run.
check_run() {
    local run=(run -m "$data/needle.gguf" --device reference -p 'The red pass key is 71045. abc. The red pass key is ')
    json_of 'tamis tokenize' tokenize -m "$data/needle.gguf" --text $'a\xc3\xa4'
    json "assert [row['token'] for row in rows] == [97, 195, 164], rows
assert [row['bytes'] for row in rows] == [[97], [195], [164]], rows
assert [row['text'] for row in rows] == ['a', '\ufffd', '\ufffd'], rows"
    json_of 'tamis run' "${run[@]}" -n 5
    json "assert rows == [{'answer': '71045', 'tokens': 5, 'ended_by': 'tokens'}], rows
assert (root['select'], root['evict'], root['decode_tokens']) == ('full', 'none', 4), root
assert root['kv_bytes_read'] == root['kv_bytes_full'] > 0, root"
    json_of 'tamis run' "${run[@]}" --stop 111 --evict streaming --evict-budget 32
    json "assert rows[0]['answer'] == '7' and rows[0]['ended_by'] == 'stop', rows
assert root['evict'] == 'streaming' and root['bytes_returned'] > 0, root"
    "$tamis" "${run[@]}" -n 5 --json - >"$work/out.json" 2>"$work/err"
    is_json 'to standard output' "$work/out.json" 'tamis run'
    grep -qx 71045 "$work/err" || fail 'run --json -: no answer on stderr'
    rm -f "$work/out.json" "$work/kept"
    printf 'one\ntwo\n' >"$work/lines"
    "$python" "$keys" "$data/needle.gguf" "$work/chat.gguf" tokenizer.ggml.bos_token_id=1 \
        tokenizer.ggml.eos_token_id=2 "tokenizer.chat_template=$inst_template"
    expect 0 '' run -m "$work/chat.gguf" --device reference --chat -n 3 --ignore-eos \
        --session "$work/kept" --json "$work/out.json" <"$work/lines"
    is_json 'a conversation' "$work/out.json" 'tamis run'
    json "assert len(rows) == 2 and all(row['tokens'] == 3 for row in rows), rows"
    [ -s "$work/kept" ] || fail 'run --json --session: no session'
    rm -f "$work/out.json"
    expect 1 'cannot be written: No such file' "${run[@]}" --json "$work/nothing/out.json"
    [ ! -s "$work/out" ] || fail 'run: has answered before it knew where to write'
    expect 1 '' run -m "$work/nothing" -p x --json "$work/out.json"
    [ -z "$(ls "$work" | grep out.json)" ] || fail "run: left $(ls "$work" | grep out.json)"
}

check_shape() {
    local word commit
    json_of 'tamis devices' devices
    grep -qE '"id":[[:space:]]*"reference:0"' "$work/out.json" || fail 'devices: no reference:0'
    grep -qE '"device":[[:space:]]*null' "$work/out.json" || fail 'devices: is on one device'
    grep -qE '"reason":[[:space:]]*"(no CUDA driver|built without CUDA)' "$work/out.json" ||
        fail 'devices: no reason'
    json_of 'tamis devices' devices --matrix --device reference
    json_of 'tamis bench decode' bench decode --context 200 --layers 1 --repeat 1 --probe 1 \
        --budget 60 --shape llama3-8b --evict snapkv --device reference
    json_of 'tamis bench layers' bench layers --context 100 --window 32 --budget 96 --repeat 1 \
        --probe 1 --device reference
    json_of 'tamis bench model' bench model --model "$data/needle.gguf" --context 128 --repeat 1 \
        --probe 1 --select window --budget 64 --recent 16 --device reference
    json_of 'tamis bench throughput' bench throughput --model "$data/needle.gguf" --context 64 \
        --tokens 2 --repeat 1 --probe 1 --sequences 1 --budget 48 --evict streaming \
        --device reference
    json_of 'tamis eval passkey' eval passkey --model "$data/needle.gguf" --length 100 --texts 1 \
        --keys 1 --select full --device reference
    json_of 'tamis eval recall' eval recall --model "$data/needle.gguf" --length 100 --tokens 1 \
        --texts 1 --select window --budget 32 --device reference
    json_of 'tamis eval perplexity' eval perplexity --model "$data/needle.gguf" --length 100 \
        --tokens 1 --texts 1 --select window --budget 32 --device reference
    json_of 'tamis eval eviction' eval eviction --model "$data/needle.gguf" --length 100 \
        --questions 1 --seeds 1 --budget 96 --evict streaming --device reference
    json_of 'tamis bench attention' "${small[@]}" --select quest,window
    for word in device_name driver threads read_gb_per_s copy_gb_per_s shape context \
        dtype bounds_dtype select budget batch layers pages total_us graph_us graph_replays \
        stage_us fused_select gb_per_s share_of_read limit_order limit_gb_per_s \
        share_of_limit share_of_copy speedup_over_full counters; do
        grep -q "\"$word\":" "$work/out.json" || fail "out.json lacks $word"
    done
    grep -qE '"device":[[:space:]]*"reference:0"' "$work/out.json" || fail 'bench: another device'
    [ "$(grep -c '"total_us"' "$work/out.json")" -eq 3 ] || fail 'out.json: not three rows'
    [ "$(grep -cE '"share_of_limit":[[:space:]]*[0-9]' "$work/out.json")" -eq 3 ] ||
        fail 'out.json: a row without its share of the page-read limit'
    grep -qE '"limit_order":[[:space:]]*"pages"' "$work/out.json" ||
        fail 'out.json: the reference read in another order'
    grep -qE '"rows_selected":[[:space:]]*[1-9]' "$work/out.json" ||
        fail 'out.json: nothing was selected'
    # That of the build, which HEAD may have left since; a tree without git has none.
    commit=$(sed -n -E 's/.*"commit":[[:space:]]*"([^"]*)".*/\1/p' "$work/out.json")
    [ "$commit" = unknown ] || git -C "$data" cat-file -e "${commit%-dirty}^{commit}" 2>/dev/null ||
        fail "out.json is of '$commit', which is no commit"
}

# Whole, or not at all.
check_failures() {
    expect 1 '^tamis bench attention: /dev/full: cannot be written: ' "${small[@]}" --json /dev/full
    [ -c /dev/full ] || fail '/dev/full was replaced'
    expect 1 '^tamis bench attention: .*cannot be written: ' \
        "${small[@]}" --json "$work/no/such/folder.json"
    expect 1 '^tamis bench attention: .*cannot be written: ' "${small[@]}" --json "$work"
    echo kept >"$work/kept.json"
    (
        trap '' XFSZ # so that a write beyond the limit fails instead of ending the process
        ulimit -f 1  # KiB
        exec "$tamis" "${small[@]}" --select quest,window --json "$work/kept.json"
    ) >"$work/out" 2>"$work/err" && fail 'a file beyond the limit: exit status 0'
    grep -q 'kept.json: cannot be written' "$work/err" || fail 'a file beyond the limit: no reason'
    [ "$(cat "$work/kept.json")" = kept ] || fail 'a failed write changed the old file'
    [ -z "$(find "$work" -name '*.json.*')" ] || fail 'a temporary file was left behind'
    rm "$work/kept.json"
}

# Standard output by all of its names has the JSON and nothing else; the table is on stderr.
check_stdout() {
    local name
    for name in - /dev/stdout /proc/self/fd/1; do
        succeeds '"rows"' devices --json "$name"
        is_json "--json $name into a file" "$work/out" 'tamis devices'
        grep -q '^reference:0' "$work/err" || fail "--json $name: the table is not on stderr"
        "$tamis" devices --json "$name" 2>"$work/err" | cat >"$work/out"
        is_json "--json $name into a pipe" "$work/out" 'tamis devices'
    done
    "$tamis" devices --json - >/dev/full 2>"$work/err" && fail '--json - to a full disk: status 0'
    grep -q 'standard output: cannot be written' "$work/err" || fail '--json - to a full disk: why'
    "$tamis" devices --json - >&- 2>"$work/err" && fail '--json - without an output: status 0'
    succeeds '^reference:0' devices --json /dev/stderr
    is_json '--json /dev/stderr' "$work/err" 'tamis devices'
}

# Pipes and links stay what they are; what a link leads to becomes the file.
check_places() {
    mkfifo "$work/pipe"
    timeout 60 cat "$work/pipe" >"$work/piped" &
    expect 0 '' devices --json "$work/pipe"
    wait $!
    [ -p "$work/pipe" ] || fail 'a named pipe was replaced'
    is_json 'a named pipe' "$work/piped" 'tamis devices'
    expect 0 '' devices --json >(cat >"$work/substituted")
    sleep 0.2
    is_json 'a pipe of the shell' "$work/substituted" 'tamis devices'
    (exec 7>"$work/seven" && exec "$tamis" devices --json /dev/fd/7 >/dev/null) 2>"$work/err"
    is_json 'an open file' "$work/seven" 'tamis devices'

    mkdir "$work/folder"
    echo old >"$work/folder/old.json"
    ln -s folder/old.json "$work/link"
    ln -s link "$work/second"
    expect 0 '' devices --json "$work/second"
    [[ -L $work/second && -L $work/link ]] || fail 'a link was replaced'
    is_json 'behind two links' "$work/folder/old.json" 'tamis devices'
    ln -s folder/new.json "$work/dangling"
    expect 0 '' devices --json "$work/dangling"
    [ -L "$work/dangling" ] || fail 'a link to nothing was replaced'
    is_json 'behind a link to nothing' "$work/folder/new.json" 'tamis devices'
    ln -s loop "$work/loop"
    expect 1 '/loop: cannot be written: ' devices --json "$work/loop"
    [ -z "$(find "$work" -name '*.json.*' -o -name '*.??????' -path '*/folder/*')" ] ||
        fail 'a temporary file was left behind a link'
}

# A signal ends the run, by the signal, and nothing is left of it.
check_signals() {
    local name status
    for name in INT TERM HUP; do
        "$tamis" bench attention --shape llama3-8b --context 192 --layers 1 --repeat 1000 \
            --select full --device reference --json "$work/cut.json" >"$work/out" 2>"$work/err" &
        for _ in $(seq 500); do
            [ -z "$(find "$work" -name 'cut.json.*')" ] || break
            sleep 0.02
        done
        [ -n "$(find "$work" -name 'cut.json.*')" ] || fail "SIG$name: nothing was begun"
        kill -s "$name" $!
        wait $! 2>/dev/null
        status=$?
        [ "$status" -eq $((128 + $(kill -l "$name"))) ] || fail "SIG$name: exit status $status"
        [ -z "$(find "$work" -name 'cut.json*')" ] || fail "SIG$name left something behind"
        rm -f "$work"/cut.json*
    done
}

check_run
check_shape
check_failures
check_stdout
check_places
set -m # background jobs do not ignore SIGINT
check_signals
[ "$failures" -eq 0 ] || exit 1
echo 'output: all passed'
