#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The package's types (mypy --strict, as pyproject.toml configures it), and that no module asks for a newer
# Python than pyproject.toml says.
# Usage: types.sh TREE
set -eu
cd "$1"
env=$(tools/python_env.sh types python/requirements-types.txt)
least=$(sed -n 's/^requires-python = ">=\(.*\)"$/\1/p' pyproject.toml)
"$env/bin/mypy" --cache-dir /dev/null
"$env/bin/vermin" --quiet --no-tips --target="$least-" python/tamis
