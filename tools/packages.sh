# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
# Sourced by demo.sh and test.sh: installs Debian packages that are missing, builds quietly.

say() {
    printf '== %s\n' "$*"
}

can_install() {
    command -v apt-get >/dev/null
}

# install_missing PACKAGE...: takes only what is not there; needs root or sudo for that alone.
install_missing() {
    local package missing=() as_root=()
    for package in "$@"; do
        dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q 'ok installed$' ||
            missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if ! can_install; then
        printf 'this is not Debian or Ubuntu; what corresponds to these packages must be there: %s\n' \
            "${missing[*]}"
        return 0
    fi
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            printf 'run as root, or install these packages first: %s\n' "${missing[*]}" >&2
            return 1
        fi
        as_root=(sudo)
    fi
    say "installing ${missing[*]}"
    quietly "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q update
    quietly "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -q -y --no-install-recommends install "${missing[@]}"
}

# each_minute TELL COMMAND...: runs the command; once a minute TELL prints how far it is.
each_minute() {
    local tell=$1 teller status=0
    shift
    # Not for longer than this shell lives, and no pipe stays open for the sake of a sleep.
    while sleep 55 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        say "$SECONDS s: $("$tell")"
    done &
    teller=$!
    "$@" || status=$?
    kill "$teller"
    return "$status"
}

# These two use quietly's log.
last_line() {
    tail -n 1 "$log"
}

to_log() {
    "$@" >"$log" 2>&1 </dev/null
}

# quietly COMMAND...: shows the output only if the command fails.
quietly() {
    local log status=0
    log=$(mktemp)
    each_minute last_line to_log "$@" || status=$?
    [ "$status" -eq 0 ] || tail -n 60 "$log" >&2
    rm -f "$log"
    return "$status"
}

# build FOLDER [CMAKE OPTION...]: configures and builds into a folder of the project's root.
build() {
    local folder=$1 generator=()
    shift
    [ -f "$folder/CMakeCache.txt" ] || generator=(-G Ninja)
    quietly cmake -S . -B "$folder" "${generator[@]}" "$@"
    quietly cmake --build "$folder" --parallel "$(nproc)"
}

needed_to_build="cmake ninja-build gcc libc6-dev ocl-icd-opencl-dev libclblast1 libcjson-dev
    libxxhash-dev pocl-opencl-icd"
needed_to_test="clang libclang-rt-dev g++ libcmocka-dev oclgrind python3-matplotlib
    python3-numpy python3-pip mesa-opencl-icd"
