#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a small list of cases under oclgrind: fails on a failed case and on any out-of-bounds access
# or data race that it reports. 77 where oclgrind is not installed.
# usage: oclgrind.sh <tamis-check> [arguments of tamis-check; default --list oclgrind]
set -u
check=$1
shift
[ $# -gt 0 ] || set -- --list oclgrind
command -v oclgrind >/dev/null || { echo "oclgrind is not installed"; exit 77; }
log=$(mktemp) || exit 2
trap 'rm -f "$log"' EXIT
# As much local memory as CPU devices have, or their kernels would not run.
oclgrind --data-races --max-errors 50 --local-mem-size 524288 --log "$log" "$check" --device opencl "$@"
status=$?
if [ -s "$log" ]; then
    echo "oclgrind reports:"
    cat "$log"
    exit 1
fi
exit $status
