#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The command line from outside: usage: test_cli.sh TAMIS DATA_FOLDER
set -u
tamis=${1:?}
data=${2:?}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
unset TAMIS_DEVICE TAMIS_LOG

fail() {
    printf 'FAIL %s\n' "$*"
    sed 's/^/     stderr: /' "$work/err"
    failures=$((failures + 1))
}

# expect STATUS PATTERN ARGUMENT...: exit status, and a line of stderr that matches.
expect() {
    local status=$1 pattern=$2 got=0
    shift 2
    "$tamis" "$@" >"$work/out" 2>"$work/err" || got=$?
    [ "$got" -eq "$status" ] || fail "tamis $*: exit status $got, not $status"
    [ -z "$pattern" ] || grep -qE -e "$pattern" "$work/err" ||
        fail "tamis $*: stderr lacks: $pattern"
}

# usage_error PATTERN ARGUMENT...: exit status 2 and one line on stderr, nothing on stdout.
usage_error() {
    expect 2 "$@"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "tamis ${*:2}: more than one line"
    [ ! -s "$work/out" ] || fail "tamis ${*:2}: output on stdout"
}

# succeeds PATTERN ARGUMENT...: exit status 0 and stdout that matches.
succeeds() {
    local pattern=$1
    shift
    expect 0 '' "$@"
    grep -qE -e "$pattern" "$work/out" || fail "tamis $*: stdout lacks: $pattern"
}

small=(bench attention --shape llama3-8b --context 192 --budget 128 --layers 1 --repeat 1
    --device reference)
model=(run --model "$data/needle.gguf" --device reference)

# Help and version.
: >"$work/err"
succeeds '^tamis [0-9]+\.[0-9]+\.[0-9]+$' --version
succeeds 'commands:' --help
succeeds 'examples:' devices --help
succeeds 'examples:' run --help
succeeds 'examples:' bench --help
succeeds 'examples:' bench attention --help
expect 2 'usage: tamis'

# Wrong command lines.
usage_error '^tamis: frob: unknown command' frob
usage_error '^tamis bench: frob: unknown benchmark' bench frob
usage_error '^tamis bench: \(none\): unknown benchmark' bench
usage_error '^tamis bench: --frob: unknown option' bench attention --frob 1
usage_error '^tamis run: extra: unknown argument' run extra
usage_error '^tamis bench: --context: needs a value' bench attention --context
usage_error '^tamis bench: --context 0: must be at least 1$' bench attention --context 0
usage_error '^tamis bench: --context 0: must be at least 1$' bench attention --context=4096,0
usage_error '^tamis bench: --context 99999999999999999999999: must be at most' \
    bench attention --context 99999999999999999999999
usage_error '^tamis bench: --context 1e3: not a whole number' bench attention --context 1e3
usage_error '^tamis bench: --context -5: not a whole number' bench attention --context -5
usage_error '^tamis bench: --context : a number is missing' bench attention --context 1,,2
usage_error '^tamis bench: --context 17: too many' \
    bench attention --context 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17
usage_error '^tamis bench: --shape gpt5: must be one of llama2-7b, llama3-8b, qwen3-4b' \
    bench attention --shape gpt5
usage_error '^tamis bench: --shape: is missing' bench attention --context 64
usage_error '^tamis bench: --dtype f8: must be one of' bench attention --dtype f8
usage_error '^tamis bench: --page-size 12: must be one of' bench attention --page-size 12
usage_error '^tamis bench: --select oracle: .*known are full, window, quest' \
    bench attention --select quest,oracle
usage_error '^tamis run: --select : .*known are full' run --select ''
usage_error '^tamis bench: --json : must not be empty$' "${small[@]}" --json=
usage_error '^tamis run: --prompt : must not be empty$' "${model[@]}" --prompt ''
usage_error '^tamis bench: .*budget' "${small[@]}" --budget 32 --select quest
usage_error '^tamis run: --model: is missing' run --prompt x
usage_error '^tamis run: --prompt, --prompt-file: give exactly one' run --model x
usage_error '^tamis run: --prompt, --prompt-file: give exactly one' \
    run --model x --prompt a --prompt-file b
usage_error '^tamis run: .*budget' "${model[@]}" --prompt x --select quest --budget 64

# What fails at run time.
expect 1 '^tamis devices: --device nosuch: no such device' devices --device nosuch
expect 1 '^tamis run: .*nosuch' run --model "$data/needle.gguf" --prompt x --device nosuch
expect 1 '^tamis run: .*opencl:99' run --model "$data/needle.gguf" --prompt x --device opencl:99
expect 1 '^tamis bench: .*reference:7' "${small[@]}" --device reference:7
expect 1 '^tamis run: .*missing\.gguf' run --model "$work/missing.gguf" --prompt x --device reference
head -c 1000 "$data/needle.gguf" >"$work/truncated.gguf"
expect 1 '^tamis run: ' run --model "$work/truncated.gguf" --prompt x --device reference
head -c -1 "$data/needle.gguf" >"$work/truncated.gguf"
expect 1 '^tamis run: ' run --model "$work/truncated.gguf" --prompt x --device reference
expect 1 '^tamis run: prompt and question have 12 tokens, the context is 8$' \
    "${model[@]}" --prompt 'hello ' --question 'world ' --context 8
expect 1 "^tamis run: $work/nothing: cannot be read" "${model[@]}" --prompt-file "$work/nothing"
expect 1 '^tamis run: .*cannot be read' "${model[@]}" --prompt-file "$work"
expect 1 '^tamis run: --context 100000: exceeds the [0-9]+ that the model states$' \
    "${model[@]}" --prompt x --context 100000
[ "$(wc -l <"$work/err")" -eq 1 ] || fail 'run --context 100000: more than one line'
: >"$work/empty"
expect 1 '^tamis run: ' "${model[@]}" --prompt-file "$work/empty"
if "$tamis" devices >/dev/full 2>"$work/err"; then
    fail 'devices to a full disk: exit status 0'
fi

# Answers.
succeeds 'reference:0 .* usable' devices
expect 0 '^prefill [0-9.]+ tokens/s, decode [0-9.]+ tokens/s, KV read .*/token \(.* of full\), KV held' \
    "${model[@]}" --prompt 'And the name of the man was Elimelech, and the name of' --tokens 8
[ "$(wc -c <"$work/out")" -eq 9 ] || fail 'run --tokens 8: not 8 bytes and a newline'
answer=$(head -c 3 "$work/out")
expect 0 'prefill' "${model[@]}" --prompt 'And the name of the man was Elimelech, and the name of' \
    --tokens 8 --stop "${answer#?}"
[ "$(cat "$work/out")" = "${answer%??}" ] || fail "run --stop: printed $(cat "$work/out")"
expect 0 '^tamis run: the context of 32 tokens is full$' "${model[@]}" \
    --prompt 'And the name of the man ' --tokens 30 --context 32
[ -z "$(tail -c 1 "$work/out")" ] || fail 'run: the answer does not end its line'
printf 'And the name of' >"$work/prompt"
expect 0 'KV read' "${model[@]}" --prompt-file "$work/prompt" --question ' the man' --tokens 2

# JSON: whole, or not at all.
expect 0 '' "${small[@]}" --select quest,window --json "$work/out.json"
for word in header device driver version threads read_gb_per_s results shape context dtype select \
    budget pages total_us stage_us gb_per_s share_of_read speedup_over_full counters; do
    grep -q "\"$word\":" "$work/out.json" || fail "out.json lacks $word"
done
[ "$(grep -c '"total_us"' "$work/out.json")" -eq 3 ] || fail 'out.json: not three rows'
grep -qE '"rows_selected":[[:space:]]*[1-9]' "$work/out.json" || fail 'out.json: nothing was selected'
expect 1 '^tamis bench: /dev/full: cannot be written: ' "${small[@]}" --json /dev/full
[ -c /dev/full ] || fail '/dev/full was replaced'
expect 1 '^tamis bench: .*cannot be written: ' "${small[@]}" --json "$work/no/such/folder.json"
expect 1 '^tamis bench: .*cannot be written: ' "${small[@]}" --json "$work"
echo kept >"$work/kept.json"
(
    trap '' XFSZ # so that a write beyond the limit fails instead of ending the process
    ulimit -f 1  # KiB
    exec "$tamis" "${small[@]}" --select quest,window --json "$work/kept.json"
) >"$work/out" 2>"$work/err" && fail 'a file beyond the limit: exit status 0'
grep -q 'kept.json: cannot be written' "$work/err" || fail 'a file beyond the limit: no reason'
[ "$(cat "$work/kept.json")" = kept ] || fail 'a failed write changed the old file'
[ -z "$(find "$work" -name '*.json.*')" ] || fail 'a temporary file was left behind'
succeeds '^ *192 +full ' "${small[@]}" --select full,window
[ "$(grep -cE '^ *192 +full ' "$work/out")" -eq 1 ] || fail 'bench --select full: measured twice'
expect 0 '' "${small[@]}" --pages shuffled --context 190 --batch 2 --dtype f32

# No OpenCL platform: the reference serves on auto and that is said; asked for by name it is refused.
mkdir "$work/vendors"
export OCL_ICD_VENDORS=$work/vendors
expect 0 '^tamis: .*reference' run --model "$data/needle.gguf" --prompt 'And the' --tokens 2
expect 1 '^tamis run: .*opencl' run --model "$data/needle.gguf" --prompt x --device opencl

[ "$failures" -eq 0 ] || exit 1
echo 'cli: all passed'
