#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of python/tests/hf beside torch and transformers, which PyPI gives once (5 GB on disk).
# Usage: hf.sh TREE PACKAGE, the folder in which a build has the package
set -eu
cd "$1"
if ! ls python/tests/hf/test_*.py >/dev/null 2>&1; then
    echo 'skipped: there are no tests in python/tests/hf'
    exit 77
fi
env=$(tools/python_env.sh hf python/requirements-hf.txt)
PYTHONPATH=$2 "$env/bin/python" -m pytest -q -p no:cacheprovider python/tests/hf
