#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test_includes.sh SOURCE-DIR: no two files of a folder include each other's headers in a circle, and
# the whole plan is seen by its public calls alone.
set -eu
cd "$1"
failed=0

# Lines "stem stem" of who includes whom within a folder.
edges() {
    for file in "$1"/*.[ch]; do
        from=$(basename "${file%.*}")
        sed -n "s#^\#include \"$1/\([a-z0-9_]*\)\.h\".*#\1#p" "$file" | while read -r to; do
            [ "$from" = "$to" ] || echo "$from $to"
        done
    done
}

for folder in lib/cache lib/evict lib/plan lib/select host/cuda host/opencl host/reference; do
    if ! edges "$folder" | tsort > /dev/null; then
        echo "files of $folder include each other's headers in a circle"
        failed=1
    fi
done
for file in $(grep -l '#include "lib/plan/plan.h"' lib/plan/*); do
    case $file in
    lib/plan/calls_*.c | lib/plan/create.c) ;;
    *) echo "$file includes lib/plan/plan.h, which is for calls_*.c and create.c" && failed=1 ;;
    esac
done
exit $failed
