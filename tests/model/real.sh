#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A real model on one device: usage: real.sh TEST-MODEL-REAL DEVICE TESTS/DATA MODEL
# MODEL is a name that tools/fetch_model.sh knows.
# Exit status: that of the test; 77 where the file cannot be had.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
if ! file=$("$root/tools/fetch_model.sh" "$4"); then
    echo 'skipped: tools/fetch_model.sh does not give the model'
    exit 77
fi
exec "$1" "$2" "$3" "$file" "$3/$4.logits"
