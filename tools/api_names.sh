#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Lists the public names that went and came between two commits: functions, types, fields' enumerators
# and macros of lib/include that begin with tamis_ or TAMIS_, and the fields of its structs.
# usage: api_names.sh OLD [NEW]      (NEW: the working tree)
# Lines "- name" went, "+ name" came; a field is struct.field.
set -eu
[ $# -ge 1 ] || { sed -n '2,7s/^# //p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# headers COMMIT FILE: all public headers, without comments.
headers() {
    if [ -n "$1" ]; then
        git ls-tree -r --name-only "$1" lib/include | while read -r path; do git show "$1:$path"; done
    else
        cat lib/include/tamis/*.h
    fi | sed -e ':a' -e '$!{N;ba' -e '}' -e 's#/\*[^*]*\*\+\([^/*][^*]*\*\+\)*/# #g' >"$2"
}

# names FILE: one on each line, fields as struct.field.
names() {
    grep -oE '\b(tamis|TAMIS)_[A-Za-z0-9_]+' "$1" | grep -vE '_H$'
    grep -oE 'X\([A-Z0-9_]+, -?[0-9]+,' "$1" | sed -E 's/X\(([A-Z0-9_]+),.*/TAMIS_\1/'
    tr '\n' ' ' <"$1" | grep -oE 'typedef struct tamis_[a-z0-9_]+ \{[^}]*\}' | awk '
        {
            split($0, head, /[ {]+/)
            sub(/[^{]*\{/, "")
            fields = split($0, field, ";")
            for (f = 1; f < fields; f++) {
                line = field[f]
                if (line ~ /\(\*/) { sub(/.*\(\*/, "", line); sub(/\).*/, "", line) }
                gsub(/\[[^]]*\]/, "", line)
                n = split(line, part, ",")
                for (i = 1; i <= n; i++) {
                    m = split(part[i], word, /[ *]+/)
                    while (m > 0 && word[m] == "") m--
                    if (m > 0) print head[3] "." word[m]
                }
            }
        }'
}

headers "$1" "$work/old.h"
headers "${2:-}" "$work/new.h"
names "$work/old.h" | sort -u >"$work/old"
names "$work/new.h" | sort -u >"$work/new"
comm -23 "$work/old" "$work/new" | sed 's/^/- /'
comm -13 "$work/old" "$work/new" | sed 's/^/+ /'
