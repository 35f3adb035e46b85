#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `tamis run --session`: what is said in two runs is what is said in one; what is refused, and that
# nothing is lost then. Usage: test_session.sh TAMIS DATA_FOLDER
# Exit status: 0 if all passed, 1 if something failed.
. "$(dirname "$0")/checks.sh"
kept=$work/kept

# Two lines in one run, and in a run each, under whatever decides what is read and kept.
check_conversation() {
    local asked=(run --model "$work/chat.gguf" --chat --tokens 8 --device) flags one device
    head -c 300 "$data/text.txt" >"$work/text"
    for device in "${devices[@]}"; do
        for flags in '' '--select quest --budget 64 --page-size 8 --cache-dtype q8' \
            '--evict streaming --evict-budget 100' '--evict h2o --evict-budget 100' \
            '--evict snapkv --evict-budget 100' '--evict tova --evict-budget 100 --evict-every 8'; do
            # shellcheck disable=SC2086 # flags and values
            expect 0 '' "${asked[@]}" "$device" $flags --file "$work/text" \
                <<<$'And the name of\nthe son of\nthe land'
            one=$(cat "$work/out")
            rm -f "$kept"
            # shellcheck disable=SC2086
            expect 0 '' "${asked[@]}" "$device" $flags --file "$work/text" --session "$kept" \
                <<<$'And the name of'
            mv "$work/out" "$work/first"
            # shellcheck disable=SC2086
            expect 0 '' "${asked[@]}" "$device" $flags --session "$kept" <<<$'the son of\nthe land'
            [ "$(cat "$work/first" "$work/out")" = "$one" ] ||
                fail "session $device $flags: other answers in two runs"
        done
    done
    [ "$(stat -c %a "$kept")" = 600 ] || fail "the session has mode $(stat -c %a "$kept")"
    [ "$(find "$work" -name 'kept*' | wc -l)" -eq 1 ] || fail 'something is left beside the session'
}

# A prompt behind an answer, without bos.
check_prompts() {
    local asked=("${model[@]}" --tokens 8) first other=(run --model "$data/needle.gguf" --tokens 8)
    rm -f "$kept"
    expect 0 '' "${asked[@]}" --prompt 'And the name of' --session "$kept"
    first=$(cat "$work/out")
    expect 0 '' "${asked[@]}" --prompt ', the son of' --question ' the' --session "$kept"
    mv "$work/out" "$work/second"
    expect 0 '' "${asked[@]}" --prompt "And the name of$first, the son of the"
    cmp -s "$work/out" "$work/second" || fail 'a prompt behind a session: another answer'
    # Read on one device, gone on with on another.
    cp "$kept" "$work/copy"
    expect 0 '' "${asked[@]}" --prompt ' and' --session "$kept"
    mv "$work/out" "$work/second"
    expect 0 '' "${other[@]}" --device "$fast" --prompt ' and' --session "$work/copy"
    cmp -s "$work/out" "$work/second" || fail "a session on $fast: another answer"
}

# unchanged PATTERN ARGUMENT...: the run fails, and the session is what it was.
unchanged() {
    cp "$kept" "$work/before"
    expect 1 "$@" --session "$kept"
    cmp -s "$kept" "$work/before" || fail "tamis ${*:2}: the session has changed"
    [ "$(find "$work" -name 'kept*' | wc -l)" -eq 1 ] || fail "tamis ${*:2}: something is left"
}

check_refused() {
    local asked=("${model[@]}" --tokens 4 --prompt x) size
    rm -f "$kept"
    expect 0 '' "${asked[@]}" --session "$kept"
    unchanged "kept: dtype is f16 in the saved sequence, f32 in the cache$" "${asked[@]}" \
        --cache-dtype f32
    unchanged 'kept: page_size is 16 in the saved sequence, 32 in the cache$' "${asked[@]}" \
        --page-size 32
    unchanged 'kept: planes is 0 in the saved sequence, 1 in the cache$' "${asked[@]}" \
        --evict snapkv
    unchanged 'kept: the [0-9]+ tokens of the saved sequence exceed max_context 3$' "${asked[@]}" \
        --context 3
    unchanged '^tamis run: prompt and question have 60 tokens behind the session.s 5, the context is 64$' \
        "${model[@]}" --prompt "$(head -c 60 "$data/text.txt")" --context 64
    unchanged "kept: the model's fingerprint is [0-9a-f]{32} in the saved sequence, [0-9a-f]{32} here$" \
        run --model "$work/other.gguf" --device reference --prompt x
    unchanged 'kept: holds no conversation, and goes on without --chat$' \
        run --model "$work/chat.gguf" --device reference --chat
    # Cut, damaged, no session at all, and with a later version.
    size=$(stat -c %s "$kept")
    cp "$kept" "$work/sound"
    for cut in 0 10 64 100 $((size / 2)) $((size - 1)); do
        head -c "$cut" "$work/sound" >"$kept"
        unchanged 'kept: (is no session of tamis run|ends within its sequence)$' "${asked[@]}"
    done
    for at in 20 30 80 $((size / 2)) $((size - 3)); do
        cp "$work/sound" "$kept"
        printf '\x5a' | dd of="$kept" bs=1 seek="$at" conv=notrunc status=none
        unchanged 'kept: (is damaged$|bytes [0-9]+ to [0-9]+ of a saved sequence have the checksum)' \
            "${asked[@]}"
    done
    cp "$work/sound" "$kept"
    printf '\x02' | dd of="$kept" bs=1 seek=8 conv=notrunc status=none
    unchanged 'kept: has version 2; this program reads 1$' "${asked[@]}"
    cp "$data/needle.gguf" "$kept"
    unchanged 'kept: is no session of tamis run$' "${asked[@]}"
    rm -f "$kept"
    usage_error '^tamis run: --session: is given with --chunk-tokens, whose chunks stand' \
        "${asked[@]}" --session "$kept" --file "$data/text.txt" --chunk-tokens 64
    expect 2 'nowhere/kept: cannot be written: No such file' "${asked[@]}" \
        --session "$work/nowhere/kept"
    expect 2 ': is no ordinary file' "${asked[@]}" --session "$work"
    usage_error '^tamis run: --session -' "${asked[@]}" --session -
}

check_conversations_refused() {
    local asked=(run --model "$work/chat.gguf" --device reference --tokens 4)
    rm -f "$kept"
    expect 0 '' "${asked[@]}" --chat --session "$kept" </dev/null
    [ ! -e "$kept" ] || fail 'a session of nothing was kept'
    expect 0 '' "${asked[@]}" --chat --session "$kept" <<<'hello'
    unchanged 'kept: holds a conversation, which goes on with --chat$' "${asked[@]}" --prompt x
    unchanged 'kept: holds a conversation, before which neither a text' "${asked[@]}" --chat --prompt x
    unchanged 'kept: holds a conversation, before which neither a text' "${asked[@]}" --chat \
        --system x
    unchanged 'kept: its conversation has the form template, not mistral$' "${asked[@]}" --chat \
        --chat-format mistral
}

# A full disk, as far as a process can have one: the file is as it was.
check_full() {
    local asked=("${model[@]}" --tokens 4)
    rm -f "$kept"
    expect 0 '' "${asked[@]}" --prompt x --session "$kept"
    (
        trap '' XFSZ
        ulimit -f 32
        unchanged 'kept: cannot be written: File too large$' "${asked[@]}" \
            --prompt "$(head -c 400 "$data/text.txt")"
        exit "$failures"
    ) || failures=$((failures + 1))
}

"$python" "$keys" "$data/needle.gguf" "$work/chat.gguf" tokenizer.ggml.bos_token_id=1 \
    tokenizer.ggml.eos_token_id=2 "tokenizer.chat_template=$inst_template"
cp "$data/needle.gguf" "$work/other.gguf"
printf '\x11' | dd of="$work/other.gguf" bs=1 conv=notrunc status=none \
    seek=$(($(stat -c %s "$work/other.gguf") - 4))
check_conversation
check_prompts
check_refused
check_conversations_refused
check_full
[ "$failures" -eq 0 ] || exit 1
echo 'session: all passed'
