#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The command line from outside: usage: test_cli.sh TAMIS DATA_FOLDER
# Exit status: 0 if all passed, 1 if something failed, 77 if all passed but opencl:0 is not usable.
set -u
tamis=${1:?}
data=${2:?}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
unset TAMIS_DEVICE TAMIS_LOG
export TAMIS_CUDA_DRIVER=$work/none # a GPU would serve where the reference is meant

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

# The devices to measure on, and the fastest of them.
devices=(reference)
"$tamis" devices 2>"$work/err" | grep -qE '^opencl:0 .* usable' && devices+=(opencl:0)
fast=${devices[-1]}

# holds CONDITION NAME=VALUE...: an awk expression over numbers.
holds() {
    local condition=$1 name sets=()
    shift
    for name in "$@"; do
        [[ "$name" =~ =[0-9.]+$ ]] || return 1
        sets+=(-v "$name")
    done
    awk "${sets[@]}" "BEGIN { exit !($condition) }"
}

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
usage_error '^tamis bench: --probe 0: must be at least 1$' bench attention --probe 0
usage_error '^tamis bench: --shape gpt5: must be one of llama2-7b, llama3-8b, qwen3-4b' \
    bench attention --shape gpt5
usage_error '^tamis bench: --shape: is missing' bench attention --context 64
usage_error '^tamis bench: --dtype f8: must be one of' bench attention --dtype f8
usage_error '^tamis bench: --page-size 12: must be one of' bench attention --page-size 12
usage_error '^tamis bench: --select newest: .*known are full, window, quest, oracle, random' \
    bench attention --select quest,newest
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
    budget batch layers pages total_us graph_us stage_us gb_per_s share_of_read \
    share_of_copy copy_gb_per_s speedup_over_full counters; do
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
expect 0 '' "${small[@]}" --pages shuffled --context 190 --batch 2 --dtype f32 --probe 1

# Evaluations in general.
check_eval() {
    succeeds 'passkey' eval --help
    usage_error '^tamis eval: frob: unknown evaluation, must be one of passkey, recall, ' \
        eval frob
    usage_error '^tamis eval: \(none\): unknown evaluation' eval
}

# The answers that a JSON file of passkeys holds, without what is timed.
passkey_answers() {
    grep -vE '"(device|device_name|driver|tokens_per_s)":' "$1"
}

check_passkey() {
    local passkey=(eval passkey --model "$data/needle.gguf" --texts 2 --keys 2
        --length 600,320,600 --select window,quest,oracle,random,quest
        --score minmax,meanstd,mean,mean --budget 128,128)
    local wrong=(eval passkey --model "$data/needle.gguf") word
    succeeds 'examples:' eval passkey --help
    usage_error '^tamis eval passkey: --model: is missing' eval passkey
    usage_error '^tamis eval passkey: --keys 17: must be at most 16$' "${wrong[@]}" --keys 17
    usage_error '^tamis eval passkey: --keys 0: must be at least 1$' "${wrong[@]}" --keys 0
    usage_error '^tamis eval passkey: --length 87: 2 keys need at least 88$' \
        "${wrong[@]}" --keys 2 --length 1000,87
    usage_error '^tamis eval passkey: --score median: must be one of minmax, meanstd, mean$' \
        "${wrong[@]}" --score mean,median
    usage_error '^tamis eval passkey: --width 0: must be above 0$' "${wrong[@]}" --width 0
    usage_error '^tamis eval passkey: --width -1: not a decimal number$' "${wrong[@]}" --width=-1
    usage_error '^tamis eval passkey: --width 1x: not a decimal number$' "${wrong[@]}" --width 1x
    for word in inf nan 0x1 1e1 . 1.2.3; do
        usage_error "^tamis eval passkey: --width $word: not a decimal number$" \
            "${wrong[@]}" --width "$word"
    done
    usage_error '^tamis eval passkey: budget 96 is 6 pages' "${wrong[@]}" --budget 96
    expect 1 "^tamis eval passkey: $work/nothing: cannot be read: " \
        "${passkey[@]}" --device reference --text "$work/nothing"
    expect 1 '^tamis eval passkey: .*/empty: is empty$' \
        "${passkey[@]}" --device reference --text "$work/empty"
    expect 1 '^tamis eval passkey: --length: a text takes up to 1000027 tokens; the model states' \
        "${wrong[@]}" --device reference --length 1000000,500

    expect 0 '^length 320: 16 of 16 \(100 %\)$' "${passkey[@]}" --device reference \
        --json "$work/passkey.json"
    [ "$(wc -l <"$work/out")" -eq 16 ] || fail 'passkey: not seven arms at two lengths'
    grep -qE '^2 texts of each length, 2 keys each, by needle on reference:0 .* up to 2 forks' \
        "$work/out" || fail 'passkey: what was measured is not said'
    [ "$(grep -c '"accuracy"' "$work/passkey.json")" -eq 14 ] || fail 'passkey.json: not 14 rows'
    for word in tool version device model seed texts keys dtype page_size width rows select score \
        budget length trials accuracy ci95 depth_accuracy tokens_per_s kv_bytes_read_per_token \
        kv_bytes_full_per_token kv_bytes_held; do
        grep -q "\"$word\":" "$work/passkey.json" || fail "passkey.json lacks $word"
    done
    for word in minmax meanstd mean mass random; do
        [ "$(grep -c "\"score\":[[:space:]]*\"$word\"" "$work/passkey.json")" -eq 2 ] ||
            fail "passkey.json: not two rows of score $word"
    done
    grep -qE '^full +- .* 1\.000$' "$work/out" || fail 'passkey: full does not read all'

    passkey_answers "$work/passkey.json" >"$work/first"
    [ "$fast" != reference ] || return 0
    expect 0 '' "${passkey[@]}" --device "$fast" --json "$work/passkey.json"
    passkey_answers "$work/passkey.json" | cmp -s - "$work/first" ||
        fail 'passkey: reference and opencl differ in more than their times'
}

# The model finds most keys with full, fewer with the newest tokens alone.
check_passkey_finds() {
    local full window
    expect 0 '' eval passkey --model "$data/needle.gguf" --texts 2 --keys 4 --length 1000 \
        --select window --budget 128 --device "$fast"
    full=$(awk '$1 == "full" { print $6 }' "$work/out")
    window=$(awk '$1 == "window" { print $6 }' "$work/out")
    holds 'full >= 0.6 * 8 && window < full' "full=$full" "window=$window" ||
        fail "passkey: of 8 keys full finds $full, window with a budget of 128 $window"
}

check_eval
check_passkey
check_passkey_finds

# recall_of FIELD SELECT BUDGET: recall 5, mass 6 or error 7 in the table of means that is in out.
recall_of() {
    awk -v field="$1" -v select="$2" -v budget="$3" \
        '$2 == select && $4 == budget { print $field; exit }' "$work/out"
}

# check_recall_on DEVICE: what follows from the definitions. Under the group's mean no list of so
# many pages holds more mass than oracle's.
check_recall_on() {
    local recall=(eval recall --model "$data/needle.gguf" --length 500 --tokens 4 --texts 1
        --select quest,oracle,window,random --budget 128,1024 --group mean --device "$1") arm whole
    expect 0 '^length 500, text 1 of 1: .* \(100 %\)$' "${recall[@]}" --json "$work/recall.json"
    for arm in 'full -' 'quest 1024' 'oracle 1024' 'window 1024' 'random 1024'; do
        # shellcheck disable=SC2086 # two words
        whole="$(recall_of 5 $arm) $(recall_of 6 $arm) $(recall_of 7 $arm)"
        [ "$whole" = '1.0000 1.0000 0.0000' ] ||
            fail "recall on $1: $arm does not read all"
    done
    for arm in quest window random; do
        holds 'mass > 0 && mass < 1 && mass <= most' "most=$(recall_of 6 oracle 128)" \
            "mass=$(recall_of 6 "$arm" 128)" ||
            fail "recall on $1: $arm holds more mass than oracle, or none, or all"
    done
    holds 'error > 0' "error=$(recall_of 7 quest 128)" ||
        fail "recall on $1: quest with a budget of 128 has no error"
    holds 'recall > 0 && recall < 1' "recall=$(recall_of 5 window 128)" ||
        fail "recall on $1: window with a budget of 128 reads all or none of the top tokens"
    # Four layers, each with a share of its own.
    awk '$4 == "full" && NF == 9 { layers++; shares += !seen[$3]++; bad += !($3 > 0 && $3 <= 1) }
        END { exit !(layers == 4 && shares > 1 && !bad) }' "$work/out" ||
        fail "recall on $1: sparsity is the same in every layer, or not within 0 and 1"
}

check_recall() {
    local wrong=(eval recall --model "$data/needle.gguf") word
    succeeds 'examples:' eval recall --help
    usage_error '^tamis eval recall: --model: is missing' eval recall
    usage_error '^tamis eval recall: --top 0: must be at least 1$' "${wrong[@]}" --top 0
    usage_error '^tamis eval recall: --dense-layers 2: must be 0' "${wrong[@]}" --dense-layers 2
    usage_error '^tamis eval recall: budget 96 is 6 pages' "${wrong[@]}" --budget 96
    head -c 400 "$data/text.txt" >"$work/short"
    expect 1 '/short: has 400 tokens, --length 397 with --tokens 3 needs 401$' "${wrong[@]}" \
        --device reference --text "$work/short" --length 100,397 --tokens 3
    expect 1 '/short: has 2 places for a window of 399 tokens, fewer than --texts 3$' \
        "${wrong[@]}" --device reference --text "$work/short" --length 396 --tokens 2 --texts 3
    expect 1 '/empty: has 0 tokens, --length 1 with --tokens 1 needs 3$' "${wrong[@]}" \
        --device reference --text "$work/empty" --length 1 --tokens 1
    expect 1 "^tamis eval recall: $work/nothing: cannot be read: " "${wrong[@]}" \
        --device reference --text "$work/nothing" --length 100

    check_recall_on reference
    for word in tool version device model seed tokens texts top dtype page_size rows select score \
        budget length layer head recall mass error sparsity; do
        grep -q "\"$word\":" "$work/recall.json" || fail "recall.json lacks $word"
    done
    [ "$(grep -c '"select":[[:space:]]*"full"' "$work/recall.json")" -gt \
        "$(grep -c '"sparsity"' "$work/recall.json")" ] || fail 'recall.json: means are missing'
    [ "$fast" = reference ] || check_recall_on "$fast"
}

# perplexity_of LENGTH SELECT BUDGET: tokens, nll, perplexity, bits/byte in the table in out.
perplexity_of() {
    awk -v length_="$1" -v select="$2" -v budget="$3" \
        '$1 == length_ && $2 == select && $4 == budget { print $5, $6, $7, $8 }' "$work/out"
}

check_perplexity() {
    local perplexity=(eval perplexity --model "$data/needle.gguf" --length 300,100 --tokens 6
        --texts 2 --select quest,window,random --score minmax,mean --budget 128) word
    succeeds 'examples:' eval perplexity --help
    usage_error '^tamis eval perplexity: --model: is missing' eval perplexity
    usage_error '^tamis eval perplexity: --tokens 0: must be at least 1$' \
        "${perplexity[@]}" --tokens 0
    expect 1 '/short: has 400 tokens, --length 397 with --tokens 3 needs 401$' "${perplexity[@]}" \
        --device reference --text "$work/short" --length 397 --tokens 3

    expect 0 '^length 100, text 2 of 2: 12 of 12 \(100 %\)$' "${perplexity[@]}" \
        --device reference --json "$work/perplexity.json"
    [ "$(grep -c '"nll"' "$work/perplexity.json")" -eq 10 ] || fail 'perplexity.json: not ten rows'
    for word in tool version device model seed texts dtype page_size rows select score budget \
        length tokens nll perplexity bits_per_byte kv_bytes_read_per_token \
        kv_bytes_full_per_token; do
        grep -q "\"$word\":" "$work/perplexity.json" || fail "perplexity.json lacks $word"
    done
    # A context within the budget is read whole: the same figures as full. Beyond it they differ.
    [[ "$(perplexity_of 100 window 128)" =~ ^12\ [0-9] ]] || fail 'perplexity: not 12 tokens'
    [ "$(perplexity_of 100 window 128)" = "$(perplexity_of 100 full -)" ] ||
        fail 'perplexity: window within its budget is not full'
    [ "$(perplexity_of 300 random 128)" != "$(perplexity_of 300 full -)" ] ||
        fail 'perplexity: random beyond its budget is full'
    # shellcheck disable=SC2046 # four words
    set -- $(perplexity_of 300 full -)
    holds 'p > 1.5 && p < 20 && p - exp(nll) < 1e-3 && exp(nll) - p < 1e-3' "nll=$2" "p=$3" ||
        fail "perplexity: $3 is not within 1.5 and 20, or not exp of $2"
}

# The last weight of the model, of its output's norm, is NaN: a line says so, no figure is made up.
check_not_finite() {
    { head -c -4 "$data/needle.gguf" && printf '\0\0\300\177'; } >"$work/nan.gguf"
    expect 1 '^tamis eval perplexity: length 100, text 1, token 1: the loss under full is -?nan$' \
        eval perplexity --model "$work/nan.gguf" --text "$data/text.txt" --length 100 \
        --device "$fast" --json "$work/nan.json"
    [ ! -e "$work/nan.json" ] || fail 'perplexity: a file of figures that are not finite'
}

# The loss of tests/model/make_logits.py, in float64, over the text of its vectors of tiny.gguf.
check_perplexity_value() {
    local device nll wanted=5.7041
    head -c 120 "$data/text.txt" >"$work/window"
    for device in "${devices[@]}"; do
        expect 0 '' eval perplexity --model "$data/tiny.gguf" --text "$work/window" --length 99 \
            --tokens 20 --texts 1 --select full --dtype f32 --device "$device"
        nll=$(awk '$2 == "full" { print $6 }' "$work/out")
        holds 'nll - wanted < 1e-3 && wanted - nll < 1e-3' "nll=$nll" "wanted=$wanted" ||
            fail "perplexity of tiny.gguf on $device: nll $nll, not $wanted"
    done
}

check_recall
check_perplexity
check_not_finite
check_perplexity_value

# No OpenCL platform: the reference serves on auto and that is said; asked for by name it is refused.
mkdir "$work/vendors"
export OCL_ICD_VENDORS=$work/vendors
expect 0 '^tamis: .*reference' run --model "$data/needle.gguf" --prompt 'And the' --tokens 2
expect 1 '^tamis run: .*opencl' run --model "$data/needle.gguf" --prompt x --device opencl

[ "$failures" -eq 0 ] || exit 1
if [ "$fast" = reference ]; then
    echo 'cli: opencl:0 is not usable: all else passed'
    exit 77
fi
echo 'cli: all passed'
