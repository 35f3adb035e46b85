#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds and tests everything: an ordinary build, then one under AddressSanitizer and
# UndefinedBehaviorSanitizer, then the fuzzers. The last line counts the tests:
# "N passed, N failed[, N skipped]".
# Exit status: 0 if none failed, and none was skipped where packages could be installed.
# Usage: test.sh           what every change must pass
#        test.sh --long    for releases: also the tests of the tier long (tests/tiers.cmake), CUDA kernels
#                          for every head dim where there is an nvcc, and a minute of each fuzzer
set -eu
cd "$(dirname "$0")/.."
. tools/packages.sh

case $#${1-} in
0 | 1--long) ;;
1--help | 1-h)
    sed -n '3,10s/^# //p' tools/test.sh
    exit 0
    ;;
*)
    printf 'test.sh: %s: takes no argument but --long (see --help)\n' "$*" >&2
    exit 2
    ;;
esac
tiers=full fuzz_seconds=17 kernels=-DONLY_DIM_128
[ "${1-}" != --long ] || tiers='full|long' fuzz_seconds=60 kernels=

passed=0
failed=0
skipped=0
holes=0 # skipped tests that could have run here

# What may be missing on a machine with all packages: PyPI, from which Intel's OpenCL runtime, the real
# models, axe-core for the page, and what wheels are built and checked with come; llama-cpp-python, which
# takes half an hour to build (tests/data/tokens holds what it has said); and the right to mount a small
# file system, which a container may lack.
may_skip='check\.intel|api-plan_time-intel|model-tokens-oracle|fetch-model-pypi|model-real-.*|serve-page'
may_skip="$may_skip|store-full|python-(types|wheel|hf)"

a_skip='^ *[0-9]+/[0-9]+ Test +#[0-9]+: .*\*\*\*Skipped '

# These two use suite's log: all tests, those that fail with their output, and what runs now.
run_tests() {
    ctest --output-on-failure --timeout 1500 --parallel "$(nproc)" "$@" 2>&1 | tee "$log" || true
}

running() {
    awk '$1 == "Start" { runs[$3] } $2 == "Test" { delete runs[$4] }
        END { printf "running:"; for (name in runs) printf " %s", name }' "$log"
}

# suite FOLDER [CTEST OPTION...]: runs the tests of a build folder and adds to the counts. ctest
# itself counts a skipped test as passed.
suite() {
    local log all bad skips folder=$1
    shift
    log=$(mktemp)
    each_minute running run_tests --test-dir "$folder" --label-regex "^($tiers)\$" "$@"
    read -r bad all < <(sed -n -E \
        's/^[0-9]+% tests passed, ([0-9]+) tests failed out of ([0-9]+)$/\1 \2/p' "$log") || {
        echo "no tests ran in $folder" >&2
        bad=1 all=1
    }
    if grep -q '^RegularExpression' "$log"; then # which ctest goes on without
        echo "an expression that chooses tests is wrong" >&2
        bad=$((bad + 1))
    fi
    skips=$(grep -c -E "$a_skip" "$log" || true)
    holes=$((holes + $(grep -E "$a_skip" "$log" | grep -c -v -E ": ($may_skip) " || true)))
    rm -f "$log"
    passed=$((passed + all - bad - skips))
    failed=$((failed + bad))
    skipped=$((skipped + skips))
}

# shellcheck disable=SC2086 # lists of words
install_missing $needed_to_build $needed_to_test

# Where there is an nvcc, kernels for one GPU, which is half of its time, and for one head dim, which is
# a third of the rest: those for 9.0 differ in the instructions that the test cuda-ptx looks for, and
# nothing runs any of them.
say "ordinary build into build/"
build build -DCMAKE_BUILD_TYPE=Release -DTAMIS_TOOLS=ON -DTAMIS_TESTS=ON -DTAMIS_PCRE2=ON \
    -DTAMIS_STORE=ON -DTAMIS_PYTHON_PACKAGE=ON -DTAMIS_CUDA_ARCHITECTURES=80 -DTAMIS_NVCC_FLAGS=$kernels
say "tests of the ordinary build"
# Cases of the smoke list are cases of check.opencl.* and check.cuda.*, too.
suite build --exclude-regex '^check\.smoke\.(opencl|cuda)\.correct$'

# Drivers allocate for the life of the process, and LSan cannot see into what they load and unload:
# what is named in the file is theirs. GCC 12's runtime guesses where glibc keeps thread-local memory
# of libraries, such as of the compiler inside PoCL. A wrong guess ends LSan with a signal; without
# guessing it still finds that memory, as the loader's (tests/api/leaks.c). LLVM, which is that
# compiler, gives the thread that compiles first a signal stack from malloc; ASan would unmap it as
# its own when the thread ends, and fail.
export ASAN_OPTIONS=detect_stack_use_after_return=0:intercept_tls_get_addr=0:use_sigaltstack=0
export LSAN_OPTIONS=suppressions=$PWD/tools/lsan.supp:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1
# Of Mesa's drivers one unloads a library that has not freed all memory, on an EPYC 128 bytes at each
# start: a leak without a name, which that file cannot tell from ours. Intel's loads a library with
# RTLD_DEEPBIND, which sanitizers refuse. So PoCL is the only driver here.
pocl=/etc/OpenCL/vendors/pocl.icd
[ ! -e "$pocl" ] || export OCL_ICD_VENDORS=$pocl
say "sanitizer build into build-sanitize/"
build build-sanitize -DCMAKE_BUILD_TYPE=Release -DTAMIS_TOOLS=ON -DTAMIS_TESTS=ON \
    -DTAMIS_PCRE2=ON -DTAMIS_STORE=ON -DTAMIS_PYTHON_PACKAGE=ON -DTAMIS_SANITIZE=address,undefined \
    -DTAMIS_TEST_PROGRAMS="$PWD/build/programs"
say "tests of the sanitizer build"
# Not again: oclgrind and AddressSanitizer both must be loaded first; mutants and self-tests judge the
# checker; kernels give the same bits, and those of CUDA run on a driver that no sanitizer looks into;
# the smoke list calls all of the host's code that launches OpenCL's kernels; evaluations call what
# cli-run calls, for a minute each; other OpenCL drivers bring memory of their own kind; a consumer's
# build has none; scripts that run nothing of the build have no memory to look at; a real model takes
# minutes; and a model calls on
# OpenCL what it calls on the reference, which takes ten times as long there and is looked at by
# check.reference.
# CMake's expressions have at most ten groups.
not_again='check\.(oclgrind|mutants|aarch64|intel|rusticl|opencl.*|.*bitwise.*|.*cuda.*)|gpu-check'
not_again="$not_again|api-opencl-(intel|rusticl|oclgrind)"
not_again="$not_again|model-logits-cuda|api-settings-opencl-every|tiers|cli-ttft|cli-eval|cli-compare"
not_again="$not_again|policies-eviction-self-test|policies-.*-cuda|api-eviction.*-cuda|api-window-cuda"
not_again="$not_again|consumer.*|plot|compare|gpu-model|includes.*|errors.*|readme-example|api-headers"
not_again="$not_again|api-needed.*|model-logits-reference|model-passkey-reference|model-real-.*"
not_again="$not_again|blend-(model|mix|prefix|question)-cuda|model-(record|faults|launches|families)-cuda|model-families-opencl"
suite build-sanitize --exclude-regex "^($not_again)\$"

say "fuzz build into build-fuzz/"
CC=clang build build-fuzz -DCMAKE_BUILD_TYPE=Release -DTAMIS_FUZZ=ON -DTAMIS_OPENCL=OFF \
    -DTAMIS_CUDA=OFF -DTAMIS_TOOLS=OFF -DTAMIS_PYTHON_PACKAGE=OFF -DTAMIS_PCRE2=ON -DTAMIS_STORE=ON \
    -DTAMIS_FUZZ_SECONDS=$fuzz_seconds
say "$fuzz_seconds s of each fuzzer"
suite build-fuzz

# With everything installed a skipped test is a hole in the suite.
can_install || holes=0
if [ "$holes" -gt 0 ]; then
    say "not good: $holes skipped, though all that they need can be installed here"
fi
echo
echo "$passed passed, $failed failed$([ "$skipped" -eq 0 ] || echo ", $skipped skipped")"
[ $((failed + holes)) -eq 0 ]
