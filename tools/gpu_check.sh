#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Everything that a GPU machine is asked for, with no network, in one call or in several:
#   gpu_check.sh OUT [OPTIONS]       builds, tests, measures; OUT/gpu_check.json, .md and .log
#   gpu_check.sh --list-stages       what it does in which order, and for how long
#   gpu_check.sh --fetch FOLDER      on a Debian machine with network: the packages for --deb
# See usage() for the options; the stages are in gpu_stages.sh. What a stage gave is in OUT before
# the next one begins, so a call that is cut leaves all that was done, and --resume goes on from
# there. Exit status: 0 if no required stage has failed, 1 if one has, 2 for a wrong command line.
set -u
# What a build needs beside a C and a C++ compiler, cmake, ninja and nvcc. Without libcjson there is
# no command line, without libcmocka there are no tests, without the rest no OpenCL backend; libclblast1 is opened at run time.
packages="libcjson-dev libcjson1 libcmocka-dev libcmocka0 opencl-c-headers ocl-icd-opencl-dev
    ocl-icd-libopencl1 libclblast1 libxxhash-dev libxxhash0"

usage() {
    cat <<'END'
usage: gpu_check.sh OUT [OPTIONS]
       gpu_check.sh --list-stages [--deb FOLDER] [--build FOLDER]
       gpu_check.sh --fetch FOLDER   download the packages that --deb takes, then end
  --stages A,B     only these: names, or what stands before a slash in them (headline, bench)
  --resume FOLDER  go on from an earlier call's OUT, which may be this OUT: its results are kept,
                   and what passed there is not run again unless --stages names it
  --seconds N      end within so many seconds (default 560); what has no time left is not run
  --build FOLDER   a finished build to test; default: build into build-gpu/ of the tree
  --deb FOLDER     *.deb files to unpack beside the system and build with
  --device ID      default cuda:0
  --commit HASH    what the tree is, where git cannot say
  --dry-run        every stage over tiny shapes: whether all of it works, not how fast
FlashInfer is measured where python3 can import it (PYTHONPATH).
END
}

wrong() {
    printf 'gpu_check.sh: %s\n' "$1" >&2
    exit 2
}

fetch() {
    mkdir -p "$1" && cd "$1" || exit 1
    # shellcheck disable=SC2086 # a list of words
    apt-get download $packages || exit 1
    ls -l -- *.deb
}

out='' seconds=560 given='' deb='' device=cuda:0 commit='' dry=0 chosen='' earlier='' listing=0
while [ $# -gt 0 ]; do
    case $1 in
    --help) usage && exit 0 ;;
    --dry-run) dry=1 && shift && continue ;;
    --list-stages) listing=1 && shift && continue ;;
    --fetch | --seconds | --build | --deb | --device | --commit | --stages | --resume)
        [ $# -gt 1 ] || wrong "$1: needs a value"
        ;;
    -*) wrong "$1: unknown option" ;;
    *)
        [ -z "$out" ] || wrong "$1: one folder is enough"
        out=$1 && shift && continue
        ;;
    esac
    case $1 in
    --fetch) fetch "$2" && exit 0 ;;
    --seconds) seconds=$2 ;;
    --build) given=$2 ;;
    --deb) deb=$2 ;;
    --device) device=$2 ;;
    --commit) commit=$2 ;;
    --stages) chosen=$2 ;;
    --resume) earlier=$2 ;;
    esac
    shift 2
done
[ -n "$out" ] || [ $listing = 1 ] ||
    wrong 'the folder for the results is missing; --help shows the usage'
[[ "$seconds" =~ ^[1-9][0-9]{0,5}$ ]] || wrong "--seconds $seconds: not a number from 1 on"
[ -z "$given" ] || given=$(cd "$given" 2>/dev/null && pwd) || wrong '--build: no such folder'
[ -z "$deb" ] || deb=$(cd "$deb" 2>/dev/null && pwd) || wrong '--deb: no such folder'
[ -z "$earlier" ] || [ -f "$earlier/gpu_check.json" ] ||
    wrong "--resume $earlier: there is no gpu_check.json"

start=$(date +%s)
root=$(cd "$(dirname "$0")/.." && pwd)
build=${given:-$root/build-gpu}
prefix=$root/build-gpu/packages # where it stays, since the build keeps its paths
check=$build/tests/ops/tamis-check
work=$(mktemp -d)
mkdir "$work/stages"
trap 'rm -rf "$work"' EXIT

# ---- The list -----------------------------------------------------------------------------------

# gpu_stages.sh names every stage by `stage`, whose meaning is the phase: `list` notes it; `new`
# runs what has no result yet, `again` what had one that is no pass.
phase=list
names=()
declare -A needs estimates numbers states ran
total=0

list_stage() {
    needs[$1]=$2
    estimates[$1]=$3
    names+=("$1")
    numbers[$1]=$(printf '%03d' ${#names[@]})
    total=$((total + $3))
    printf '%s|%s|%s\n' "$1" "$2" "$3" >>"$work/plan"
}

# stage NAME required|optional SECONDS COMMAND...: SECONDS are what it should take on an H200. In
# COMMAND @json stands for the stage's own JSON file. 77 is "nothing to run".
stage() {
    case $phase in
    list) list_stage "$@" ;;
    *) if is_due "$1"; then run_stage "$@"; fi ;;
    esac
}

# Whether --stages names it: alone, or by its group.
is_chosen() {
    local word
    for word in ${chosen//,/ }; do
        [[ "$1" == "$word" || "$1" == "$word"/* ]] && return 0
    done
    return 1
}

# The machine may be a fresh one: what others build on is looked after in every call.
is_due() {
    if [ -n "${ran[$1]:-}" ]; then
        return 1
    elif [[ "$1" =~ ^(packages|build|device)$ ]]; then
        [ $phase = new ]
        return
    elif [ -n "$chosen" ]; then
        [ $phase = new ] && is_chosen "$1"
        return
    fi
    case ${states[$1]:-not run} in
    passed) return 1 ;;
    'not run' | running) [ $phase = new ] ;;
    *) [ $phase = again ] ;;
    esac
}

# shellcheck source=tools/gpu_stages.sh
. "$root/tools/gpu_stages.sh"
all_stages
if [ $listing = 1 ]; then
    for name in "${names[@]}"; do
        printf '%-36s %-8s %4s s\n' "$name" "${needs[$name]}" "${estimates[$name]}"
    done
    printf '%-36s %-8s %4s s on an H200\n' "${#names[@]} stages" '' "$total"
    exit 0
fi
for word in ${chosen//,/ }; do
    for name in "${names[@]}"; do
        [[ "$name" == "$word" || "$name" == "$word"/* ]] && continue 2
    done
    wrong "--stages $word: no such stage; --list-stages shows them"
done

# ---- What the call begins with ------------------------------------------------------------------

if [ -z "$commit" ]; then
    commit=$(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)
    [ -z "$(git -C "$root" status --porcelain 2>/dev/null)" ] || commit=$commit+changes
fi
if [ -n "$earlier" ]; then
    cp "$earlier/gpu_check.json" "$work/earlier.json" || exit 1
    [ ! -f "$earlier/gpu_check.log" ] || cp "$earlier/gpu_check.log" "$work/log"
    said=$(python3 "$root/tools/gpu_report.py" --states "$work/earlier.json") ||
        wrong "--resume $earlier: gpu_check.json cannot be read"
    while IFS='=' read -r name state; do
        states[$name]=$state
    done <<<"$said"
    for value in "commit:$commit" "device:$device" "dry_run:$dry"; do
        name=${value%%:*}
        [ "${states[/$name]}" = "${value#*:}" ] ||
            wrong "--resume $earlier: there $name is ${states[/$name]}, not ${value#*:}"
    done
fi
mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd)
cat "$work/log" >"$out/gpu_check.log" 2>/dev/null
[ -d /usr/local/cuda/bin ] && PATH=$PATH:/usr/local/cuda/bin
export root build prefix deb check device work dry
export LD_LIBRARY_PATH=$build:$prefix/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
[ -z "$deb" ] || export CMAKE_PREFIX_PATH=$prefix/usr
find_cublas
gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null |
    head -n 1)
cat >"$work/header" <<END
date=$(date -u +%Y-%m-%dT%H:%M:%SZ)
commit=$commit
device_id=$device
machine=$gpu
nvcc=$(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
driver_library=${TAMIS_CUDA_DRIVER:-}
cublas=$cublas
limit=$seconds
dry_run=$dry
END

# ---- Running ------------------------------------------------------------------------------------

# What a stage leaves is in $work/stages/NNN.*: .meta (name=value lines), .log, .clocks, and .json
# if it wrote one.
here=''  # the files of the last stage begun
broken=0 # 1: the results could not be written

report() {
    printf 'seconds=%s\ncomplete=%s\n' $(($(date +%s) - start)) "$1" >"$work/end"
    python3 -S "$root/tools/gpu_report.py" "$work" "$out" || broken=1
}

# note NAME=VALUE...: the stage's .meta, whole at once.
note() {
    printf '%s\n' "$@" >"$here.new" && mv "$here.new" "$here.meta"
}

# Clocks while a stage measures: "SM MHz, memory MHz" four times a second.
watch_clocks() {
    command -v nvidia-smi >/dev/null || return 0
    nvidia-smi --query-gpu=clocks.sm,clocks.mem --format=csv,noheader,nounits -lms 250 \
        >"$here.clocks" 2>/dev/null &
    watcher=$!
}

run_stage() {
    local name=$1 estimate=$3 left limit rc=0 began state watcher='' squeezed=0
    shift 3
    here=$work/stages/${numbers[$name]}
    left=$((start + seconds - $(date +%s) - 8))
    limit=$((3 * estimate > 60 ? 3 * estimate : 60))
    [ $dry = 0 ] || estimate=2
    [ "$limit" -le "$left" ] || { limit=$left squeezed=1; }
    if [ "$estimate" -gt "$left" ]; then
        echo "$estimate s are not left" >"$here.log"
        note "name=$name" "state=not run"
        return
    fi
    began=$(date +%s)
    : >"$here.log"
    printf '%s\n' "== $name" >>"$out/gpu_check.log"
    note "name=$name" state=running "limit=$limit"
    report 0
    case $name in headline/* | bench/* | overlap/* | opencl/* | peers/*) watch_clocks ;; esac
    timeout -k 5 "$limit" bash -c '"$@"' stage "${@/#@json/$here.json}" >"$here.log" 2>&1 &
    wait $! || rc=$?
    [ -z "$watcher" ] || kill "$watcher" 2>/dev/null
    case $rc in
    0) state=passed ;;
    124 | 137) [ $squeezed = 1 ] && state='not run' || state=timeout ;;
    77) [ "${needs[$name]}" = required ] && state=failed || state=skipped ;;
    *) state=failed ;;
    esac
    if [ "$state" = passed ] && [[ " $* " == *' @json '* ]] &&
        ! python3 -m json.tool "$here.json" >/dev/null 2>&1; then
        echo 'no whole JSON was written' >>"$here.log"
        state=failed
    fi
    finish "$name" "$state" "$limit" "$rc" $(($(date +%s) - began))
}

# finish NAME STATE LIMIT RC SECONDS: of the stage under way.
finish() {
    note "name=$1" "state=$2" "limit=$3" "rc=$4" "seconds=$5"
    states[$1]=$2
    ran[$1]=1
    tail -c 200000 "$here.log" >>"$out/gpu_check.log"
    printf '%-8s %4ss of about %ss  %s\n' "$2" "$5" "${estimates[$1]}" "$1"
    report 0
}

# A call that is told to end says how far it came.
cut() {
    trap '' TERM INT
    # shellcheck disable=SC2046 # numbers
    kill $(jobs -p) 2>/dev/null
    wait
    if grep -q '^state=running$' "$here.meta" 2>/dev/null; then
        finish "$(sed -n 's/^name=//p' "$here.meta")" cut '' '' ''
    else
        report 0
    fi
    exit 1
}
trap cut TERM INT

due=0
for phase in new again; do
    for name in "${names[@]}"; do
        if is_due "$name"; then due=$((due + ${estimates[$name]})); fi
    done
done
printf 'gpu_check: %s, %s stages for %s s on an H200, %s s of them to do, at most %s s; into %s\n' \
    "$device" "${#names[@]}" "$total" "$due" "$seconds" "$out"
for phase in new again; do
    all_stages
done
report 1
left=0 bad=0
for name in "${names[@]}"; do
    case ${states[$name]:-not run} in
    passed | skipped) ;;
    'not run') left=$((left + 1)) ;;
    *) [ "${needs[$name]}" = required ] && bad=$((bad + 1)) ;;
    esac
done
printf 'gpu_check: %s required stages did not pass, %s stages are left to run; %s\n' \
    "$bad" "$left" "$out/gpu_check.md"
[ $broken = 0 ] || printf 'gpu_check: not all results could be written, see above\n' >&2
[ $bad = 0 ] && [ $broken = 0 ]
