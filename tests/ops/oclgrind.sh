#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a program under oclgrind: fails where it fails and on any out-of-bounds access or data race that
# is reported. 77 where oclgrind is not installed.
# usage: oclgrind.sh PROGRAM [ARGUMENT...]
set -u
command -v oclgrind >/dev/null || { echo "oclgrind is not installed"; exit 77; }
log=$(mktemp) || exit 2
trap 'rm -f "$log"' EXIT
# As much local memory as CPU devices have, or their kernels would not run.
oclgrind --data-races --max-errors 50 --local-mem-size 524288 --log "$log" "$@"
status=$?
if [ -s "$log" ]; then
    echo "oclgrind reports:"
    cat "$log"
    exit 1
fi
exit $status
