#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What CMake makes of its options: the tests without pkg-config, the GPUs that nvcc compiles for, an
# nvcc that is missing, the library without the store, the model or the Python package; and which commit
# a build says that it is of. A script stands in for nvcc; nothing is built.
# Usage: test_configure.sh TREE
set -u
tree=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# configure NAME OPTION...: into $work/NAME; what CMake said is in $work/NAME.log.
configure() {
    name=$1
    shift
    cmake -S "$tree" -B "$work/$name" -G Ninja -DTAMIS_OPENCL=OFF -DTAMIS_TOOLS=OFF \
        -DTAMIS_TESTS=OFF -DTAMIS_NVCC_PROGRAM="$work/nvcc" "$@" >"$work/$name.log" 2>&1
}

# expect WHAT COMMAND...
expect() {
    what=$1
    shift
    "$@" >/dev/null && return
    echo "FAIL $what"
    sed 's/^/    /' "$work/$name.log" | tail -n 8
    failed=1
}

# options NAME TEXT: nvcc's command line for a kernel holds the text.
options() {
    grep -q -F -e "$2" "$work/$1/build.ninja"
}

# lacks NAME TEXT
lacks() {
    ! options "$1" "$2"
}

cat >"$work/nvcc" <<'END'
#!/bin/sh
echo 'Cuda compilation tools, release 13.0, V13.0.88'
END
chmod +x "$work/nvcc"

expect 'tests without pkg-config' configure bare -DTAMIS_TESTS=ON -DTAMIS_NVCC=OFF \
    -DPKG_CONFIG_EXECUTABLE=/dev/null/none

expect 'the usual architectures' configure usual -DTAMIS_NVCC=ON
expect 'machine code and PTX for 8.0' options usual 'arch=compute_80,code=[sm_80,compute_80]'
expect 'machine code for 9.0' options usual 'arch=compute_90a,code=sm_90a'

expect 'one architecture' configure one -DTAMIS_NVCC=ON -DTAMIS_CUDA_ARCHITECTURES=90a \
    -DTAMIS_NVCC_FLAGS=-lineinfo
expect 'machine code for 9.0 alone' options one 'arch=compute_90a,code=sm_90a'
expect 'lines' options one ' -lineinfo '
expect 'nothing for 8.0' lacks one compute_80
expect 'no PTX that no other GPU takes' lacks one ,compute_90a

# Where headers of libraries are not installed.
bare='-DCMAKE_IGNORE_PATH=/usr/include;/usr/local/include'
configure bare_auto -DTAMIS_TOOLS=AUTO -DTAMIS_TESTS=AUTO -DTAMIS_NVCC=OFF "$bare"
expect 'a build without cJSON' grep 'Command line: left out, there is no cJSON' "$work/$name.log"
expect 'a build without cmocka' grep 'Tests: left out, there is no cmocka' "$work/$name.log"
expect 'a build without xxHash' grep 'Store of chunks: left out, there is no xxHash' "$work/$name.log"
expect 'no store' lacks bare_auto lib/store/
expect 'a build without the store' grep 'Python package: left out, there is no store' "$work/$name.log"
configure no_cffi -DTAMIS_NVCC=OFF -DTAMIS_PYTHON=/bin/false
expect 'a build without cffi' grep 'Python package: left out, there is no cffi' "$work/$name.log"
expect 'no Python package' lacks no_cffi tamis/_c.py
expect 'a library without all of them' options bare_auto libtamis.so
expect 'no command line' lacks bare_auto tamis_cli
for part in STORE TOOLS TESTS PYTHON_PACKAGE; do
    ! configure "bare_$part" -DTAMIS_$part=ON -DTAMIS_NVCC=OFF "$bare"
    expect "$part that cannot be: an error" test $? = 0
    expect "$part that cannot be" grep "TAMIS_$part=ON: there is no " "$work/$name.log"
done
expect 'what is there by itself' configure auto -DTAMIS_TOOLS=AUTO -DTAMIS_TESTS=AUTO \
    -DTAMIS_NVCC=OFF
expect 'the command line' options auto tamis_cli
expect 'the tests' options auto test-api-steps
expect 'the store' options auto lib/store/disk.c
expect 'the Python package' options auto tamis/_c.py
expect 'the redis tier' options auto lib/store/redis.c
expect 'hiredis' options auto -lhiredis
expect 'a store without a server' configure local -DTAMIS_REDIS=OFF -DTAMIS_NVCC=OFF
expect 'its disk tier' options local lib/store/disk.c
expect 'no redis tier' lacks local lib/store/redis
expect 'no hiredis' lacks local hiredis

configure wrong -DTAMIS_NVCC=ON '-DTAMIS_CUDA_ARCHITECTURES=80;hopper'
expect 'an architecture that is none' grep '"hopper" is no compute' "$work/wrong.log"
# Where CMake looks nowhere by itself there is no nvcc; what else it needs it is told.
unset CUDA_PATH
configure missing -DTAMIS_NVCC=ON -DTAMIS_NVCC_PROGRAM=TAMIS_NVCC_PROGRAM-NOTFOUND \
    -DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF -DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF \
    -DCMAKE_IGNORE_PATH=/usr/local/cuda/bin "-DCMAKE_MAKE_PROGRAM=$(command -v ninja)" \
    "-DCMAKE_C_COMPILER=$(command -v cc)"
expect 'an nvcc that is missing' grep 'there is no nvcc' "$work/missing.log"

expect 'a build without the model' configure core -DTAMIS_NVCC=OFF -DTAMIS_MODEL=OFF \
    -DTAMIS_TOOLS=AUTO -DTAMIS_TESTS=ON
expect 'no model' lacks core libtamis_model
expect 'no command line, and why' grep 'Command line: left out, there is no model' "$work/core.log"
expect 'the core' options core libtamis.so

# The commit of a build: of a repository of its own, not of one around it; written when it changes.
commit() {
    cmake -DTREE="$work/a tree" -DHEADER="$work/commit.h" -P "$tree/tools/commit.cmake" \
        >"$work/commit.log" 2>&1 || echo failed >>"$work/commit.log"
}
git_there() {
    git -C "$work/$1" -c user.name=x -c user.email=x -c commit.gpgsign=false -c init.defaultBranch=main "$2" ${3+"$3"} \
        ${4+"$4"} ${5+"$5"} >/dev/null 2>&1
}
name=commit
mkdir "$work/a tree"
commit
expect 'no commit of a tree without git' grep '"unknown"' "$work/commit.h"
if git --version >/dev/null 2>&1; then
    git_there . init
    echo one >"$work/file"
    git_there . add file
    git_there . commit -m one
    commit
    expect 'no commit of a repository around the tree' grep '"unknown"' "$work/commit.h"
    git_there 'a tree' init
    echo one >"$work/a tree/file"
    git_there 'a tree' add file
    git_there 'a tree' commit -m one
    commit
    expect 'the commit of the tree' \
        grep "\"$(git -C "$work/a tree" rev-parse --short=12 HEAD)\"" "$work/commit.h"
    touch -d '2001-01-01' "$work/commit.h"
    commit
    [ -n "$(find "$work/commit.h" -newermt 2002-01-01)" ] && {
        echo 'FAIL the header was written anew without a change'
        failed=1
    }
    echo two >"$work/a tree/file"
    commit
    expect 'changes that are not committed' grep -e '-dirty"' "$work/commit.h"
fi
[ $failed = 0 ] && echo 'all is well'
exit $failed
