# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
# Sourced by demo.sh, test.sh, deb.sh, wheel.sh, gpu_compilers.sh, fetch_model.sh and llama_cpp.sh: installs Debian packages
# that are missing, builds, and shows how far it is.

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

# show_progress LOG: its last line, in place on a terminal, else once in 15 seconds.
show_progress() {
    local width every=15 begin='' end='\n'
    if [ -t 1 ]; then
        width=$(tput cols 2>/dev/null) every=0.5 begin='\r\033[K' end=''
    fi
    while sleep "$every" >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        # shellcheck disable=SC2059 # the formats are above
        printf "$begin%.$((${width:-100} - 1))s$end" "   $SECONDS s: $(tail -n 1 "$1")"
    done
}

# quietly COMMAND...: shows how far it is, and the output only if the command fails.
quietly() {
    local log shower status=0
    log=$(mktemp)
    show_progress "$log" &
    shower=$!
    "$@" >"$log" 2>&1 </dev/null || status=$?
    kill "$shower"
    wait "$shower" 2>/dev/null || true
    [ ! -t 1 ] || printf '\r\033[K'
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

# has_cuda_driver: whether CUDA kernels can run here, and are worth the minutes that nvcc takes.
has_cuda_driver() {
    PATH=$PATH:/usr/sbin:/sbin "${LDCONFIG:-ldconfig}" -p 2>/dev/null | grep -q 'libcuda\.so\.1 '
}

needed_to_build="cmake ninja-build gcc libc6-dev ocl-icd-opencl-dev libclblast1 libcjson-dev
    libhiredis-dev libmicrohttpd-dev libpcre2-dev libxxhash-dev pocl-opencl-icd"
needed_for_wheel="cmake ninja-build gcc libc6-dev ocl-icd-opencl-dev libhiredis-dev libpcre2-dev
    libxxhash-dev python3-venv"
needed_to_test="clang libclang-rt-dev g++ libcmocka-dev oclgrind python3-cffi python3-jinja2
    python3-matplotlib python3-numpy python3-pip python3-pytest python3-venv mesa-opencl-icd pkgconf dpkg-dev file
    redis-tools intel-opencl-icd rocm-device-libs fish zsh chromium chromium-driver curl"
# Of tools/gpu_compilers.sh: to build its list of programs, and the compilers. PoCL brings clang-15.
needed_for_programs="g++ libcmocka-dev python3"
needed_for_gpu_compilers="clang-15 intel-opencl-icd libclc-15 rocm-device-libs"
needed_to_fetch=python3-pip
