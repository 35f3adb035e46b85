#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The package's types, by mypy as pyproject.toml configures it: strict, and for the oldest Python that the
# package takes.
# Usage: types.sh TREE
set -eu
cd "$1"
env=$(tools/python_env.sh types python/requirements-types.txt)
"$env/bin/mypy" --cache-dir /dev/null
