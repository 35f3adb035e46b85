#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The command line from outside: usage: test_cli.sh TAMIS DATA_FOLDER
# Exit status: 0 if all passed, 1 if something failed, 77 if all passed but opencl:0 is not usable.
. "$(dirname "$0")/checks.sh"

# Help and version.
: >"$work/err"
succeeds '^tamis [0-9]+\.[0-9]+\.[0-9]+$' --version
succeeds '^tamis [0-9]+\.[0-9]+\.[0-9]+$' version
for words in '' run bench 'bench decode'; do
    # shellcheck disable=SC2086 # words
    "$tamis" $words --help >"$work/wanted"
    # shellcheck disable=SC2086
    "$tamis" help $words | cmp - "$work/wanted" || fail "tamis help $words"
done
usage_error '^tamis: frob: unknown command' help frob
usage_error '^tamis: c: stands behind help, which takes the name of one command$' help a b c
usage_error '^tamis: --completion csh: must be one of bash, zsh, fish$' --completion csh
succeeds '^  -m, --model FILE' run --help
succeeds 'commands:' --help
succeeds 'examples:' devices --help
succeeds 'examples:' run --help
succeeds '^usage: tamis bench NAME' bench --help
succeeds 'examples:' bench attention --help
succeeds 'examples:' bench decode --help
succeeds 'examples:' bench layers --help
succeeds 'examples:' bench linear --help
succeeds 'examples:' bench model --help
succeeds 'examples:' bench portability --help
succeeds 'examples:' bench throughput --help
succeeds 'examples:' bench arrivals --help
expect 2 'usage: tamis'

# The man page and the completion that the tree holds are those of the tables.
root=$(cd "$data/../.." && pwd)
# They have the commands of the store, which a build may lack.
if "$tamis" store --help >"$work/out" 2>&1; then
    "$tamis" --man | cmp - "$root/docs/man/tamis.1" ||
        fail 'the man page is not current: tamis --man >docs/man/tamis.1'
    for file in bash:tamis.bash zsh:_tamis fish:tamis.fish; do
        "$tamis" --completion "${file%:*}" | cmp - "$root/tools/tamis/completion/${file#*:}" ||
            fail "the completion is not current: tamis --completion ${file%:*} >tools/tamis/completion/${file#*:}"
    done
    "$tamis" --completion | cmp - "$root/tools/tamis/completion/tamis.bash" || fail 'completion without a shell'
fi

# The command line is a client: it includes public headers and its own.
private=$(grep -rnE '^#include "' "$root/tools/tamis" --include='*.[ch]' |
    grep -vE '#include "(blend|cli|compare|bench|eval|jinja|serve|store)/[a-z0-9_]+\.h"')
[ -z "$private" ] || fail "private headers: $private"

# completes WANTED WORD...: what the shell offers for the last word, in one line.
completes() {
    local wanted=$1
    shift
    # shellcheck disable=SC2034 # of the completion's own
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _tamis
    [ "${COMPREPLY[*]}" = "$wanted" ] || fail "completing $*: ${COMPREPLY[*]}, not $wanted"
}

# shellcheck source=/dev/null
. "$root/tools/tamis/completion/tamis.bash"
completes 'devices' tamis d
completes 'bench' tamis ben
completes 'compare' tamis c
completes 'arrivals attention decode layers linear model portability throughput ttft --help' tamis bench ''
completes 'put list verify gc --help' tamis store ''
completes '--matrix --markdown' tamis devices --ma
completes 'quest quest-paper' tamis run --select q
completes 'quest,quest quest,quest-paper' tamis eval recall --select quest,q
completes 'h2o,snapkv' tamis bench decode --evict h2o,sn
completes '' tamis bench decode --context 3
completes '--cache-dtype' tamis run --select quest --ca
completes '--chat-format' tamis run --chat --chat
completes '--stop' tamis run --stop x --stop
completes 'full' tamis run -m x --select fu
completes 'help' tamis he
completes 'bench' tamis help be
completes 'decode' tamis help bench de

# The same of fish and zsh, where they are installed.
if command -v fish >/dev/null; then
    # fish_completes WANTED LINE
    fish_completes() {
        local got
        got=$(HOME=$work fish --no-config -c \
            "source $root/tools/tamis/completion/tamis.fish; complete -C '$2'" 2>"$work/err" |
            cut -f 1 | sort | tr '\n' ' ')
        [ "$got" = "$1" ] || fail "fish, completing $2: $got, not $1"
    }
    fish_completes 'compare ' 'tamis com'
    fish_completes 'arrivals attention ' 'tamis bench a'
    fish_completes 'bench ' 'tamis help be'
    fish_completes 'decode ' 'tamis help bench de'
    fish_completes '--cache-dtype ' 'tamis run -m x --cache-'
    fish_completes 'quest quest-paper ' 'tamis run --select q'
    fish_completes 'quest,quest quest,quest-paper ' 'tamis eval recall --select quest,q'
    fish_completes '' 'tamis eval recall --tokens '
fi
if command -v zsh >/dev/null; then
    TAMIS_COMPLETION=$root/tools/tamis/completion "$python" "$(dirname "$0")/test_zsh.py" 2>"$work/err" ||
        fail 'completion by zsh'
fi

# Wrong command lines.
usage_error '^tamis: frob: unknown command \(see' frob
usage_error '^tamis: rnu: unknown command; did you mean run\? \(see tamis --help\)$' rnu
usage_error '^tamis: benhc: unknown command; did you mean bench\?' benhc
usage_error '^tamis bench: decod: .*, ttft; did you mean decode\?$' bench decod
usage_error '^tamis run: --modle=x: unknown option; did you mean --model\? \(see' run --modle=x
usage_error '^tamis run: --evict-bugdet: unknown option; did you mean --evict-budget\?' run --evict-bugdet 3
usage_error '^tamis run: --evict h20: .*; did you mean h2o\?$' run --evict h20
usage_error '^tamis run: --select qeust: .*; did you mean quest\?$' run --select qeust
usage_error '^tamis run: --evict reindx: must be one of reindex, .*; did you mean reindex\?$' \
    run --evict snapkv+reindx
usage_error '^tamis bench linear: --type q4_k: must be one of .*; did you mean Q4_K\?$' bench linear --type q4_k
usage_error '^tamis bench: frob: unknown benchmark, must be one of arrivals, attention, decode, layers, linear, model, portability, throughput' \
    bench frob
usage_error '^tamis bench: \(none\): unknown benchmark' bench
usage_error '^tamis bench attention: --frob: unknown option' bench attention --frob 1
usage_error '^tamis run: extra: unknown argument' run extra
usage_error '^tamis bench attention: --context: needs a value' bench attention --context
usage_error '^tamis bench attention: --context 0: must be from 1 to ' bench attention --context 0
usage_error '^tamis bench attention: --context 0: must be from 1 to ' bench attention --context=4096,0
usage_error '^tamis bench attention: --context 99999999999999999999999: must be from 1 to [0-9]+$' \
    bench attention --context 99999999999999999999999
usage_error '^tamis bench attention: --context 1e3: not a whole number' bench attention --context 1e3
usage_error '^tamis bench attention: --context -5: must be from 1 to [0-9]+$' bench attention --context -5
usage_error '^tamis bench attention: --context : a number is missing' bench attention --context 1,,2
usage_error '^tamis bench attention: --context 17: too many' \
    bench attention --context 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17
usage_error '^tamis bench attention: --probe 0: must be from 1 to ' bench attention --probe 0
usage_error '^tamis bench attention: --shape gpt5: must be one of llama2-7b, llama3-8b, qwen3-4b, gemma3-270m, smollm2-135m' \
    bench attention --shape gpt5
usage_error '^tamis bench attention: --shape: is missing' bench attention --context 64
usage_error '^tamis bench attention: --dtype f8: must be one of' bench attention --dtype f8
usage_error '^tamis bench attention: --page-size 12: must be one of' bench attention --page-size 12
usage_error '^tamis bench attention: --select newest: .*known are full, window, quest, oracle, random, caller, quest-paper' \
    bench attention --select quest,newest
usage_error '^tamis run: --select : .*known are full' run --select ''
usage_error '^tamis bench attention: --json : must not be empty$' "${small[@]}" --json=
usage_error '^tamis run: --prompt : must not be empty$' "${model[@]}" --prompt ''
usage_error '^tamis bench attention: .*budget' bench attention --shape llama3-8b --budget 32 --select quest
usage_error '^tamis run: --model: is missing' run --prompt x
usage_error '^tamis run: --prompt, --prompt-file: give exactly one' run --model x
usage_error '^tamis run: --prompt, --prompt-file: give exactly one' \
    run --model x --prompt a --prompt-file b
usage_error '^tamis run: .*budget' "${model[@]}" --prompt x --select quest --budget 32
usage_error '^tamis run: --score: is given without quest' "${model[@]}" --prompt x --score mean

# Flags that would have no effect.
for flag in budget sinks recent dense-layers; do
    usage_error "^tamis run: --$flag: is given under full, which reads everything" \
        "${model[@]}" --prompt x --"$flag" 64
done
usage_error '^tamis run: --group: is given under full' "${model[@]}" --prompt x --group mean
for flag in budget sinks recent window kernel chunk floor beta every; do
    usage_error "^tamis run: --evict-$flag: is given where nothing is evicted" \
        "${model[@]}" --prompt x --evict-"$flag" 1
done
usage_error '^tamis run: --evict-pool: is given where' "${model[@]}" --prompt x --evict-pool max
usage_error '^tamis run: --evict-options: is given where' \
    "${model[@]}" --prompt x --evict-options blend
usage_error '^tamis run: --times: is given where nothing is evicted' \
    "${model[@]}" --prompt x --times on
usage_error '^tamis eval recall: --score: is given without quest' \
    eval recall --model x --select window --score mean
usage_error '^tamis eval recall: --width: is given without meanstd' \
    eval recall --model x --select quest --score mean --width 2
usage_error '^tamis bench attention: --budget: is given under full' "${small[@]}" --select full
usage_error '^tamis bench decode: --evict-window: is given where nothing is evicted' \
    bench decode --evict none --evict-window 8
usage_error '^tamis bench throughput: --evict-window: is given where nothing is evicted' \
    bench throughput --model x --evict none --evict-window 8
for evaluation in passkey perplexity recall; do
    usage_error "^tamis eval $evaluation: --budget: is given under full" \
        eval "$evaluation" --model x --select full --budget 64
    [ "$evaluation" = recall ] || usage_error '--evict-budget: is given where nothing is evicted' \
        eval "$evaluation" --model x --evict-budget 64
    [ "$evaluation" = recall ] || usage_error '--budget: is given under full' \
        eval "$evaluation" --model x --select full --budget 64 --evict snapkv --evict-budget 64
done
usage_error '^tamis eval eviction: --evict-sinks: is given where nothing is evicted' \
    eval eviction --model x --evict none --evict-sinks 4

# What fails at run time.
expect 1 '^tamis devices: --device nosuch: no such device' devices --device nosuch
expect 1 '^tamis run: .*nosuch' run --model "$data/needle.gguf" --prompt x --device nosuch
expect 1 '^tamis run: .*opencl:99' run --model "$data/needle.gguf" --prompt x --device opencl:99
expect 1 '^tamis bench attention: .*reference:7' bench attention --shape llama3-8b --device reference:7
expect 1 "^tamis run: $work/missing\.gguf: cannot be read: No such file or directory\$" run --model "$work/missing.gguf" --prompt x --device reference
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
# Loading is shown on a terminal alone, and leaves no trace there.
expect 0 '' "${model[@]}" --prompt x --tokens 1
grep -q loading "$work/err" && fail 'run: shows loading where stderr is no terminal'
script -qefc "$(printf '%q ' "$tamis" "${model[@]}" --prompt x --tokens 1)" /dev/null \
    >"$work/out" 2>"$work/err" </dev/null || fail 'run on a terminal: exit status'
grep -q $'\rloading 100 %\r  *\r' "$work/out" || fail 'run on a terminal: shows no loading'
printf 'And the name of' >"$work/prompt"
expect 0 'KV read' "${model[@]}" --prompt-file "$work/prompt" --question ' the man' --tokens 2

# Tokens: bytes, and a vocabulary of scores whose tokens come around the text and from it.
succeeds "^ *10 '\\\\n'\$" tokenize --model "$data/needle.gguf" --text $'a\n'
succeeds '^2 tokens of 2 bytes$' tokenize --model "$data/needle.gguf" --text $'a\n'
succeeds "^ *1 '<s>'\$" tokenize --model "$data/tokens/spm.gguf" --text a
succeeds '^2 tokens of 1 bytes$' tokenize --model "$data/tokens/spm.gguf" --text a --bare
succeeds "^ *2 '</s>'\$" tokenize --model "$data/tokens/spm.gguf" --text '</s>' --special
printf '</s>' >"$work/text"
succeeds '^4 tokens of 4 bytes$' tokenize --model "$data/tokens/spm-bare.gguf" --file "$work/text" --bare
usage_error '^tamis tokenize: --model: is missing' tokenize --text x
usage_error '^tamis tokenize: --text, --file: give exactly one' tokenize --model x
expect 1 "^tamis tokenize: $work/nothing: cannot be read" tokenize --model "$work/nothing" --text x

# Evictions: what is kept at the end of a text of 400 tokens and three decode steps, on every device.
kinds='streaming h2o tova snapkv pyramidkv adakv criticalkv critical-adakv andpro defensivekv knorm'
head -c 400 "$data/text.txt" >"$work/text400"

check_run_eviction() {
    local wrong=(run --model "$data/needle.gguf" --prompt x) evicting device kind mean
    usage_error '^tamis run: --evict lru: there is no eviction "lru"; known are none, streaming' \
        "${wrong[@]}" --evict lru
    usage_error '^tamis run: --evict all: there is no eviction' "${wrong[@]}" --evict all
    usage_error '^tamis run: --evict caller: takes its scores from a program' \
        "${wrong[@]}" --evict caller
    usage_error '^tamis run: --select caller: takes its lists from a program' \
        "${wrong[@]}" --select caller
    usage_error '^tamis run: --evict frob: must be one of reindex, ' "${wrong[@]}" --evict h2o+frob
    usage_error '^tamis run: --evict snapkv: has no option rerank$' \
        "${wrong[@]}" --evict snapkv+rerank
    usage_error '^tamis run: --evict-options blnd: must be one of' \
        "${wrong[@]}" --evict adakv --evict-options blnd
    usage_error '^tamis run: --evict snapkv: budget 32 is not above what is always kept: .*window 32$' \
        "${wrong[@]}" --evict snapkv --evict-budget 32
    usage_error '^tamis run: --evict-budget 0: must be from 1 to ' "${wrong[@]}" --evict-budget 0
    usage_error '^tamis run: --evict-window: is given for h2o, which has none$' \
        "${wrong[@]}" --evict h2o --evict-window 8
    usage_error '^tamis run: --evict snapkv: kernel 4 is not odd$' \
        "${wrong[@]}" --evict snapkv --evict-kernel 4
    usage_error '^tamis run: --evict-pool min: must be one of max, average$' \
        "${wrong[@]}" --evict snapkv --evict-pool min
    usage_error '^tamis run: --evict andpro: window 32 is not a multiple of the chunk 5$' \
        "${wrong[@]}" --evict andpro --evict-chunk 5
    usage_error '^tamis run: --evict-floor x: not a decimal number$' \
        "${wrong[@]}" --evict adakv --evict-floor x
    usage_error '^tamis run: --evict adakv: floor 1.5 is not a share' \
        "${wrong[@]}" --evict adakv --evict-floor 1.5
    usage_error '^tamis run: --evict-beta 0.5: must be at least 1$' \
        "${wrong[@]}" --evict pyramidkv --evict-beta 0.5
    usage_error '^tamis run: --evict snapkv: eviction snapkv takes no token in every step' \
        "${wrong[@]}" --evict snapkv --evict-every 1
    usage_error '^tamis run: --times yes: must be one of off, on$' "${wrong[@]}" --times yes

    for device in "${devices[@]}"; do
        evicting=(run --model "$data/needle.gguf" --prompt-file "$work/text400" --tokens 4
            --context 512 --device "$device")
        for kind in $kinds; do
            mean=131.0 # 128 and what came since
            case $kind in streaming | h2o | tova | knorm) mean=128.0 ;; esac
            expect 0 "^evict $kind: budget 128, tokens kept per lane [0-9]+ to [0-9]+ \\(mean $mean\\), returned [0-9.]+ KiB, evicting [1-9][0-9]* us " \
                "${evicting[@]}" --evict "$kind" --evict-budget 128 --times on
        done
        expect 0 '^evict snapkv: budget 128, tokens kept per lane 131 to 131 \(mean 131.0\), returned 586.5 KiB$' \
            "${evicting[@]}" --evict snapkv --evict-budget 128
        expect 0 'tokens kept per lane 403 to 403 \(mean 403.0\), returned 0 B$' \
            "${evicting[@]}" --evict h2o+rerank --evict-budget 512
        expect 0 '^evict andpro\+anchor-all\+budget-beside-kept: budget 128' "${evicting[@]}" \
            --evict andpro+anchor-all --evict-options budget-beside-kept --evict-budget 128
    done
}

check_run_eviction

# Settings: measured, written, and then in use; a file that is not understood says so.
check_tune() {
    local tuned=(tune --shape llama3-8b --dtype f16 --context 256 --budget 128 --rounds 1)
    usage_error '^tamis tune: --dtype q5: must be one of' tune --dtype q5
    usage_error '^tamis tune: --budget 2048: must be below the context of 1024$' tune --context 1024
    usage_error '^tamis tune: --shape llama3-8b,qwen3-4b: they share their settings: take one$' \
        tune --shape llama3-8b,qwen3-4b
    expect 1 '^tamis tune: reference:0 \(.*\): its kernels have no settings$' \
        tune --device reference
    succeeds '^reference:0: settings: none$' devices
    [ "$fast" = opencl:0 ] || return 0
    export TAMIS_SETTINGS="$work/own/settings"
    succeeds '^llama3-8b +f16 +sparse +fetch_rows=[0-9]+ fetch_level=[12] score_ahead=[0-9]+ ' \
        "${tuned[@]}" --device opencl:0 --dry-run --json "$work/tune.json"
    [ ! -e "$TAMIS_SETTINGS" ] || fail 'tune --dry-run: wrote a file'
    grep -q '"score_ahead":' "$work/tune.json" || fail 'tune --json: no settings'
    succeeds "^settings written to $TAMIS_SETTINGS\$" "${tuned[@]}" --device opencl:0
    grep -qE '^device ' "$TAMIS_SETTINGS" || fail 'tune: the file names no device'
    succeeds "^opencl:0: settings: $TAMIS_SETTINGS\$" devices
    echo 'attend f16 x' >>"$TAMIS_SETTINGS"
    expect 1 "^tamis tune: $TAMIS_SETTINGS, line [0-9]+: \"x\" is not understood" \
        "${tuned[@]}" --device opencl:0
    export TAMIS_SETTINGS=none
}

check_tune

# What a bench prints.
succeeds '^ *192 +full ' "${small[@]}" --select full,window
[ "$(grep -cE '^ *192 +full ' "$work/out")" -eq 1 ] || fail 'bench --select full: measured twice'
grep -qE '^context 192: .* page-read limit [0-9.]+ GB/s \(pages\)' "$work/out" ||
    fail 'bench: no page-read limit'
grep -qE ' of read +of limit ' "$work/out" || fail 'bench: no column for the share of the limit'
succeeds '^ *192 +quest-paper +128 ' "${small[@]}" --select quest,quest-paper --json "$work/paper.json"
grep -qE '"select":[[:space:]]*"quest-paper"' "$work/paper.json" || fail 'paper.json lacks quest-paper'
succeeds '^ *192 +quest-apart +128 .* score .* select .* attend ' "${small[@]}" --select quest,window --apart
grep -qE '^ *192 +(full|window)-apart' "$work/out" && fail 'bench --apart: of what is never fused'
expect 0 '' bench attention --shape llama3-8b --context 190 --budget 128 --layers 1 --repeat 1 \
    --device reference --pages shuffled --batch 2 --dtype f32 --probe 1

# What goes together.
check_matrix() {
    usage_error '^tamis devices: --markdown: is of --matrix, which is not given$' devices --markdown
    usage_error '^tamis devices: --matrix yes: takes no value$' devices --matrix=yes
    expect 1 '^tamis devices: --device nosuch: no such device$' devices --matrix --device nosuch
    expect 1 '^tamis devices: --matrix: no device can be used' devices --matrix --device cuda
    succeeds '^h2o, every 0 +yes +yes +yes +yes +yes +yes +yes$' devices --matrix --device reference \
        --json "$work/matrix.json"
    grep -qE '^streaming\+reindex +yes +no \[2\] +no \[3\]' "$work/out" ||
        fail 'devices --matrix: reindexed sinks under a selection'
    grep -q '^\[2\] reindexed streaming under selection window; it goes with full only$' \
        "$work/out" || fail 'devices --matrix: no reason'
    grep -qE '^h2o +yes +yes +yes +yes +yes +yes +no \[7\]$' "$work/out" ||
        fail 'devices --matrix: an eviction in place under a sliding window'
    # 13 kinds alone, 9 with an option, 4 between steps alone; 6 selections and a window, 6 dtypes.
    # 5 selections refuse one of the ways, a window those that act in each step.
    [ "$(grep -c '"works":' "$work/matrix.json")" -eq $(((13 + 9 + 4) * 7 * 6)) ] ||
        fail "matrix.json: $(grep -c '"works":' "$work/matrix.json") cells"
    [ "$(grep -c '"works":[[:space:]]*false' "$work/matrix.json")" -eq $(((5 + 7) * 6)) ] ||
        fail 'matrix.json: not 72 cells are refused'
    succeeds '^\| snapkv \| yes \| yes \| yes \| yes \| yes \| yes \| yes \|$' \
        devices --matrix --markdown --device reference
}

# Evictions at an equal batch.
check_decode() {
    local decode=(bench decode --context 200 --layers 2 --repeat 2 --probe 1 --device reference)
    usage_error '^tamis bench decode: --budget 0: must be tokens, or a share as 20%, from 1 to' \
        "${decode[@]}" --budget 0
    usage_error '^tamis bench decode: --budget 201: must be' "${decode[@]}" --budget 201
    usage_error '^tamis bench decode: --budget 20%%: must be' "${decode[@]}" --budget 20%%
    usage_error '^tamis bench decode: --evict-every 4: must be 0 or 1 here$' \
        "${decode[@]}" --budget 60 --evict-every 4
    usage_error '^tamis bench decode: --evict snapkv: budget 20 is not above' \
        "${decode[@]}" --budget 10% --evict snapkv
    usage_error '^tamis bench decode: --evict luck: .*known are' "${decode[@]}" --evict luck
    succeeds '^llama3-8b +snapkv +60 ' "${decode[@]}" --budget 30% --batch 2 --shape llama3-8b \
        --evict h2o,snapkv,criticalkv,streaming+reindex --json "$work/decode.json"
    for word in tool device shape evict budget tokens_held step_us speedup_over_full predicted_us \
        predicted_speedup kv_bytes bounds_bytes policy_bytes attend_us observe_us replace_us \
        read_gb_per_s; do
        grep -q "\"$word\":" "$work/decode.json" || fail "decode.json lacks $word"
    done
    [ "$(grep -c '"step_us"' "$work/decode.json")" -eq 5 ] || fail 'decode.json: not five rows'
}

# Layers with windows beside layers without, in memory that the windows bound.
check_layers() {
    local layers=(bench layers --context 200 --window 32 --budget 96 --repeat 2 --probe 1
        --device reference)
    usage_error '^tamis bench layers: --global-every 1: must be from 2 to ' "${layers[@]}" --global-every 1
    usage_error '^tamis bench layers: --global-every 19: must be at most the 18 layers of gemma3-270m$' \
        "${layers[@]}" --global-every 19
    usage_error '^tamis bench layers: --window 512: must be below the context of 200$' \
        bench layers --context 200
    usage_error '^tamis bench layers: --budget 200: must be below the context of 200$' \
        bench layers --context 200 --window 32 --budget 200
    usage_error '^tamis bench layers: .*budget' bench layers --budget 16
    usage_error '^tamis bench layers: --prefill-rows 0: must be from 1 to ' "${layers[@]}" --prefill-rows 0
    usage_error '^tamis bench layers: --shape gpt5: must be one of ' "${layers[@]}" --shape gpt5
    succeeds '^windows\+quest .* +- +- +1\.868 ' "${layers[@]}"
    # 13 pages of 16 KiB in each of 18 layers. Under windows 15 layers read 3 of them; the cache holds 5
    # there, for 32 tokens may be truncated, and has room for 7, for a step of 32 rows. Bounds take a
    # sixteenth of a page, and quest reads 6 pages of 13.
    succeeds '^full +[0-9.]+ +1\.00 +1\.00 +3\.834 +[0-9.]+ +1\.00 +3\.834 +4\.073 +4\.073$' \
        "${layers[@]}" --prefill-rows 32 --json "$work/layers.json"
    grep -qE '^windows +[0-9.]+ +[0-9.]+ +2\.79 +1\.376 .* 1\.868 +1\.985 +2\.507$' "$work/out" ||
        fail 'layers: the bytes of windows'
    grep -qE '^windows\+quest +[0-9.]+ +[0-9.]+ +3\.59 +1\.069 .* 1\.868 +1\.985 +2\.507$' \
        "$work/out" || fail 'layers: the bytes of windows with quest'
    for word in tool device shape context layers global_layers window budget page_size repeat \
        prefill_rows read_gb_per_s arm step_us speedup_over_full predicted_speedup kv_bytes \
        bounds_bytes rows_selected page_bytes_held bytes_held bytes_reserved prefill_s \
        prefill_speedup_over_full; do
        grep -q "\"$word\":" "$work/layers.json" || fail "layers.json lacks $word"
    done
    [ "$(grep -c '"arm"' "$work/layers.json")" -eq 3 ] || fail 'layers.json: not three rows'
    grep -qE '"global_layers":[[:space:]]*3,' "$work/layers.json" || fail 'layers.json: global layers'
    [ "$(grep -cE '"rows_selected":[[:space:]]*3,' "$work/layers.json")" -eq 1 ] ||
        fail 'layers.json: quest does not read the global layers alone'
}

# Products of weights of every type.
check_linear() {
    local linear=(bench linear --out 48 --in 256 --matrices 2 --repeat 2 --probe 1 --device reference)
    usage_error '^tamis bench linear: --type q4: must be one of f32, f16, bf16, Q8_0' \
        "${linear[@]}" --type q4
    usage_error '^tamis bench linear: --in 96: Q4_K has blocks of 256 elements$' \
        bench linear --in 96 --type Q8_0,Q4_K
    usage_error '^tamis bench linear: --layout strips: f16 weights have no blocks$' \
        "${linear[@]}" --type Q4_0,f16 --layout rows,strips
    succeeds '^Q4_0 +strips +1 +2 ' "${linear[@]}" --type Q4_0 --layout rows,strips
    succeeds '^Q6_K +rows +9 +2 +0\.01 ' "${linear[@]}" --rows 1,9 --json "$work/linear.json"
    grep -qi 'nan\|inf' "$work/linear.json" && fail 'linear.json: not a number'
    [ "$(grep -c '"share_of_read"' "$work/linear.json")" -eq 32 ] || fail 'linear.json: not 32 rows'
    # A block of Q4_1 has 20 bytes.
    grep -q "\"bytes\":[[:space:]]*$((48 * 256 / 32 * 20))," "$work/linear.json" ||
        fail 'linear.json: the bytes of Q4_1'
}

# The same problems on several platforms; the tool that joins machines reads what was written.
check_portability() {
    local small=(bench portability --context 256 --repeat 1 --seconds 1 --probe 1)
    local patient=(bench portability --context 256 --repeat 1 --seconds 600 --probe 1) # a busy machine, too
    usage_error '^tamis bench portability: --problem dense: must be one of decode, prefill, evict' \
        "${small[@]}" --problem dense
    usage_error '^tamis bench portability: --context 255: must be from 256 to' \
        bench portability --context 255
    expect 1 '^tamis bench portability: --device nosuch: no such device can be used$' \
        "${small[@]}" --device nosuch
    succeeds '^quest llama3-8b 256 +reference:0 own +[0-9.]+ .* 1\.000$' "${patient[@]}" \
        --problem decode --device reference --json "$work/portability.json"
    grep -qE '^dense llama2-7b 256 +1 +[0-9.]+ +1\.000 +page-read limit$' "$work/out" ||
        fail 'bench portability: no metric'
    [ "$(grep -c '"state":[[:space:]]*"ran"' "$work/portability.json")" -eq 4 ] ||
        fail 'portability.json: not four problems ran'
    "$python" "$root/tools/compare_devices.py" "$work/portability.json" >"$work/out" 2>"$work/err" ||
        fail 'compare_devices.py: portability.json is not understood'
    grep -qE '^\| quest llama3-8b 256 \| [0-9.]+ \| 1\.00 \| .* us, [0-9.]+, 1\.00 \|$' "$work/out" ||
        fail 'compare_devices.py: portability.json gives no row'
    # Minutes of one processor.
    succeeds '^prefill llama3-8b 4096 on reference:0 own: not run: a sample takes about ' \
        "${small[@]}" --problem prefill --device reference
    [ "$fast" = opencl:0 ] || return 0
    succeeds '^load llama3-8b 2048 +opencl:0 base +[0-9.]+ ' "${patient[@]}" --problem load \
        --device opencl:0
    grep -qE '^load llama3-8b 2048 +opencl:0 (cpu|gpu) +[0-9.]+ |^no platform: opencl:0 cpu: ' \
        "$work/out" || fail 'bench portability: one form of two'
}

# A whole model's step: the bytes are those of its weights and of the pages that are read.
check_model() {
    local model=(bench model --model "$data/needle.gguf" --context 256 --repeat 2 --probe 1
        --device reference)
    usage_error '^tamis bench model: --model: is missing' bench model --context 256
    usage_error '^tamis bench model: --budget: is given under full' \
        "${model[@]}" --select full --budget 64
    usage_error '^tamis bench model: --select luck: .*known are|must be one of' \
        "${model[@]}" --select luck
    expect 1 '^tamis bench model: .*/missing.gguf' bench model --model "$work/missing.gguf" \
        --device reference
    succeeds '^quest-paper +64 ' "${model[@]}" --select quest,quest-paper,window --budget 64 \
        --recent 16 --batch 2 --json "$work/model.json"
    for word in tool device model layers weight_bytes read_gb_per_s step_us predicted_speedup; do
        grep -q "\"$word\":" "$work/model.json" || fail "model.json lacks $word"
    done
    [ "$(grep -c '"step_us"' "$work/model.json")" -eq 4 ] || fail 'model.json: not four rows'
    # Two sequences, 4 layers, 2 KV heads of 64 channels, K and V in f16: 2048 bytes a token and
    # sequence; full reads 256 tokens, quest 64.
    grep -qE "\"kv_bytes\":[[:space:]]*$((2 * 256 * 2048)),?\$" "$work/model.json" ||
        fail 'model.json: the bytes of full'
    grep -qE "\"kv_bytes\":[[:space:]]*$((2 * 64 * 2048)),?\$" "$work/model.json" ||
        fail 'model.json: the bytes of quest'
}

# number_of FIELD EVICT: a number in the JSON of throughput.
number_of() {
    awk -v field="\"$1\":" -v evict="\"$2\"," '$1 == "\"evict\":" { here = $2 == evict }
        here && $1 == field { sub(",", "", $2); print $2 }' "$work/throughput.json"
}

# As many sequences as fit into the memory of three in full.
check_arrivals() {
    local run=(bench arrivals --model "$data/needle.gguf" --requests 6 --rate 1000000 --context 96 --tokens 8
        --rows 32 --running 3)
    usage_error '^tamis bench arrivals: --model: is missing' bench arrivals
    expect 1 '^tamis bench arrivals: --context 1000000 and --tokens 64 make 1000064 tokens; the model states' \
        bench arrivals --model "$data/needle.gguf" --context 1000000
    succeeds '^1000000 +mixed .*$' "${run[@]}" --json "$work/arrivals.json"
    [ "$(grep -c '"run":' "$work/arrivals.json")" -eq 3 ] || fail 'arrivals.json: not three runs'
    grep -qE '"mixed_steps":[[:space:]]*[1-9]' "$work/arrivals.json" || fail 'arrivals.json: no mixed step'
}

check_throughput() {
    local run=(bench throughput --model "$data/needle.gguf" --context 256 --tokens 8 --repeat 2
        --probe 1 --device "$fast") word full kept
    usage_error '^tamis bench throughput: --model: is missing' bench throughput
    usage_error '^tamis bench throughput: --memory, --sequences, --batch: give one of them$' \
        "${run[@]}" --batch 2 --sequences 2
    usage_error '^tamis bench throughput: --memory 1P: must be bytes, as 64M or 67108864$' \
        "${run[@]}" --memory 1P
    usage_error '^tamis bench throughput: --budget 101%: must be' "${run[@]}" --budget 101%
    expect 1 '^tamis bench throughput: full: a sequence takes [0-9]+ bytes and 0 in reserve, the memory' \
        "${run[@]}" --memory 256K
    expect 1 '^tamis bench throughput: full: --context 1000000 .*; the model states [0-9]+$' \
        bench throughput --model "$data/needle.gguf" --context 1000000 --tokens 8 --device "$fast"
    expect 1 '^tamis bench throughput: .*/missing.gguf' \
        bench throughput --model "$work/missing.gguf" --device "$fast"

    succeeds '^h2o +[0-9]+ +[0-9]+ +[0-9]+ +no ' "${run[@]}" --sequences 3 --budget 25% \
        --evict snapkv,h2o,adakv --json "$work/throughput.json"
    for word in tool model batch bytes_per_sequence kept_bytes reserve_bytes tokens_per_s \
        gain_over_full ceiling weights_us attention_us policy_us evict_us kv_bytes policy_bytes \
        predicted_attention_us one_more_fits read_gb_per_s; do
        grep -q "\"$word\":" "$work/throughput.json" || fail "throughput.json lacks $word"
    done
    [ "$(number_of batch full)" = 3 ] || fail "throughput: full decodes $(number_of batch full)"
    [ "$(grep -c '"one_more_fits":[[:space:]]*false' "$work/throughput.json")" -eq 4 ] ||
        fail 'throughput: one more sequence fits'
    full=$(number_of bytes_per_sequence full)
    for word in snapkv h2o adakv; do
        kept=$(number_of bytes_per_sequence "$word")
        # Budgets of 64 of 256 tokens, or 72 with what was generated, planes and partial pages.
        holds 'kept > full / 6 && kept < full / 2.5' "full=$full" "kept=$kept" ||
            fail "throughput: $word holds $kept bytes a sequence, full $full"
        holds 'n == int((have - more) / kept)' "n=$(number_of batch "$word")" "kept=$kept" \
            "have=$(number_of cache_bytes "$word")" "more=$(number_of reserve_bytes "$word")" ||
            fail "throughput: $word decodes $(number_of batch "$word") sequences"
    done
    succeeds '^the same batch of 2 for all' "${run[@]}" --batch 2 --evict snapkv
}

check_matrix
check_decode
check_layers
check_linear
check_portability
check_arrivals
check_model
check_throughput

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
    local wide=("${wrong[@]}" --score meanstd)
    succeeds 'examples:' eval passkey --help
    usage_error '^tamis eval passkey: --model: is missing' eval passkey
    usage_error '^tamis eval passkey: --keys 17: must be from [0-9]+ to 16$' "${wrong[@]}" --keys 17
    usage_error '^tamis eval passkey: --keys 0: must be from 1 to ' "${wrong[@]}" --keys 0
    usage_error '^tamis eval passkey: --length 87: 2 keys need at least 88$' \
        "${wrong[@]}" --keys 2 --length 1000,87
    usage_error '^tamis eval passkey: --score median: must be one of minmax, meanstd, mean; did you mean mean\?$' \
        "${wrong[@]}" --score mean,median
    usage_error '^tamis eval passkey: --width 0: must be above 0$' "${wide[@]}" --width 0
    usage_error '^tamis eval passkey: --width -1: must be above 0$' "${wide[@]}" --width=-1
    usage_error '^tamis eval passkey: --width 1x: not a decimal number$' "${wide[@]}" --width 1x
    for word in inf nan 0x1 1e1 . 1.2.3; do
        usage_error "^tamis eval passkey: --width $word: not a decimal number$" \
            "${wide[@]}" --width "$word"
    done
    usage_error '^tamis eval passkey: budget 32 is 2 pages' "${wrong[@]}" --budget 32
    expect 1 "^tamis eval passkey: $work/nothing: cannot be read: " \
        "${passkey[@]}" --device reference --text "$work/nothing"
    expect 1 '^tamis eval passkey: .*/empty: is empty$' \
        "${passkey[@]}" --device reference --text "$work/empty"
    expect 1 '^tamis eval passkey: a text takes up to 1000031 tokens with what follows it; the model' \
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
    # Of quest-paper two layers read everything, so that it reads more than quest.
    expect 0 '' eval passkey --model "$data/needle.gguf" --texts 1 --keys 2 --length 600 \
        --select quest,quest-paper,quest-paper --budget 128 --device reference
    [ "$(grep -cE '^quest +meanstd +128 |^quest-paper +minmax +128 ' "$work/out")" -eq 2 ] ||
        fail 'passkey: not one arm of quest and one of quest-paper'
    [ "$(awk '$1 == "quest-paper" { print $NF }' "$work/out")" != \
        "$(awk '$1 == "quest" { print $NF }' "$work/out")" ] ||
        fail 'passkey: quest-paper reads what quest does'

    passkey_answers "$work/passkey.json" >"$work/first"
    [ "$fast" != reference ] || return 0
    expect 0 '' "${passkey[@]}" --device "$fast" --json "$work/passkey.json"
    passkey_answers "$work/passkey.json" | cmp -s - "$work/first" ||
        fail 'passkey: reference and opencl differ in more than their times'
}

# Arms that evict read each text for themselves; one within its budget is full.
check_passkey_evicts() {
    local passkey=(eval passkey --model "$data/needle.gguf" --texts 1 --keys 2 --length 320
        --select full --budget 128,512 --device "$fast")
    usage_error '^tamis eval passkey: --evict foo: there is no eviction' \
        "${passkey[@]}" --evict snapkv,foo
    usage_error '^tamis eval passkey: --evict snapkv: budget 16 is not above' \
        eval passkey --model "$data/needle.gguf" --select window --evict all --evict-budget 16
    usage_error '^tamis eval recall: --evict: unknown option' \
        eval recall --model "$data/needle.gguf" --evict snapkv
    expect 0 '' "${passkey[@]}" --evict snapkv,adakv+blend,none,snapkv --json "$work/evicts.json"
    [ "$(grep -c '"evict"' "$work/evicts.json")" -eq 4 ] || fail 'evicts.json: not four rows'
    grep -qE '"evict":[[:space:]]*"adakv\+blend"' "$work/evicts.json" ||
        fail 'evicts.json lacks adakv+blend'
    [ "$(awk '$1 == "snapkv" && $3 == 512 { print $6 }' "$work/out")" = \
        "$(awk '$1 == "full" { print $6 }' "$work/out")" ] ||
        fail 'passkey: snapkv within its budget is not full'
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
check_passkey_evicts
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
    usage_error '^tamis eval recall: --top 0: must be from 1 to ' "${wrong[@]}" --top 0
    usage_error '^tamis eval recall: --dense-layers 2: must be 0' "${wrong[@]}" --dense-layers 2
    usage_error '^tamis eval recall: budget 32 is 2 pages' "${wrong[@]}" --budget 32
    head -c 400 "$data/text.txt" >"$work/short"
    expect 1 '/short: has 400 tokens, --length 397 with --tokens 3 needs 401$' "${wrong[@]}" \
        --device reference --text "$work/short" --length 100,397 --tokens 3
    expect 1 '/short: has 2 places for a passage of 399 tokens, fewer than --texts 3$' \
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

# perplexity_of LENGTH SELECT BUDGET: tokens, nll, perplexity, kl in the table in out.
perplexity_of() {
    awk -v length_="$1" -v select="$2" -v budget="$3" \
        '$1 == length_ && $2 == select && $4 == budget { print $5, $6, $7, $8 }' "$work/out"
}

check_perplexity() {
    local perplexity=(eval perplexity --model "$data/needle.gguf" --length 300,100 --tokens 6
        --texts 2 --select quest,window,random --score minmax,mean --budget 128
        --evict streaming,snapkv) word
    succeeds 'examples:' eval perplexity --help
    usage_error '^tamis eval perplexity: --model: is missing' eval perplexity
    usage_error '^tamis eval perplexity: --tokens 0: must be from 1 to ' \
        eval perplexity --model "$data/needle.gguf" --tokens 0
    expect 1 '/short: has 400 tokens, --length 397 with --tokens 3 needs 401$' \
        eval perplexity --model "$data/needle.gguf" --device reference --text "$work/short" \
        --length 397 --tokens 3

    expect 0 '^length 100, text 2 of 2: 16 of 16 \(100 %\)$' "${perplexity[@]}" \
        --device reference --json "$work/perplexity.json"
    [ "$(grep -c '"nll"' "$work/perplexity.json")" -eq 14 ] || fail 'perplexity.json: not 14 rows'
    for word in tool version device model seed texts dtype page_size rows select score budget \
        length tokens nll perplexity kl kl_dtype bits_per_byte kv_bytes_read_per_token \
        kv_bytes_full_per_token; do
        grep -q "\"$word\":" "$work/perplexity.json" || fail "perplexity.json lacks $word"
    done
    # A context within the budget is read whole: the same figures as full. Beyond it they differ.
    [[ "$(perplexity_of 100 window 128)" =~ ^12\ [0-9] ]] || fail 'perplexity: not 12 tokens'
    [ "$(perplexity_of 100 window 128)" = "$(perplexity_of 100 full -)" ] ||
        fail 'perplexity: window within its budget is not full'
    [ "$(perplexity_of 300 random 128)" != "$(perplexity_of 300 full -)" ] ||
        fail 'perplexity: random beyond its budget is full'
    for word in streaming snapkv; do
        [ "$(perplexity_of 100 "$word" 128)" = "$(perplexity_of 100 full -)" ] ||
            fail "perplexity: $word within its budget is not full"
        [ "$(perplexity_of 300 "$word" 128)" != "$(perplexity_of 300 full -)" ] ||
            fail "perplexity: $word beyond its budget is full"
    done
    # shellcheck disable=SC2046 # four words
    set -- $(perplexity_of 300 full -)
    holds 'p > 1.5 && p < 20 && p - exp(nll) < 1e-3 && exp(nll) - p < 1e-3' "nll=$2" "p=$3" ||
        fail "perplexity: $3 is not within 1.5 and 20, or not exp of $2"
    [ "$4" = 0.00000 ] || fail "perplexity: full diverges from itself by $4"
    # Against full over a cache of another dtype, full diverges, and less than random does.
    succeeds '^100 +full ' "${perplexity[@]}" --device "$fast" --dtype q8 --kl-dtype f32
    # shellcheck disable=SC2046 # eight words
    set -- $(perplexity_of 300 full -) $(perplexity_of 300 random 128)
    holds 'full > 0 && full < random' "full=$4" "random=$8" ||
        fail "perplexity --kl-dtype: full diverges by $4, random by $8"
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

# eviction_of FIELD EVICT BUDGET: 3 tokens kept, 4 bytes and 5 their unit, 6 output_error, 8
# output_cosine, 10 passkey_accuracy, 12 error_single, 14 passkey_single.
eviction_of() {
    awk -v field="$1" -v evict="$2" -v budget="$3" \
        '$1 == evict && $2 == budget { print $field; exit }' "$work/out"
}

# check_eviction_on DEVICE KINDS: what follows from the definitions, and the same answers as those of
# a model that reads and evicts by itself.
check_eviction_on() {
    local kind answers
    expect 0 '' eval eviction --model "$data/needle.gguf" --length 512 --questions 2 --seeds 1 \
        --seed 3 --budget 128,1024 --evict "$2" --device "$1" --json "$work/eviction.json"
    [ "$(eviction_of 6 full -)" = 0.0000 ] || fail "eviction on $1: full differs from itself"
    holds 'some > 0' "some=$(eviction_of 6 quest 128)" ||
        fail "eviction on $1: quest with a budget of 128 has no error"
    for kind in ${2//,/ }; do
        [ "$(eviction_of 3 "$kind" 128) $(eviction_of 3 "$kind" 1024)" = '128.0 512.0' ] ||
            fail "eviction on $1: $kind does not keep 128 of 512 tokens, or not all"
        [ "$(eviction_of 6 "$kind" 1024) $(eviction_of 12 "$kind" 1024)" = '0.0000 0.0000' ] ||
            fail "eviction on $1: $kind within its budget has an error"
        holds 'e > 0 && e < 1.5 && cosine < 1 && single > 0' "e=$(eviction_of 6 "$kind" 128)" \
            "cosine=$(eviction_of 8 "$kind" 128)" "single=$(eviction_of 12 "$kind" 128)" ||
            fail "eviction on $1: $kind with a budget of 128 has no error, or an absurd one"
    done
    answers=$(for kind in full ${2//,/ }; do
        awk -v evict="$kind" '$1 == evict && $2 != 1024 { print $1, $10 }' "$work/out"
    done)
    expect 0 '' eval passkey --model "$data/needle.gguf" --length 512 --keys 2 --texts 1 --seed 3 \
        --budget 128 --select full --evict "$2" --device "$1"
    [ "$(awk 'NR > 2 { print $1, $7 }' "$work/out")" = "$answers" ] ||
        fail "eviction on $1: other answers than in passkey"
}

check_eviction() {
    local wrong=(eval eviction --model "$data/needle.gguf") word
    succeeds 'examples:' eval eviction --help
    usage_error '^tamis eval eviction: --model: is missing' eval eviction
    usage_error '^tamis eval eviction: --length 87: 4 keys need at least 176$' \
        "${wrong[@]}" --length 87
    usage_error '^tamis eval eviction: --evict frob: there is no eviction' \
        "${wrong[@]}" --evict all,frob
    usage_error '^tamis eval eviction: --evict andpro: window 30 is not a multiple' \
        "${wrong[@]}" --evict-window 30
    usage_error '^tamis eval eviction: --seeds 65: must be from [0-9]+ to 64$' "${wrong[@]}" --seeds 65
    expect 2 '^tamis eval eviction: quest is left out: budget 20 is 1 pages' \
        "${wrong[@]}" --budget 20
    expect 1 "^tamis eval eviction: $work/nothing: cannot be read: " "${wrong[@]}" \
        --device reference --length 512 --text "$work/nothing"

    check_eviction_on reference streaming,tova,andpro
    for word in tool version device model seed seeds texts questions length dtype rows evict budget \
        tokens_kept bytes_returned output_error output_error_spread output_cosine \
        output_cosine_spread passkey_accuracy passkey_accuracy_spread passkey_ci95 passkey_single passkey_single_ci95 error_single \
        policy_us policy_us_per_step layers layer; do
        grep -q "\"$word\":" "$work/eviction.json" || fail "eviction.json lacks $word"
    done
    [ "$fast" = reference ] || check_eviction_on "$fast" "${kinds// /,}"
    [ "$(grep -c '"evict"' "$work/eviction.json")" -ge 9 ] || fail 'eviction.json: rows are missing'
    # Seeds give other texts: the spread over two is not 0, that of one is.
    expect 0 '' "${wrong[@]}" --length 400 --questions 1 --seeds 2 --budget 128 --evict streaming \
        --evict-sinks 8 --device "$fast" --json "$work/eviction.json"
    holds 'spread > 0' "spread=$(eviction_of 7 streaming 128)" ||
        fail 'eviction: two seeds without a spread'
    grep -qE '"evict_sinks":[[:space:]]*8' "$work/eviction.json" ||
        fail 'eviction.json lacks --evict-sinks'
}

check_eviction
check_recall
check_perplexity
check_not_finite
check_perplexity_value

# No OpenCL platform: the reference serves where it is named, else the reasons are told.
mkdir "$work/vendors"
export OCL_ICD_VENDORS=$work/vendors
reasons='not cuda: (no CUDA driver: |built without CUDA).*'
reasons+='not opencl: (no OpenCL platform found|built without OpenCL)'
for command in "run --model $data/needle.gguf --prompt x" 'bench attention --shape llama3-8b' \
    'bench decode --context 200' 'bench layers' "bench model --model $data/needle.gguf" "bench throughput --model $data/needle.gguf" \
    "eval passkey --model $data/needle.gguf" "eval recall --model $data/needle.gguf" \
    "eval perplexity --model $data/needle.gguf" "eval eviction --model $data/needle.gguf"; do
    # shellcheck disable=SC2086 # a list of words
    expect 1 "^tamis [a-z]+.*: no CUDA or OpenCL device can be used; --device reference .*$reasons" $command
done
expect 0 '' "${model[@]}" --prompt 'And the' --tokens 2
TAMIS_DEVICE=reference expect 0 '' run --model "$data/needle.gguf" --prompt 'And the' --tokens 2
expect 1 '^tamis run: .*opencl' run --model "$data/needle.gguf" --prompt x --device opencl

[ "$failures" -eq 0 ] || exit 1
if [ "$fast" = reference ]; then
    echo 'cli: opencl:0 is not usable: all else passed'
    exit 77
fi
echo 'cli: all passed'
