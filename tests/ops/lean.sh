#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Fails when the list lean lacks a value that the list ci gives a key of an op.
# usage: lean.sh <tamis-check>
set -u
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT

# values <tamis-check> <list>: "op key-and-value", each once.
values() {
    "$1" --list "$2" --print >"$work/cases" || exit 2
    awk -F: '{ for (i = 2; i <= NF; i++) print $1, $i }' "$work/cases" | sort -u
}

values "$1" ci >"$work/ci"
values "$1" lean >"$work/lean"
echo "$(grep -c . "$work/ci") values"
comm -23 "$work/ci" "$work/lean" | sed 's/^/not in lean: /' | tee "$work/missing"
[ -s "$work/ci" ] && [ ! -s "$work/missing" ]
