#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# 10,000 texts on each kind of vocabulary, and 5,000 on each further pattern, against llama.cpp:
# usage: tokens_oracle.sh TEST-MODEL-TOKENS
# TAMIS_ORACLE_PYTHON: a Python with the packages gguf and llama-cpp-python (python3 without it);
# TAMIS_VOCABULARIES: GGUF files beside the vocabularies that are made here, separated by spaces.
# Exit status: 0 if all tokens are equal, 77 if the packages are missing.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${TAMIS_ORACLE_PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
    echo "skipped: there is no $python"
    exit 77
fi
# shellcheck disable=SC2086 # a list of files
"$python" "$(dirname "$0")/make_tokens.py" --out "$work" --lines "${TEST_LINES:-10000}" \
    ${TAMIS_VOCABULARIES:-} >"$work/made" || { code=$?; cat "$work/made"; exit $code; }
while read -r cases vocabulary; do
    "$1" "$vocabulary" "$cases"
done <"$work/made"
