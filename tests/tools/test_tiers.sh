#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every test of a build has one tier of tests/tiers.cmake.
# Usage: test_tiers.sh BUILD
set -u
names() {
    ctest --test-dir "$1" -N -L "$2" | sed -n 's/^ *Test *#[0-9]*: //p'
}
count() {
    names "$1" "$2" | grep -c .
}
failed=0
expect() {
    what=$1
    shift
    "$@" || { echo "FAIL $what"; failed=1; }
}

without=$(ctest --test-dir "$1" -N -LE '^(full|long)$' | sed -n 's/^ *Test *#[0-9]*: //p')
expect "without a tier: $without" [ -z "$without" ]
expect 'no quick test' [ "$(count "$1" '^quick$')" -gt 50 ]
expect 'quick is no part of full' [ "$(count "$1" '^full$')" -gt "$(count "$1" '^quick$')" ]
both=$(names "$1" '^long$' | grep -Fx -e "$(names "$1" '^full$')")
expect "both full and long: $both" [ -z "$both" ]
exit $failed
