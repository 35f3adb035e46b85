#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Whether the README's example is docs/examples/decode.c, which the tests build and run: its code from
# the first #include on; and whether that is C11 and C++17, without a warning.
# Usage: test_readme_example.sh README EXAMPLE [--update]; the latter writes it into the README.
set -u
readme=${1:?}
example=${2:?}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sed -n '/^#include/,$p' "$example" >"$work/code"
if [ "$(grep -cx '```c' "$readme")" -ne 1 ]; then
    echo "$readme: there must be one block of C"
    exit 1
fi
awk -v code="$work/code" '
    inside && $0 == "```" { inside = 0 }
    !inside { print }
    $0 == "```c" { inside = 1; while ((getline line <code) > 0) print line }
' "$readme" >"$work/readme"
if [ "${3-}" = --update ]; then
    cat "$work/readme" >"$readme"
    exit 0
fi
if ! diff -u "$readme" "$work/readme"; then
    echo "the README's example is not $example: $0 README EXAMPLE --update"
    exit 1
fi
include=$(dirname "$example")/../../lib/include
strict='-Wall -Wextra -pedantic-errors -Werror -fsyntax-only'
# shellcheck disable=SC2086
if ! "${CC:-cc}" -std=c11 $strict -I"$include" "$example"; then
    echo "$example is no C11"
    exit 1
fi
# shellcheck disable=SC2086
if ! "${CXX:-c++}" -std=c++17 $strict -I"$include" -x c++ "$example"; then
    echo "$example is no C++17"
    exit 1
fi
