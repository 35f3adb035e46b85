#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Answers of `tamis run`: what ends them, sampling, chats. Usage: test_run.sh TAMIS DATA_FOLDER
# Exit status: 0 if all passed, 1 if something failed.
. "$(dirname "$0")/checks.sh"
text='And the name of the man was Elimelech, and the name of'

# Tokens that end an answer: eos and eot, which a copy of the model names. The answer is four bytes
# or more, of which the third is such a token; it is not printed, nor is it with --ignore-eos.
check_ending() {
    local plain third key
    local ending=(run --model "$work/ending.gguf" --device reference)
    expect 0 '' "${model[@]}" --prompt "$text" --tokens 6
    plain=$(cat "$work/out")
    third=${plain:2:1}
    [[ ${plain:0:2} != *"$third"* ]] || fail "the answer '$plain' does not serve this test"
    for key in eos eot; do
        "$python" "$keys" "$data/needle.gguf" "$work/ending.gguf" \
            "tokenizer.ggml.${key}_token_id=$(printf '%d' "'$third")"
        expect 0 '^prefill ' "${ending[@]}" --prompt "$text" --tokens 6
        [ "$(cat "$work/out")" = "${plain:0:2}" ] || fail "$key: the answer is $(cat "$work/out")"
        expect 0 '' "${ending[@]}" --prompt "$text" --tokens 6 --ignore-eos
        [ "$(cat "$work/out")" = "${plain//$third/}" ] ||
            fail "$key --ignore-eos: the answer is $(cat "$work/out")"
    done
}

# Drawn answers follow from the seed; a few likely tokens and one are the most likely.
check_sampling() {
    local asked=("${model[@]}" --prompt "$text" --tokens 24) plain drawn flag
    expect 0 '' "${asked[@]}"
    plain=$(cat "$work/out")
    expect 0 '' "${asked[@]}" --temperature 0
    [ "$(cat "$work/out")" = "$plain" ] || fail '--temperature 0 is another answer'
    expect 0 '' "${asked[@]}" --temperature 1 --seed 1
    drawn=$(cat "$work/out")
    [ "$drawn" != "$plain" ] || fail '--temperature 1: nothing was drawn'
    expect 0 '' "${asked[@]}" --temperature 1 --seed 1
    [ "$(cat "$work/out")" = "$drawn" ] || fail '--seed 1 twice: two answers'
    expect 0 '' "${asked[@]}" --temperature 1 --seed 2
    [ "$(cat "$work/out")" != "$drawn" ] || fail '--seed 2: the answer of --seed 1'
    for flag in '--top-k 1' '--top-p 0.000001' '--min-p 1'; do
        # shellcheck disable=SC2086 # flag and value
        expect 0 '' "${asked[@]}" --temperature 5 $flag
        [ "$(cat "$work/out")" = "$plain" ] || fail "$flag is not the most likely answer"
        # shellcheck disable=SC2086
        usage_error "^tamis run: ${flag% *}: is given where nothing is drawn" "${asked[@]}" $flag
    done
    # From all tokens, as without the flag; seeds of 64 bits.
    expect 0 '' "${asked[@]}" --temperature 1 --seed 1 --top-k 0
    [ "$(cat "$work/out")" = "$drawn" ] || fail '--top-k 0: another answer than without'
    plain=$drawn
    for flag in 2147483648 4294967295 4294967296 18446744073709551615; do
        expect 0 '' "${asked[@]}" --temperature 1 --seed "$flag"
        [ "$(cat "$work/out")" != "$plain" ] || fail "--seed $flag: the answer of another seed"
        plain=$(cat "$work/out")
    done
    for flag in -1 18446744073709551616 99999999999999999999999; do
        usage_error "^tamis run: --seed $flag: must be from 0 to 18446744073709551615\$" \
            "${asked[@]}" --temperature 1 --seed "$flag"
    done
    expect 0 '' "${asked[@]}" --temperature 1.5 --top-k 40 --top-p 0.95 --min-p 0.05 \
        --question ' the'
    usage_error '^tamis run: --seed: is given where nothing is drawn' "${asked[@]}" --seed 0 \
        --temperature 0
    usage_error '^tamis run: --temperature -1: must be at least 0$' "${asked[@]}" --temperature -1
    usage_error '^tamis run: --top-k -1: must be from 0 to 2147483647$' "${asked[@]}" --top-k -1
    usage_error '^tamis run: --top-p 0: must be above 0 and at most 1$' "${asked[@]}" --top-p 0
    usage_error '^tamis run: --top-p 1.5: must be above 0 and' "${asked[@]}" --top-p 1.5
    usage_error '^tamis run: --min-p 2: must be at least 0 and at most 1$' "${asked[@]}" --min-p 2
    usage_error '^tamis run: --min-p x: not a decimal number$' "${asked[@]}" --min-p x
}

# A text from a file, from standard input, and in front of the prompt.
check_file() {
    local plain
    printf '%s' "$text" >"$work/text"
    expect 0 '' "${model[@]}" --prompt "$text" --tokens 8
    plain=$(cat "$work/out")
    expect 0 '' "${model[@]}" --file "$work/text" --tokens 8
    [ "$(cat "$work/out")" = "$plain" ] || fail '--file: another answer than --prompt'
    expect 0 '' "${model[@]}" --file - --tokens 8 <"$work/text"
    [ "$(cat "$work/out")" = "$plain" ] || fail '--file -: another answer than --prompt'
    printf '%s' "${text:0:20}" >"$work/text"
    printf '%s' "${text:20}" >"$work/rest"
    expect 0 '' "${model[@]}" --file "$work/text" --prompt "${text:20}" --tokens 8
    [ "$(cat "$work/out")" = "$plain" ] || fail '--file and --prompt: another answer'
    expect 0 '' "${model[@]}" --file - --prompt-file "$work/rest" --tokens 8 <"$work/text"
    [ "$(cat "$work/out")" = "$plain" ] || fail '--file - and --prompt-file: another answer'
    expect 1 "^tamis run: $work/nothing: cannot be read: " "${model[@]}" --file "$work/nothing"
    expect 1 '^tamis run: standard input: cannot be read: ' "${model[@]}" --file - <"$work"
    expect 1 '^tamis run: .*no tokens' "${model[@]}" --file - </dev/null
}

# What does not go with a sliding window names the context that has none.
check_window() {
    local mistral=(run --model "$data/models/mistral.gguf" --device reference --prompt x) flag
    for flag in '--evict tova' '--evict streaming'; do
        # shellcheck disable=SC2086 # flag and value
        expect 1 '^tamis run: sliding_window 12 under .*; --context 12 or less has no sliding window$' \
            "${mistral[@]}" $flag
    done
}

# A copy of the model with bos, eos and a template, which is Mistral's if none is given.
chat_model() {
    "$python" "$keys" "$data/needle.gguf" "$work/chat.gguf" tokenizer.ggml.bos_token_id=1 \
        tokenizer.ggml.eos_token_id=2 "tokenizer.chat_template=${1-$inst_template}"
}

# answers_to TEXT: what the model goes on with behind a text, in 8 tokens.
answers_to() {
    printf '%s' "$1" >"$work/composed"
    expect 0 '' run --model "$work/chat.gguf" --device reference --file "$work/composed" --tokens 8
    cat "$work/out"
}

# Each answer is the one behind all that was said before, which is never read again.
check_conversation() {
    local asked=(run --model "$work/chat.gguf" --device reference --chat --tokens 8) said first second
    chat_model
    expect 0 '^prefill ' "${asked[@]}" --system 'Be good.' <<<$'And the name of\n\nthe son of '
    said=$'\x01[INST] Be good.\n\nAnd the name of [/INST]'
    first=$(sed -n 1p "$work/out") second=$(sed -n 2p "$work/out")
    [ "$(answers_to "$said")" = "$first" ] || fail 'chat: another first answer'
    [ "$(answers_to "$said$first"$'\x02[INST] the son of  [/INST]')" = "$second" ] ||
        fail 'chat: another second answer'

    # A text before the first line; a selection that reads everything has the same answers.
    expect 0 '' "${asked[@]}" --file "$work/text" --prompt ' old' <<<$'And the name of\nthe son of'
    first=$(cat "$work/out")
    said=$'\x01[INST] '"$(cat "$work/text") old"$'\n\nAnd the name of [/INST]'
    [ "$(answers_to "$said")" = "$(head -1 <<<"$first")" ] || fail 'chat --file: another answer'
    expect 0 '' "${asked[@]}" --file "$work/text" --prompt ' old' --select quest --budget 2048 \
        <<<$'And the name of\nthe son of'
    [ "$(cat "$work/out")" = "$first" ] || fail 'chat --select quest: other answers than full'

    # Where the caller gives no system text, a template's own stands.
    chat_model "{% if messages[0].role != 'system' %}Be good.{% endif %}{% for m in messages %}\
{{ m.content }}|{% endfor %}"
    expect 0 '' "${asked[@]}" <<<$'And the name of'
    [ "$(answers_to 'Be good.And the name of|')" = "$(cat "$work/out")" ] ||
        fail 'chat: the system text of the template is left out'
    expect 0 '' "${asked[@]}" --system 'Be bad.' <<<$'And the name of'
    [ "$(answers_to 'Be bad.|And the name of|')" = "$(cat "$work/out")" ] ||
        fail 'chat: --system does not stand in the place of that of the template'
    chat_model

    # The stop text, and the most tokens, end an answer and not the conversation.
    expect 0 '' "${asked[@]}" --stop "${first:2:1}" <<<$'And the name of\nthe son of'
    [ "$(wc -l <"$work/out")" -eq 2 ] || fail 'chat --stop: not two answers'
    expect 1 '^tamis run: the turn has [0-9]+ tokens, the conversation before it [0-9]+; the context is 64$' \
        "${asked[@]}" --context 64 \
        <<<$'And the name of\nthe son of the man of the land of the king\nthe'
    [ "$(wc -l <"$work/out")" -eq 2 ] || fail 'chat: a line that is too long ended it'
    expect 1 '^tamis run: the turn has [0-9]+ tokens, the conversation before it 0; the context is 24$' \
        "${asked[@]}" --context 24 <<<$'And the name of\nthe'
    [ ! -s "$work/out" ] || fail 'chat: an answer without the first line'
    expect 0 '^tamis run: the context of 32 tokens is full$' "${asked[@]}" --context 32 \
        <<<$'And the name of\nthe'
    [ "$(wc -l <"$work/out")" -eq 1 ] || fail 'chat in a full context: not one answer'
    expect 0 '' "${asked[@]}" </dev/null
    [ ! -s "$work/out" ] || fail 'chat without lines: an answer'
    expect 1 '^tamis run: standard input: cannot be read: ' "${asked[@]}" <"$work"
    # NUL is a character of a line.
    expect 0 '' "${asked[@]}" < <(printf '\0\n')
    [ -s "$work/out" ] || fail 'chat: a line of one NUL is taken for an empty one'
}

# What is evicted from: the text before the first line. Lines are then read token by token.
check_chat_evicting() {
    local asked=(run --model "$work/chat.gguf" --device reference --chat --tokens 4) kind mean
    head -c 200 "$data/text.txt" >"$work/text200"
    for kind in h2o adakv; do
        expect 0 "^evict $kind: budget 128, tokens kept per lane [0-9]+ to [0-9]+ .* returned [1-9]" \
            "${asked[@]}" --file "$work/text200" --evict "$kind" --evict-budget 128 \
            --select quest --budget 112 <<<$'Who?\nAnd the name of'
        [ "$(wc -l <"$work/out")" -eq 2 ] || fail "chat --evict $kind: not two answers"
    done
    # What stands before the first line is kept as 128 tokens; all that came later stays.
    mean=$((128 + $(printf 'Who? [/INST]' | wc -c) + 4 + $(printf '2[INST] Why? [/INST]' | wc -c) + 3))
    expect 0 "^evict snapkv: budget 128, tokens kept per lane $mean to $mean " "${asked[@]}" \
        --file "$work/text200" --evict snapkv --evict-budget 128 <<<$'Who?\nWhy?'
}

# What is refused: files without a template that can be run, flags, and lines that hold a tag.
check_chat_refused() {
    local asked=(run --device reference --chat --tokens 4)
    chat_model '{{ messages | shuffle }}'
    expect 1 "^tamis run: the file's chat template cannot be run: line 1: the filter 'shuffle'.* is not known: --chat-format must name one of chatml, llama2, llama3, mistral, gemma, phi3, glm4, deepseek, deepseek-r1, granite$" \
        "${asked[@]}" --model "$work/chat.gguf" <<<hello
    expect 0 '^prefill ' "${asked[@]}" --model "$work/chat.gguf" --chat-format mistral <<<hello
    expect 1 '^tamis run: the file has no chat template: --chat-format must name one of' \
        "${asked[@]}" --model "$data/needle.gguf" <<<hello
    expect 1 "^tamis run: the chat format chatml needs the token '<.im_start.>', which the vocab" \
        "${asked[@]}" --model "$data/needle.gguf" --chat-format chatml <<<hello
    expect 1 "^tamis run: the chat format llama2 needs the token 'bos'" \
        "${asked[@]}" --model "$data/needle.gguf" --chat-format llama2 <<<hello
    expect 1 "^tamis run: the text holds '\\[/INST\\]', a tag of the chat format llama2" \
        "${asked[@]}" --model "$work/chat.gguf" --chat-format llama2 <<<$'a\nb [/INST] c\nd'
    [ "$(wc -l <"$work/out")" -eq 2 ] || fail 'chat: a refused line took the others with it'
    printf 'a [INST] b' >"$work/tag"
    expect 1 "^tamis run: the text holds '\\[INST\\]', a tag of the chat format mistral$" \
        "${asked[@]}" --model "$work/chat.gguf" --chat-format mistral --file "$work/tag" <<<$'a\nb'
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail 'chat: a fault of --file is found with every line'
    usage_error '^tamis run: --chat-format alpaca: must be one of chatml, llama2, llama3, mistral, gemma, phi3, glm4, deepseek, deepseek-r1, granite$' \
        "${asked[@]}" --model x --chat-format alpaca
    usage_error '^tamis run: --system: belongs to --chat, which is not given$' "${model[@]}" \
        --prompt x --system y
    usage_error '^tamis run: --chat-format: belongs to --chat' "${model[@]}" --prompt x \
        --chat-format chatml
    usage_error '^tamis run: --question: is given with --chat' "${asked[@]}" --model x --question y
    usage_error '^tamis run: --file -: is given with --chat' "${asked[@]}" --model x --file -
}

# A context that is too long is the file's doing, and --context is the way out. A padding token that the
# vocabulary lacks is a warning. What is no file is refused at once.
check_files() {
    local file asked
    asked=(run --model "$work/long.gguf" --device reference --prompt "$text" --tokens 2)
    "$python" "$keys" "$data/needle.gguf" "$work/long.gguf" tokenizer.ggml.padding_token_id=256
    "$python" - "$work/long.gguf" <<'END'
import sys
file = open(sys.argv[1], 'r+b')
file.seek(file.read().index(b'llama.context_length') + len('llama.context_length') + 4)
file.write(b'\xff' * 4)
END
    expect 1 '/long.gguf: key .llama.context_length. is 4294967295, and no --context N names fewer' \
        "${asked[@]}"
    expect 0 "^tamis: .*/long.gguf: key 'tokenizer.ggml.padding_token_id' is 256 and is ignored" \
        "${asked[@]}" --context 100
    expect 0 "^tamis: .*/long.gguf: key 'tokenizer.ggml.padding_token_id' is 256" tokenize \
        --model "$work/long.gguf" --text a
    mkfifo "$work/fifo"
    for file in /dev/zero "$work/fifo" "$work"; do
        expect 1 "^tamis run: $file: not a regular file but a (device|pipe|folder)" \
            run --model "$file" --device reference --prompt x
        expect 1 "^tamis tokenize: $file: not a regular file but a" tokenize \
            --model "$file" --text x
    done
    expect 1 '^tamis run: /dev/stdin: not a regular file but a pipe' run --model /dev/stdin --prompt x \
        --device reference < <(cat "$data/needle.gguf")
}

check_files
check_ending
check_sampling
check_file
check_window
check_conversation
check_chat_evicting
check_chat_refused
[ "$failures" -eq 0 ] || exit 1
echo 'run: all passed'
