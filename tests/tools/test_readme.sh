#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Whether the README's matrix is what `tamis devices --matrix --markdown` says where every backend has
# a device. Usage: test_readme.sh TAMIS README [--update]; the latter writes it there.
# Exit status: 0 the same, 1 not, 77 a backend has no device here.
set -u
tamis=${1:?}
readme=${2:?}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
begin='<!-- tamis devices --matrix --markdown -->'
end='<!-- end of the matrix -->'

"$tamis" devices --matrix --markdown >"$work/now" 2>"$work/err" || {
    cat "$work/err"
    exit 1
}
if grep -q '; not [a-z]*: ' "$work/now"; then
    grep '; not [a-z]*: ' "$work/now"
    exit 77
fi
# The table stands on lines of its own between the two marks.
if [ "$(grep -cxF -e "$begin" -e "$end" "$readme")" -ne 2 ]; then
    echo "$readme: lacks the lines $begin and $end"
    exit 1
fi
awk -v begin="$begin" -v end="$end" -v now="$work/now" '
    $0 == end { inside = 0; print "" }
    !inside { print }
    $0 == begin { inside = 1; print ""; while ((getline line <now) > 0) print line }
' "$readme" >"$work/readme"
if [ "${3-}" = --update ]; then
    cat "$work/readme" >"$readme"
    exit 0
fi
diff -u "$readme" "$work/readme" && exit 0
echo "the README's matrix is not that of the library: $0 TAMIS README --update"
exit 1
