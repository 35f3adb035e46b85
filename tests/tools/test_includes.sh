#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test_includes.sh SOURCE-DIR: who may include whom.
#   - Rooms (folders) stand one above another, and include only what is below them.
#   - No two files of a folder include each other's headers in a circle.
#   - The whole plan (lib/plan/plan.h) is seen by the plan's public calls alone.
#   - lib/ sees of host/ the door (host/device.h), the contract (host/ops.h) and the base floor
#     (host/base) alone; the base floor sees public headers alone.
#   - The store of chunks (lib/store), the fusor (lib/blend) and tuning (lib/tune) see no more of lib/
#     than lib/core and the base floor.
#   - Each public call on a handle that can fail passes the gate of its context (TMS_ENTER).
#   - The library's clients, lib/model and tools/, include public headers and their own alone.
set -eu
cd "$1"
failed=0

fail() {
    echo "$*"
    failed=1
}

# Lines "stem stem" of who includes whom within a folder.
edges() {
    for file in $(ls "$1"/*.[ch] 2>/dev/null); do
        from=$(basename "${file%.*}")
        sed -n "s#^\#include \"$1/\([a-z0-9_]*\)\.h\".*#\1#p" "$file" | while read -r to; do
            [ "$from" = "$to" ] || echo "$from $to"
        done
    done
}

# clients FOLDER OWN: prints the includes of its files that are neither public nor OWN, a pattern of
# names in quotes.
clients() {
    grep -rHE --include='*.[ch]' '^[[:space:]]*#[[:space:]]*include' "$1" |
        sed -E 's/^([^:]*):[^"<]*(["<][^">]*).*/\1 includes \2/' |
        grep -vE " includes (<|\"($2)/[a-z0-9_]+\.h$)" || true
    grep -rHoE --include='*.[ch]' 'include[[:space:]]*<(lib|host|tests|tools)/.*' "$1" || true
}

# The rooms, from the ground up.
rooms="lib/include/tamis host/base host/ops cuda_kernels host host/reference host/opencl host/cuda lib/core
    lib/select lib/evict lib/cache lib/plan lib/op_calls lib/store lib/blend lib/tune lib/model
    tools/tamis/jinja tools/tamis/cli tools/tamis/store tools/tamis/bench tools/tamis/eval tools/tamis/blend
    tools/tamis/compare tools/tamis/serve tools/tamis"

# Lines "file: from -> to" of what a room includes that does not stand below it, or is no room.
arrows_up() {
    for room in $rooms; do
        grep -noHE '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<](lib|host|cuda_kernels|tools|tamis|cli|bench|eval|blend|store|compare|jinja|serve)/[^">]*' \
            "$room"/*.[ch] 2>/dev/null || true
    done | awk -v rooms="$rooms" '
        BEGIN { n = split(rooms, list); for (i = 1; i <= n; i++) rank[list[i]] = i }
        {
            file = $0; sub(/:.*/, "", file)
            from = file; sub("/[^/]*$", "", from)
            to = $0; sub(/.*["<]/, "", to); sub("/[^/]*$", "", to)
            if (to == "tamis") to = "lib/include/tamis"
            if (!(to in rank)) to = "tools/tamis/" to
            if (to != from && !(rank[to] < rank[from] && to in rank)) print file ": " from " -> " to
        }'
}

up=$(arrows_up)
[ -z "$up" ] || fail "$up: a room includes what stands above it"
for folder in lib/blend lib/cache lib/core lib/evict lib/model lib/op_calls lib/plan lib/select lib/store host host/base \
    host/cuda host/opencl host/ops host/reference; do
    edges "$folder" | tsort >/dev/null ||
        fail "files of $folder include each other's headers in a circle"
done
for file in $(grep -l '#include "lib/plan/plan.h"' lib/plan/* 2>/dev/null); do
    case $file in
    lib/plan/calls_*.c | lib/plan/create.c) ;;
    *) fail "$file includes lib/plan/plan.h, which is for calls_*.c and create.c" ;;
    esac
done
for folder in blend store tune; do
    beyond=$(grep -rnE --include='*.[ch]' '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "lib/$folder" \
        2>/dev/null | grep -vE "\"(host/base|lib/core|lib/$folder)/" || true)
    [ -z "$beyond" ] || fail "$beyond: lib/$folder sees no more than lib/core and the base floor"
done
behind=$(grep -rnE --include='*.[ch]' '^[[:space:]]*#[[:space:]]*include.*host/' lib |
    grep -vE '"host/(device|ops|base/[a-z0-9_]+)\.h"' || true)
[ -z "$behind" ] || fail "$behind: neither the door to a device, nor the contract, nor the base floor"
for line in "$(clients host/base host/base)" "$(clients lib/model lib/model)" "$(clients tools 'blend|cli|compare|bench|eval|jinja|serve|store')"; do
    [ -z "$line" ] || fail "$line: neither public nor the client's own"
done
# Within the first lines of the body: behind `*out = NULL` in calls that give something.
ungated=$(awk '
    FNR == 1 { name = "" }
    /^tamis_status tamis_[a-z0-9_]*\(/ { head = $0; name = $2; while (head !~ /\{$/ && (getline line) > 0) head = head line
        left = 0
        if (head ~ /\((const )?tamis_(context|buffer|host_buffer|event|graph|cache|prefixes|plan|blend|store|chunk|runner) \*[a-z]/ &&
            head ~ /tamis_error \*error/) left = 10
        next }
    left > 0 && /TMS_ENTER|tms_enter\(|tamis_context_enter\(/ { left = 0 }
    left > 0 && /^}/ { print FILENAME ": " name; left = 0 }
    left > 0 { left--; if (left == 0) print FILENAME ": " name }
' lib/core/*.c lib/cache/*.c lib/plan/*.c lib/blend/*.c lib/op_calls/*.c lib/tune/*.c lib/store/*.c lib/model/*.c)
[ -z "$ungated" ] || fail "$ungated: no TMS_ENTER"
exit $failed
