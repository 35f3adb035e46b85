# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# SC2154: root build prefix deb check device work dry given are gpu_check.sh's. The others: lists of
# words, some of a command's output, and commas inside words.
# shellcheck disable=SC2154,SC2046,SC2086,SC2054
# Sourced by gpu_check.sh: its stages in their order, and what they run. Correctness comes first,
# then the figures that the project stands for, then the rest by what it is worth; what may break
# the device comes last. Under --dry-run all of them run, over shapes that a CPU bears.

# ---- What the stages run ------------------------------------------------------------------------

has_header() {
    [ -f "$prefix/usr/include/$1" ] || [ -f "/usr/include/$1" ] || [ -f "/usr/local/include/$1" ]
}

unpack() {
    local file
    mkdir -p "$prefix"
    for file in "$deb"/*.deb; do
        dpkg -x "$file" "$prefix" || return 1
    done
    ls "$prefix/usr/include"
}

# Of the machine's first GPU; an H200's where nothing says.
architecture() {
    local capability
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
        sed -n '1s/^\([0-9]*\)\.\([0-9]\)$/\1\2/p')
    case $capability in
    '' | 90) echo 90a ;;
    *) echo "$capability" ;;
    esac
}

# Builds what is possible, for this GPU alone, and says what is not.
build_tree() {
    local flags=-lineinfo options targets=() target
    ! nvcc --help 2>/dev/null | grep -q -e --split-compile || flags+=';--split-compile=0'
    options=(-DCMAKE_BUILD_TYPE=Release -DTAMIS_NVCC=ON "-DTAMIS_NVCC_FLAGS=$flags"
        "-DTAMIS_CUDA_ARCHITECTURES=$(architecture)")
    has_header cjson/cJSON.h || {
        echo 'no cJSON: no command line, no benches (libcjson-dev)'
        options+=(-DTAMIS_TOOLS=OFF)
    }
    has_header cmocka.h || {
        echo 'no cmocka: no tests (libcmocka-dev)'
        options+=(-DTAMIS_TESTS=OFF)
    }
    { has_header CL/cl.h && has_header xxhash.h; } || {
        echo 'no OpenCL headers or xxHash: no OpenCL backend'
        options+=(-DTAMIS_OPENCL=OFF)
    }
    cmake -S "$root" -B "$build" -G Ninja "${options[@]}" || return 1
    # Not what tests the kernels without a GPU.
    for target in $(ninja -C "$build" -t targets all | sed -n 's/: phony$//p' | sort -u); do
        case $target in
        tamis_cli | tamis-check | test-policies-* | evict_case | test-model-* | test-api-*)
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

# The device must be there, usable, and be what is asked for.
show_device() {
    "$build/tamis" devices || return 1
    "$build/tamis" devices | awk -v id="$1" '$1 == id && $NF == "usable" { found = 1 }
        END { exit !found }' || {
        echo "$1 is not usable"
        return 1
    }
    echo "cuBLAS: ${cublas:-none}"
}

# together COMMAND NAME...: runs the command with each of the names, all at once: what they check is
# answers, and most of the time they wait for the host's own. Says how each went.
together() {
    local command=$1 name rc failed=0 folder
    folder=$(mktemp -d)
    shift
    # shellcheck disable=SC2317 # by the trap
    unfinished() {
        for name in "$@"; do
            [ -f "$folder/$name.rc" ] || { echo "-- $name: not done" && tail -n 30 "$folder/$name.log"; }
        done
        exit 124
    }
    trap 'unfinished "$@"' TERM
    for name in "$@"; do
        ("$command" "$name" >"$folder/$name.log" 2>&1; echo $? >"$folder/$name.rc") &
    done
    wait
    for name in "$@"; do
        rc=$(cat "$folder/$name.rc")
        printf '%s: exit status %s, %s\n' "$name" "$rc" "$(tail -n 1 "$folder/$name.log")"
    done
    for name in "$@"; do
        [ "$(cat "$folder/$name.rc")" = 0 ] && continue
        failed=1
        printf -- '-- %s\n' "$name"
        tail -n 30 "$folder/$name.log"
    done
    rm -rf "$folder"
    return $failed
}

# The programs of a dry run, apart from one of each kind, answer on the reference: the script and
# what they are given is what is rehearsed.
backend_of() {
    [ "$dry" = 1 ] && [ "$1" != arguments ] && echo reference || echo "${device%%:*}"
}

check_op() {
    local list=ci cases=("${1%%+*}")
    [ "$dry" = 0 ] || list=smoke
    case $1 in # attend in two, which take as long as all the others
    attend+rows) cases=('attend:*:tile1:*') ;;
    attend+tiles) cases=(attend '!attend:*:tile1:*') ;;
    others)
        cases=('!attend' '!write_rows' '!bounds' '!score_pages' '!select' '!sparse_attend' '!merge')
        ;;
    esac
    test_program "$check" --device "$device" --list $list "${cases[@]}"
}

check_bitwise() {
    local list=ci cases=("${1%%+*}")
    [ "$dry" = 0 ] || list=smoke
    [ "$1" != others ] || cases=('!attend' '!score_pages' '!sparse_attend')
    test_program "$check" --device "$device" --mode bitwise --list $list "${cases[@]}"
}

test_api() {
    test_program "$build/tests/api/test-api-$1" "$(backend_of "$1")"
}

test_model() {
    [ "$dry" = 0 ] || export TEST_TOKENS=4
    test_program "$build/tests/model/test-model-$1" "$(backend_of "$1")" "$root/tests/data"
}

test_policies() {
    test_program "$build/tests/policies/test-policies-$1" "$(backend_of "$1")"
}

# Against formulas in double precision.
check_evictions() {
    local python options=(--device "$(backend_of eviction)" --against reference)
    [ "$dry" = 0 ] || options=(--device reference --small --cases 2)
    [ -x "$build/tests/policies/evict_case" ] || {
        echo 'evict_case: was not built'
        return 1
    }
    for python in python3 /usr/bin/python3; do
        "$python" -c 'import numpy' 2>/dev/null && break
    done
    "$python" "$root/tests/policies/check_eviction.py" "$build/tests/policies/evict_case" \
        "${options[@]}"
}

# The checker's JSON goes to stdout, its text to stderr: bench_ops FILE
bench_ops() {
    local cases=()
    [ "$dry" = 0 ] || cases=(--probe 1 'argmax*')
    "$check" --device "$device" --mode bench --json "${cases[@]}" >"$1"
}

# The card through OpenCL: a folder of vendors of our own, for the driver's library may lie there
# without the file by which the loader finds it. Prints the device.
opencl_gpu() {
    local library
    for library in {/usr/local/nvidia/lib64,/usr/lib/x86_64-linux-gnu}/libnvidia-opencl.so.1; do
        [ ! -e "$library" ] || printf '%s\n' "$library" >"$OCL_ICD_VENDORS/nvidia.icd"
    done
    "$build/tamis" devices --device opencl 2>/dev/null |
        awk '$1 ~ /^opencl:/ && $2 == "gpu" && $NF == "usable" { print $1; exit }'
}

# on_opencl COMMAND...: with the card's OpenCL name in the place of OPENCL.
on_opencl() {
    local id
    export OCL_ICD_VENDORS=$work/vendors
    mkdir -p "$OCL_ICD_VENDORS"
    id=$(opencl_gpu)
    [ -n "$id" ] || {
        echo 'there is no GPU with an OpenCL driver, or no OpenCL backend was built'
        return 77
    }
    "${@/#OPENCL/$id}"
}

# overlapping COMMAND...: attend may begin before the launch ahead of it has ended.
overlapping() {
    export TAMIS_CUDA_OVERLAP=1
    "$@"
}

# Only what a GPU has: not on the driver of the CPU. needs_gpu PROGRAM
needs_gpu() {
    if [ -n "${TAMIS_CUDA_DRIVER:-}" ]; then
        echo 'the driver is the one that TAMIS_CUDA_DRIVER names, not a GPU'
    elif [[ "$device" != cuda* ]]; then
        echo "$device is no CUDA device"
    elif ! command -v "$1" >/dev/null; then
        echo "$1 is not installed"
    else
        return 0
    fi
    return 1
}

sanitize() {
    needs_gpu compute-sanitizer || return 77
    compute-sanitizer --tool "$1" --error-exitcode 9 \
        "$check" --device "$device" --list smoke "${@:2}"
}

# Launches of a step, full's and quest's: where their time goes by the hardware's own counters. The
# first 12 are those of plan creation, which have no rows.
profile() {
    local rc=0 said
    needs_gpu ncu || return 77
    said=$(ncu --clock-control none --csv --page raw --kernel-name 'regex:score_select|attend_decode' \
        --launch-skip 12 --launch-count 8 --metrics "gpu__time_duration.sum,\
dram__bytes_read.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,\
lts__t_sector_hit_rate.pct,sm__warps_active.avg.pct_of_peak_sustained_active,\
launch__registers_per_thread,launch__occupancy_limit_registers,launch__occupancy_limit_shared_mem,\
smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio" \
        "$build/tamis" bench attention --device "$device" --shape llama2-7b --context 32768 \
        --budget 2048 --layers 2 --repeat 1 2>&1) || rc=$?
    printf '%s\n' "$said"
    [[ "$said" != *ERR_NVGPUCTRPERM* && "$said" != *LibraryNotLoaded* ]] || return 77
    return $rc
}

# A cuBLAS where no loader finds one: in a package of Python's. Sets `cublas` to the library that
# serves, or to nothing, and TAMIS_CUBLAS if need be.
find_cublas() {
    cublas=$(python3 "$root/tools/gpu_report.py" --cublas "${TAMIS_CUBLAS:-}")
    [ -z "$cublas" ] || [ -n "${TAMIS_CUBLAS:-}" ] || export TAMIS_CUBLAS=$cublas
    export cublas
}

export -f has_header unpack architecture build_tree test_program show_device together backend_of check_op \
    check_bitwise test_api test_model test_policies check_evictions bench_ops opencl_gpu on_opencl \
    overlapping needs_gpu sanitize profile

# ---- The stages ---------------------------------------------------------------------------------

# Layers in turn, or caches of a peer: enough that a pass over all of them reads 4 GiB, which is far
# beyond any L2. caches SHAPE BATCH CONTEXT
caches() {
    local heads=8 bytes count
    [ "$1" = llama3-8b ] || heads=32
    bytes=$((2 * $2 * heads * $3 * 128 * 2))
    count=$(((4294967296 + bytes - 1) / bytes))
    echo $((count < 2 ? 2 : count > 128 ? 128 : count))
}

# On OpenCL, or with launches that overlap, where the stage's name says so.
# bench STAGE SECONDS SHAPE BATCH CONTEXT BUDGETS [OPTION...]
bench() {
    local name=$1 seconds_of=$2 shape=$3 batch=$4 context=$5 budgets=$6 layers
    local need=required id=$device way=()
    shift 6
    case $name in
    opencl/*) need=optional id=OPENCL way=(on_opencl) ;;
    overlap/*) need=optional way=(overlapping) ;;
    esac
    layers=$(caches "$shape" "$batch" "$context")
    if [ $dry = 0 ]; then
        set -- --shape "$shape" --batch "$batch" --context "$context" --budget "$budgets" \
            --layers "$layers" "$@"
    else
        set -- --shape llama3-8b --batch 1 --context 24 --budget 16 --layers 1 --repeat 1 \
            --probe 1 --page-size 8 --sinks 0 --recent 1 "$@"
    fi
    stage "$name" $need "$seconds_of" "${way[@]}" "$build/tamis" bench attention --device "$id" \
        --json @json "$@"
}

# peers STAGE SECONDS NAMES SHAPE:BATCH:CONTEXT...
peers() {
    local name=$1 seconds_of=$2 names_of=$3 case_ cases=()
    shift 3
    for case_ in "$@"; do
        cases+=("$case_:$(caches ${case_//:/ })")
    done
    local options=()
    [ $dry = 0 ] || options=(--engine "$root/tests/tools/pretend_peers.py")
    stage "$name" optional "$seconds_of" python3 "$root/tools/gpu_peers.py" --peers "$names_of" \
        --cases "$(IFS=, && echo "${cases[*]}")" --json @json "${options[@]}"
}

stages_of_checks() {
    stage check/smoke required 15 test_program "$check" --device "$device" --list smoke \
        $([ $dry = 0 ] || echo write_rows score_pages select merge norm)
    stage check/pipeline required 70 together check_op \
        $([ $dry = 0 ] && echo write_rows bounds score_pages select attend+rows attend+tiles \
            sparse_attend merge || echo write_rows bounds select merge)
}

# What the project must show first: the quest's 2048 tokens of 32768 against dense attention. Next to
# the rows of batch 1 the form that is off by default.
stages_of_headline() {
    local shape
    for shape in llama2-7b llama3-8b; do
        bench headline/$shape/1/32768 12 $shape 1 32768 2048 --apart
        bench overlap/$shape/1/32768 8 $shape 1 32768 2048
        bench headline/$shape/16/32768 25 $shape 16 32768 2048 --apart
    done
    peers headline/peers 75 all llama2-7b:16:32768 llama2-7b:1:32768 llama3-8b:16:32768 \
        llama3-8b:1:32768
}

stages_of_tests() {
    stage overlap/check optional 8 overlapping check_op sparse_attend
    stage overlap/replay optional 5 overlapping test_api replay
    stage policies required 50 together test_policies $([ $dry = 1 ] || echo selections) matrix
    stage eviction required 50 check_evictions
    stage api required 60 together test_api arguments steps faults bounds replay read_limit \
        eviction eviction_steps eviction_forks $([ $dry = 1 ] || echo random eviction_kinds)
    stage model required 50 together test_model arguments faults runner logits \
        $([ $dry = 1 ] || echo passkey)
    stage check/others required 45 together check_op \
        $([ $dry = 0 ] && echo others || echo norm argmax)
    stage check/bitwise required 60 together check_bitwise \
        $([ $dry = 0 ] && echo attend score_pages sparse_attend others || echo merge select)
}

stages_of_benches() {
    local shape
    for shape in llama2-7b llama3-8b; do
        bench bench/$shape/1/32768 15 $shape 1 32768 512,1024,4096
        bench bench/$shape/1/4096 8 $shape 1 4096 512,1024,2048
        bench bench/$shape/16/4096 12 $shape 16 4096 512,1024,2048
        bench bench/$shape/1/131072 20 $shape 1 131072 1024,2048,4096
        bench bench/$shape/64/4096 20 $shape 64 4096 512,1024,2048
    done
    bench bench/llama3-8b/64/32768 30 llama3-8b 64 32768 1024,2048,4096
    bench bench/llama3-8b/16/131072 30 llama3-8b 16 131072 2048,4096
    bench bench/bf16/llama3-8b/1/32768 12 llama3-8b 1 32768 2048 --dtype bf16
    bench bench/f32/llama3-8b/1/32768 15 llama3-8b 1 32768 2048 --dtype f32
    bench bench/shuffled/llama3-8b/1/32768 15 llama3-8b 1 32768 2048 --pages shuffled
    bench bench/selections/llama3-8b/1/32768 20 llama3-8b 1 32768 2048 --select window,oracle,random
}

stages_of_policies() {
    local decode=(--context 32768 --evict h2o,snapkv)
    local throughput_of=needle
    local throughput=(--context 2048 --sequences 16 --evict streaming,h2o,snapkv)
    local passkey=(--length 5000 --texts 4)
    if [ $dry = 1 ]; then
        decode=(--context 24 --evict streaming --budget 16 --shape llama3-8b --page-size 8
            --layers 1 --repeat 1 --probe 1)
        throughput_of=tiny
        throughput=(--context 24 --batch 1 --evict streaming --budget 16 --page-size 8 --tokens 1
            --repeat 1 --probe 1)
        passkey=(--length 44 --texts 1 --keys 1 --select full,window --budget 32)
    fi
    stage decode required 45 "$build/tamis" bench decode --device "$device" "${decode[@]}" \
        --json @json
    stage throughput required 60 "$build/tamis" bench throughput --device "$device" \
        --model "$root/tests/data/$throughput_of.gguf" "${throughput[@]}" --json @json
    stage passkey required 60 "$build/tamis" eval passkey \
        --device "$([ $dry = 0 ] && echo "$device" || echo reference)" \
        --model "$root/tests/data/needle.gguf" "${passkey[@]}" --json @json
}

all_stages() {
    [ -z "$deb" ] || stage packages required 5 unpack
    if [ -n "$given" ]; then
        stage build required 2 test_program "$build/tamis" --version
    else
        stage build required 120 build_tree
    fi
    stage device required 5 show_device "$device"
    stages_of_checks
    stages_of_headline
    stages_of_tests
    stages_of_benches
    peers peers/dense 60 all llama2-7b:1:4096 llama3-8b:1:4096 llama2-7b:16:4096 llama3-8b:16:4096 \
        llama2-7b:1:131072 llama3-8b:1:131072 llama3-8b:64:4096
    stages_of_policies
    stage profile optional 40 profile
    stage ops optional 50 bench_ops @json
    stage opencl/check optional 25 on_opencl test_program "$check" --device OPENCL --list smoke
    bench opencl/llama3-8b/1/32768 20 llama3-8b 1 32768 2048
    peers peers/flex 60 flex llama3-8b:1:32768 llama2-7b:16:32768
    # A fault of a kernel may leave the device slow to answer; sanitizers take long.
    stage fault required 10 test_program "$build/tests/api/test-api-cuda"
    stage sanitizer/memcheck optional 50 sanitize memcheck
    stage sanitizer/racecheck optional 45 sanitize racecheck attend score_pages select argmax norm
}
