#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Whether a page of docs has what a command of tamis says; that stands between two lines, of which the
# first names the command: <!-- tamis COMMAND... -->. A command that lacks a backend is no measure.
# Usage: test_page.sh TAMIS PAGE [--update]; the latter writes it there.
# Exit status: 0 the same, 1 not, 77 a backend has no device here.
set -u
tamis=${1:?}
page=${2:?}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
command=$(sed -n 's/^<!-- tamis \(.*\) -->$/\1/p' "$page")
begin="<!-- tamis $command -->"
end='<!-- end of what it says -->'

# It stands on lines of its own between the two marks.
if [ "$(grep -cxF -e "$begin" -e "$end" "$page")" -ne 2 ]; then
    echo "$page: lacks the lines <!-- tamis COMMAND --> and $end"
    exit 1
fi
# shellcheck disable=SC2086 # a list of words
"$tamis" $command >"$work/now" 2>"$work/err" || {
    cat "$work/err"
    exit 1
}
if grep -q '; not [a-z]*: ' "$work/now"; then
    grep '; not [a-z]*: ' "$work/now"
    exit 77
fi
awk -v begin="$begin" -v end="$end" -v now="$work/now" '
    $0 == end { inside = 0; print "" }
    !inside { print }
    $0 == begin { inside = 1; print ""; while ((getline line <now) > 0) print line }
' "$page" >"$work/page"
if [ "${3-}" = --update ]; then
    cat "$work/page" >"$page"
    exit 0
fi
diff -u "$page" "$work/page" && exit 0
echo "$page does not have what 'tamis $command' says: $0 TAMIS PAGE --update"
exit 1
