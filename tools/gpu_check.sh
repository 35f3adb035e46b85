#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Everything that a GPU machine is asked for, in one call, with no network:
#   gpu_check.sh OUT [OPTIONS]       builds, tests, measures; OUT/gpu_check.json, .md and .log
#   gpu_check.sh --fetch FOLDER      on a Debian machine with network: the packages for --deb
# See usage() for the options. Every stage has its own time limit; what it gave is in OUT before the
# next one begins, so a call that is cut leaves all that was done. Exit status: 0 if every required
# stage passed, 1 if not, 2 for a wrong command line.
set -u
# What a build needs beside a C and a C++ compiler, cmake, ninja and nvcc. Without libcjson there is
# no command line, without libcmocka there are no tests, without the rest no OpenCL backend.
packages="libcjson-dev libcjson1 libcmocka-dev libcmocka0 opencl-c-headers ocl-icd-opencl-dev
    ocl-icd-libopencl1 libclblast-dev libclblast1"

usage() {
    cat <<'END'
usage: gpu_check.sh OUT [OPTIONS]
       gpu_check.sh --fetch FOLDER   download the packages that --deb takes, then end
  --seconds N      end within so many seconds (default 520)
  --build FOLDER   a finished build to test; default: build into build-gpu/ of the tree
  --deb FOLDER     *.deb files to unpack beside the system and build with
  --device ID      default cuda:0
  --commit HASH    what the tree is, where git cannot say
  --quick          small lists and shapes: whether all of it works, not how fast
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

out='' seconds=520 build='' deb='' device=cuda:0 commit='' quick=0
while [ $# -gt 0 ]; do
    case $1 in
    --help) usage && exit 0 ;;
    --quick) quick=1 && shift && continue ;;
    --fetch | --seconds | --build | --deb | --device | --commit)
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
    --build) build=$2 ;;
    --deb) deb=$2 ;;
    --device) device=$2 ;;
    --commit) commit=$2 ;;
    esac
    shift 2
done
[ -n "$out" ] || wrong 'the folder for the results is missing; --help shows the usage'
[[ "$seconds" =~ ^[1-9][0-9]{0,5}$ ]] || wrong "--seconds $seconds: not a number from 1 on"
[ -z "$build" ] || [ -d "$build" ] || wrong "--build $build: no such folder"
[ -z "$deb" ] || deb=$(cd "$deb" 2>/dev/null && pwd) || wrong "--deb: no such folder"
mkdir -p "$out" || exit 1

start=$(date +%s)
root=$(cd "$(dirname "$0")/.." && pwd)
out=$(cd "$out" && pwd)
work=$(mktemp -d)
mkdir "$work/stages"
given=$build
[ -n "$build" ] || build=$root/build-gpu
[ -z "$given" ] || build=$(cd "$build" && pwd)
[ -d /usr/local/cuda/bin ] && PATH=$PATH:/usr/local/cuda/bin
prefix=$root/build-gpu/packages # where it stays, since the build keeps its paths
export root build prefix deb
export LD_LIBRARY_PATH=$build:$prefix/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
check=$build/tests/ops/tamis-check

# ---- Stages -------------------------------------------------------------------------------------

# What a stage leaves is in $work/stages/NNN.*: .meta (name=value lines), .log, and .json if it
# wrote one.
n_stages=0
failures=0
broken=0   # 1: the results could not be written
here=''    # the files of the last stage begun
: >"$out/gpu_check.log"
if [ -z "$commit" ]; then
    commit=$(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)
    [ -z "$(git -C "$root" status --porcelain 2>/dev/null)" ] || commit=$commit+changes
fi
smi() {
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null |
        head -n 1
}
compiler=$(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
cat >"$work/header" <<END
date=$(date -u +%Y-%m-%dT%H:%M:%SZ)
commit=$commit
device_id=$device
machine=$(smi)
nvcc=$compiler
driver_library=${TAMIS_CUDA_DRIVER:-}
limit=$seconds
quick=$quick
END

report() {
    printf 'seconds=%s\ncomplete=%s\n' $(($(date +%s) - start)) "$1" >"$work/end"
    python3 "$root/tools/gpu_report.py" "$work" "$out" || broken=1
}

# note NAME=VALUE...: the stage's .meta, whole at once.
note() {
    printf '%s\n' "$@" >"$here.new" && mv "$here.new" "$here.meta"
}

# stage NAME required|optional LIMIT COMMAND...: LIMIT in seconds of 520, less where less is left.
# In COMMAND @json stands for the stage's own JSON file. 77 is "nothing to run".
stage() {
    local name=$1 need=$2 limit=$(($3 * seconds / 520)) left rc=0 began state
    shift 3
    n_stages=$((n_stages + 1))
    here=$work/stages/$(printf '%03d' $n_stages)
    left=$((start + seconds - $(date +%s) - 8))
    [ "$limit" -le "$left" ] || limit=$left
    if [ "$limit" -lt 2 ]; then
        skip_here "$name" "$need" 'no time was left'
        return
    fi
    began=$(date +%s)
    : >"$here.log"
    note "name=$name" "need=$need" state=running "limit=$limit"
    report 0
    printf '%s\n' "== $name" >>"$out/gpu_check.log"
    timeout -k 5 "$limit" bash -c '"$@"' stage "${@/#@json/$here.json}" >"$here.log" 2>&1 &
    wait $! || rc=$?
    case $rc in
    0) state=passed ;;
    124 | 137) state=timeout ;;
    77) [ "$need" = required ] && state=failed || state=skipped ;;
    *) state=failed ;;
    esac
    if [ $state = passed ] && [[ " $* " == *' @json '* ]] &&
        ! python3 -m json.tool "$here.json" >/dev/null 2>&1; then
        echo 'no whole JSON was written' >>"$here.log"
        state=failed
    fi
    finish "$state" "$rc" $(($(date +%s) - began))
}

# finish STATE RC SECONDS: of the stage under way.
finish() {
    local line
    line=$(sed -n 's/^\(name\|need\|limit\)=/&/p' "$here.meta")
    # shellcheck disable=SC2086 # no value holds a blank
    note $line "state=$1" "rc=$2" "seconds=$3"
    if [ "$1" != passed ] && [[ "$line" == *need=required* ]]; then
        failures=$((failures + 1))
    fi
    tail -c 200000 "$here.log" >>"$out/gpu_check.log"
    line=${line%%$'\n'*}
    printf '%-8s %4ss  %s\n' "$1" "$3" "${line#name=}"
    report 0
}

# skip_here NAME NEED REASON
skip_here() {
    printf '%s\n' "$3" >"$here.log"
    note "name=$1" "need=$2" limit=0
    finish skipped '' 0
}

# skip NAME REASON: an optional stage that this machine cannot have.
skip() {
    n_stages=$((n_stages + 1))
    here=$work/stages/$(printf '%03d' $n_stages)
    skip_here "$1" optional "$2"
}

# A call that is told to end says how far it came.
cut() {
    trap '' TERM INT
    # shellcheck disable=SC2046 # numbers
    kill $(jobs -p) 2>/dev/null
    wait
    if grep -q '^state=running$' "$here.meta" 2>/dev/null; then
        finish cut '' ''
    else
        report 0
    fi
    rm -rf "$work"
    exit 1
}
trap cut TERM INT

# ---- What the stages run ------------------------------------------------------------------------

has_header() {
    [ -f "$prefix/usr/include/$1" ] || [ -f "/usr/include/$1" ] || [ -f "/usr/local/include/$1" ]
}

unpack() {
    local file
    for file in "$deb"/*.deb; do
        dpkg -x "$file" "$prefix" || return 1
    done
    ls "$prefix/usr/include"
}

# Builds what is possible and says what is not.
build_tree() {
    local options=(-DCMAKE_BUILD_TYPE=Release) targets=() target
    has_header cjson/cJSON.h || {
        echo 'no cJSON: no command line, no benches (libcjson-dev)'
        options+=(-DTAMIS_TOOLS=OFF)
    }
    has_header cmocka.h || {
        echo 'no cmocka: no tests (libcmocka-dev)'
        options+=(-DTAMIS_TESTS=OFF)
    }
    { has_header CL/cl.h && has_header clblast_c.h; } || {
        echo 'no OpenCL headers or CLBlast: no OpenCL backend (ocl-icd-opencl-dev, libclblast-dev)'
        options+=(-DTAMIS_OPENCL=OFF)
    }
    cmake -S "$root" -B "$build" -G Ninja "${options[@]}" || return 1
    # Not what tests the kernels without a GPU.
    for target in $(ninja -C "$build" -t targets all | sed -n 's/: phony$//p' | sort -u); do
        case $target in
        tamis_cli | tamis-check | test-policies-selections | test-model-* | test-api-*)
            targets+=("$target")
            ;;
        esac
    done
    cmake --build "$build" --parallel "$(nproc)" --target tamis "${targets[@]}"
}

# test_program FILE ARGUMENT...
test_program() {
    [ -x "$1" ] || {
        echo "$1: was not built"
        return 1
    }
    "$@"
}

# The checker's JSON goes to stdout, its text to stderr: bench_ops PROGRAM DEVICE FILE
bench_ops() {
    "$1" --device "$2" --mode bench --json >"$3"
}

# The device must be there, usable, and be what is asked for.
show_device() {
    "$build/tamis" devices || return 1
    "$build/tamis" devices | awk -v id="$1" '$1 == id && $NF == "usable" { found = 1 }
        END { exit !found }' || {
        echo "$1 is not usable"
        return 1
    }
}
export -f has_header unpack build_tree test_program bench_ops show_device

# bench DEVICE SHAPE BATCH CONTEXT BUDGETS [OPTION...]
bench() {
    local id=$1 shape=$2 batch=$3 context=$4 budgets=$5 need=required name=bench
    shift 5
    [ "$id" = "$device" ] || need=optional name=opencl
    stage "$name/$shape/$batch/$context" $need 45 "$build/tamis" bench attention --device "$id" \
        --shape "$shape" --batch "$batch" --context "$context" --budget "$budgets" --json @json "$@"
}

bench_quickly() {
    bench "$1" llama3-8b 1 256 128 --layers 1 --repeat 1 --probe 1
}

sanitize() {
    stage "sanitizer/$1" required "$2" compute-sanitizer --tool "$1" --error-exitcode 9 \
        "$check" --device "$device" --list smoke "${@:3}"
}

run_sanitizer() {
    if [ -n "${TAMIS_CUDA_DRIVER:-}" ]; then
        skip sanitizer 'the driver is the one that TAMIS_CUDA_DRIVER names, not a GPU'
    elif [[ "$device" != cuda* ]]; then
        skip sanitizer "$device is no CUDA device"
    elif ! command -v compute-sanitizer >/dev/null; then
        skip sanitizer 'compute-sanitizer is not installed'
    elif [ $quick = 1 ]; then
        sanitize memcheck 60 write_rows select
    else
        sanitize memcheck 60
        sanitize racecheck 60 attend score_pages select argmax norm
    fi
}

run_checks() {
    local backend=${device%%:*} list=ci name
    local words=() tests=(arguments faults runner logits passkey)
    if [ $quick = 1 ]; then
        list=smoke
        words=(write_rows score_pages select attend merge norm)
        tests=(arguments)
    fi
    stage check required 90 test_program "$check" --device "$device" --list $list "${words[@]}"
    stage bitwise required 60 test_program "$check" --device "$device" --mode bitwise \
        --list $list "${words[@]}"
    if [ $quick = 0 ]; then
        stage pipeline required 60 test_program "$build/tests/policies/test-policies-selections" \
            "$backend"
        for name in arguments steps faults bounds replay; do
            stage "api/$name" required 30 test_program "$build/tests/api/test-api-$name" "$backend"
        done
        if [ "$backend" = cuda ]; then
            stage api/cuda required 30 test_program "$build/tests/api/test-api-cuda"
        fi
    fi
    for name in "${tests[@]}"; do
        stage "model/$name" required 45 test_program "$build/tests/model/test-model-$name" \
            "$backend" "$root/tests/data"
    done
}

# What the project must show first: one model of each kind of heads at three contexts.
run_first_benches() {
    local context shape
    if [ $quick = 1 ]; then
        bench_quickly "$device"
        return
    fi
    for context in 32768 131072 4096; do
        for shape in llama3-8b llama2-7b; do
            bench "$device" $shape 1 $context 512,1024,2048,4096
        done
    done
}

run_other_benches() {
    local context shape
    [ $quick = 0 ] || return 0
    for context in 32768 131072 4096; do
        for shape in llama3-8b llama2-7b; do
            bench "$device" $shape 16 $context 512,1024,2048,4096
        done
        bench "$device" qwen3-4b 1 $context 512,1024,2048,4096
    done
    bench "$device" llama3-8b 1 1048576 512,1024,2048,4096
    bench "$device" llama3-8b 1 32768 1024,2048 --pages shuffled
    for context in 16384 65536; do
        bench "$device" llama3-8b 1 $context 512,1024,2048,4096
    done
    bench "$device" qwen3-4b 16 32768 512,1024,2048,4096
    stage ops optional 60 bench_ops "$check" "$device" @json
}

run_peers() {
    local cases=llama3-8b:1:32768,llama2-7b:1:32768,llama3-8b:1:131072,llama3-8b:1:4096
    cases+=,llama3-8b:16:32768,llama2-7b:1:131072,llama2-7b:1:4096,llama3-8b:16:4096
    cases+=,llama2-7b:16:32768,llama3-8b:16:131072
    [ $quick = 0 ] || cases=llama3-8b:1:4096
    stage peers optional 110 python3 "$root/tools/gpu_peers.py" --cases $cases --json @json
}

# A GPU of the OpenCL backend, where there is one: the driver's library may lie there without the
# file by which the loader finds it.
opencl_gpu() {
    local library
    for library in {/usr/local/nvidia/lib64,/usr/lib/x86_64-linux-gnu}/libnvidia-opencl.so.1; do
        if [ -z "${OCL_ICD_VENDORS:-}" ] && [ ! -d /etc/OpenCL/vendors ] && [ -e "$library" ]; then
            mkdir -p "$work/vendors"
            printf '%s\n' "$library" >"$work/vendors/nvidia.icd"
            export OCL_ICD_VENDORS=$work/vendors
        fi
    done
    opencl=$("$build/tamis" devices --device opencl 2>/dev/null |
        awk '$1 ~ /^opencl:/ && $2 == "gpu" && $NF == "usable" { print $1; exit }')
}

run_opencl() {
    local opencl='' context
    opencl_gpu
    if [ -z "$opencl" ]; then
        skip opencl 'there is no GPU with an OpenCL driver, or no OpenCL backend was built'
        return
    fi
    stage opencl/check optional 60 test_program "$check" --device "$opencl" --list smoke
    if [ $quick = 1 ]; then
        bench_quickly "$opencl"
        return
    fi
    for context in 32768 131072; do
        bench "$opencl" llama3-8b 1 $context 1024,2048
    done
}

# ---- The call -----------------------------------------------------------------------------------

printf 'gpu_check: %s, at most %s s, results in %s\n' "$device" "$seconds" "$out"
if [ -n "$deb" ]; then
    mkdir -p "$prefix"
    export CMAKE_PREFIX_PATH=$prefix/usr PKG_CONFIG_SYSROOT_DIR=$prefix
    export PKG_CONFIG_PATH=$prefix/usr/lib/x86_64-linux-gnu/pkgconfig
    stage packages required 20 unpack
fi
if [ -n "$given" ]; then
    stage build required 15 test_program "$build/tamis" --version
else
    stage build required 170 build_tree
fi
stage device required 20 show_device "$device"
run_checks
run_first_benches
run_sanitizer
run_peers
run_other_benches
run_opencl
report 1
rm -rf "$work"
printf 'gpu_check: %s stages, %s required ones did not pass; %s\n' "$n_stages" "$failures" \
    "$out/gpu_check.md"
[ $broken = 0 ] || printf 'gpu_check: not all results could be written, see above\n' >&2
[ "$failures" -eq 0 ] && [ $broken = 0 ]
