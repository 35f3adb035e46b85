#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Measures decode attention of tamis beside that of ggml's CPU backend, in turn, round after round,
# and prints a table. ggml is that in the source of PyPI's package llama-cpp-python (77 MB), 0.3.36
# or newer; it is kept and built in the user's cache folder, $XDG_CACHE_HOME or ~/.cache, under
# tamis/ggml. What is measured how is said in tools/compare_ggml/attention.c and by
# `tamis bench attention --help`. ggml reads two layouts of the same cache: tokens, where the KV
# heads of a token lie side by side, as llama.cpp keeps its cache, and heads, where the tokens of a
# KV head do. The table names the faster one.
#
# Usage: compare_ggml.sh [OPTIONS]
#   --tamis FILE      the program (default build/tamis of this tree)
#   --shapes S[,S]    llama2-7b, llama3-8b (default both)
#   --dtypes D[,D]    element types of the cache: f16, q8 (ggml's q8_0), k8v4 (ggml's q8_0 for K,
#                     q4_1 for V), q4 (q4_1 for both) (default all)
#   --context N       tokens in the cache (default 32768)
#   --budget N        tokens of a lane that quest reads (default 2048)
#   --threads N       of both (default 2)
#   --rounds N        (default 5)
#   --samples N       of each measurement in each round (default 3)
#   --version V       of llama-cpp-python (default the newest)
#   --folder DIR      keeps ggml's source and build in place of the cache folder
#   --out DIR         keeps what each measurement printed, a file each
# CMAKE_BUILD_PARALLEL_LEVEL is how many jobs build (default one for each processor).
# Exit status: 0 the table was printed; 1 something is missing or failed, stderr says what; 2 wrong
# usage; 3 the registry cannot be reached, or there is no pip to ask it with.
set -eu
tools=$(cd "$(dirname "$0")" && pwd)
. "$tools/packages.sh"

package=llama-cpp-python
tamis=$tools/../build/tamis
shapes=llama2-7b,llama3-8b dtypes=f16,q8,k8v4,q4
context=32768 budget=2048 threads=2 rounds=5 samples=3
version='' folder='' out=''

exec 3>&1 1>&2 # the table alone goes to stdout

fail() {
    printf 'compare_ggml.sh: %s\n' "$*"
    exit 1
}

refuse() {
    printf 'compare_ggml.sh: %s\n' "$*"
    exit 2
}

unreachable() {
    printf 'compare_ggml.sh: %s\n' "$*"
    exit 3
}

# is_number FLAG VALUE MOST
is_number() {
    case $2 in
    '' | 0* | *[!0-9]* | ????????*) refuse "$1 $2: must be a whole number from 1 to $3" ;;
    esac
    [ "$2" -le "$3" ] || refuse "$1 $2: must be a whole number from 1 to $3"
}

# is_list FLAG VALUE WORD...: whether the value names some of the words.
is_list() {
    local flag=$1 value=$2 word
    shift 2
    case $value in
    '' | ,* | *, | *,,*) refuse "$flag $value: must name some of $*, with a comma between" ;;
    esac
    for word in ${value//,/ }; do
        case " $* " in
        *" $word "*) ;;
        *) refuse "$flag $value: $word: must be one of $*" ;;
        esac
    done
}

while [ $# -gt 0 ]; do
    case $1 in
    --help | -h)
        sed -n '3,26s/^# \{0,1\}//p' "$0" >&3
        exit 0
        ;;
    --tamis | --shapes | --dtypes | --context | --budget | --threads | --rounds | --samples | \
        --version | --folder | --out)
        [ -n "${2-}" ] || refuse "$1: takes a value (see --help)"
        printf -v "${1#--}" %s "$2"
        shift 2
        ;;
    *) refuse "$1: no such option (see --help)" ;;
    esac
done
is_list --shapes "$shapes" llama2-7b llama3-8b
is_list --dtypes "$dtypes" f16 q8 k8v4 q4
is_number --context "$context" 1048576
is_number --budget "$budget" "$context"
is_number --threads "$threads" 512
is_number --rounds "$rounds" 1000
is_number --samples "$samples" 1000
case $version in
*[!0-9A-Za-z.]* | .*) refuse "--version $version: is no version" ;;
esac
if [ ! -f "$tamis" ] || [ ! -x "$tamis" ]; then
    fail "$tamis: is no program; build it, or say --tamis FILE"
fi
for needed in cmake cc c++ python3 tar; do
    command -v "$needed" >/dev/null || fail "$needed: is not here, it is needed"
done

# As the XDG base directory specification wants it: a relative folder does not count.
if [ -z "$folder" ]; then
    case ${XDG_CACHE_HOME-} in
    /*) folder=$XDG_CACHE_HOME/tamis/ggml ;;
    *)
        case ${HOME-} in
        /*) folder=$HOME/.cache/tamis/ggml ;;
        *) fail 'neither XDG_CACHE_HOME nor HOME names a folder; say --folder DIR' ;;
        esac
        ;;
    esac
fi

# ---- ggml ----------------------------------------------------------------------------------------

# step COMMAND...: what outlives it for seconds, which shows progress, keeps no lock and no pipe.
step() {
    quietly "$@" 3>&- 9>&-
}

have_pip() {
    python3 -c 'import pip' 2>/dev/null
}

# The newest version of the package; without a registry, of those in the folder.
newest() {
    local found=''
    ! have_pip || found=$(python3 -m pip --disable-pip-version-check index versions "$package" \
        2>/dev/null | sed -n '1s/^.* (\([0-9A-Za-z.]*\))$/\1/p')
    [ -n "$found" ] || found=$(find "$folder" -mindepth 1 -maxdepth 1 -type d -name '[0-9]*' \
        -printf '%f\n' | sort -V | tail -n 1)
    printf '%s' "$found"
}

# The package's metadata takes a build system, which pip gets too; nothing of it is built.
fetch() {
    local archive
    have_pip || unreachable 'takes python3 with pip (Debian: python3-pip), which is not here'
    say "fetching the source of $package $version from PyPI (77 MB)"
    step python3 -m pip download --no-deps --no-binary "$package" --no-cache-dir \
        --disable-pip-version-check --retries 2 --dest "$work" "$package==$version" ||
        unreachable "pip did not get the source of $package $version"
    archive=$(find "$work" -maxdepth 1 -name '*.tar.gz')
    [ -f "$archive" ] || fail "what came for $package $version is no archive of its source"
    mkdir -p "$work/source"
    tar -xzf "$archive" -C "$work/source" --strip-components=3 --wildcards \
        '*/vendor/llama.cpp/ggml' || fail "what came for $package $version has no ggml"
    # What ggml installs is made from it, but the package leaves it out.
    [ -e "$work/source/ggml/ggml.pc.in" ] || : >"$work/source/ggml/ggml.pc.in"
    mkdir -p "$folder/$version"
    rm -rf "$folder/$version/source"
    mv "$work/source/ggml" "$folder/$version/source"
}

mkdir -p "$folder" || fail "$folder: cannot be made"
folder=$(cd "$folder" && pwd)
exec 9>"$folder/.lock" || fail "$folder: cannot be written"
flock --nonblock 9 || {
    say 'waiting for another run that builds or measures'
    flock 9
}
rm -rf "$folder"/.run.* # of runs that were killed: none runs now
work=$(mktemp -d "$folder/.run.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

[ -n "$version" ] || version=$(newest)
[ -n "$version" ] || unreachable "the newest version of $package cannot be asked for"
source=$folder/$version/source build=$folder/$version/build
[ -f "$source/CMakeLists.txt" ] || fetch

export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
say "building ggml of $package $version"
step cmake -S "$source" -B "$build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF ||
    fail "$source: CMake does not take it"
step cmake --build "$build" --target ggml-base ggml-cpu || fail "$source: does not build"
step cc -std=c11 -O2 -Wall -Wextra -isystem "$source/include" \
    "$tools/compare_ggml/attention.c" -o "$work/attention" "$build/src/libggml-cpu.a" \
    "$build/src/libggml-base.a" -lstdc++ -lm -pthread -ldl ||
    fail "tools/compare_ggml/attention.c does not build with ggml of $package $version"

# ---- The measurement -----------------------------------------------------------------------------

[ -n "$out" ] || out=$work/out
mkdir -p "$out" || fail "$out: cannot be made"

# ggml FILE SHAPE DTYPE
ggml() {
    local dtype=$3
    case $dtype in
    q8) dtype=q8_0 ;;
    k8v4) dtype=q8_0/q4_1 ;;
    q4) dtype=q4_1 ;;
    esac
    "$work/attention" --shape "$2" --dtype "$dtype" --context "$context" --threads "$threads" \
        --samples "$samples" >"$1.txt" || fail "$2, $3: ggml was not measured"
    sed '1d' "$1.txt"
}

# ours FILE SHAPE DTYPE
ours() {
    POCL_MAX_PTHREAD_COUNT=$threads "$tamis" bench attention --shape "$2" --context "$context" \
        --dtype "$3" --select full,quest --budget "$budget" --repeat "$samples" \
        --json "$1.json" >"$work/log" 2>&1 || {
        cat "$work/log"
        fail "$2, $3: $tamis was not measured"
    }
    grep -E '^[0-9]+ +(full|quest) ' "$work/log" || true
}

files=()
for ((round = 1; round <= rounds; round++)); do
    for shape in ${shapes//,/ }; do
        for dtype in ${dtypes//,/ }; do
            file=$out/$shape.$dtype.$round
            say "round $round of $rounds: $shape, $dtype"
            if [ $((round % 2)) = 1 ]; then
                ggml "$file" "$shape" "$dtype"
                ours "$file" "$shape" "$dtype"
            else
                ours "$file" "$shape" "$dtype"
                ggml "$file" "$shape" "$dtype"
            fi
            files+=("$file")
        done
    done
done
printf 'ggml of %s %s\n\n' "$package" "$version" >&3
python3 "$tools/compare_ggml/table.py" "${files[@]}" >&3
