#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the source distribution of the Python package, and from it a wheel that needs nothing but glibc: the
# OpenCL loader, hiredis and PCRE2 lie in it. It fits every Python 3 of this architecture.
#   tools/wheel.sh [--cuda] [FOLDER]    both go to the folder; default: build-wheel/ of the tree
# With --cuda the CUDA kernels are in it, which takes nvcc and minutes. The tools to build with come from PyPI
# (tools/python_env.sh). Exit status 77 with the reason where they cannot be had.
set -eu
tree=$(realpath "$(dirname "$0")/..")
TAMIS_NVCC=OFF
[ "${1:-}" != --cuda ] || { TAMIS_NVCC=ON; shift; }
case $#${1-} in
0 | 1[!-]*) out=$(realpath -m "${1:-$tree/build-wheel}") ;;
*) sed -n '3,8s/^# //p' "$0" >&2; exit 2 ;;
esac
cd "$tree"
. tools/packages.sh

# shellcheck disable=SC2086 # a list of words
install_missing $needed_for_wheel
env=$(tools/python_env.sh build python/requirements-build.txt)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH=$env/bin:$PATH TAMIS_NVCC

say "building"
quietly "$env/bin/python" -c 'import sys, scikit_build_core.build as b; b.build_sdist(sys.argv[1])' "$work"
sdist=$(ls "$work"/*.tar.gz)
quietly "$env/bin/python" -m pip wheel --verbose --no-build-isolation --no-deps --no-index \
    --wheel-dir "$work/built" "$sdist"

say "bundling libraries"
quietly auditwheel repair --wheel-dir "$work/repaired" "$work"/built/*.whl
# The licences of what is bundled, and of xxHash, which is compiled in, ask to be with the copies.
"$env/bin/python" -m wheel unpack --dest "$work/unpacked" "$work"/repaired/*.whl >/dev/null
info=$(ls -d "$work"/unpacked/*/*.dist-info)
bundled=$("$env/bin/python" - "$info"/sboms/auditwheel.cdx.json <<'END_OF_PYTHON'
import json, sys
for part in json.load(open(sys.argv[1]))["components"]:
    if part["name"] != "tamis":
        print(part["name"])
END_OF_PYTHON
)
for package in $bundled libxxhash-dev; do
    licence=/usr/share/doc/$package/copyright
    if [ ! -e "$licence" ]; then
        printf 'wheel.sh: the wheel must hold the licence of %s, there is no %s\n' "$package" "$licence" >&2
        exit 1
    fi
    cp "$licence" "$info/licenses/$package"
done
mkdir -p "$out"
"$env/bin/python" -m wheel pack --dest-dir "$out" "$work"/unpacked/* >/dev/null
mv "$sdist" "$out"

wheel=$out/$(basename "$work"/repaired/*.whl)
say "$(basename "$sdist"), $(stat -c %s "$out/$(basename "$sdist")") bytes"
say "$(basename "$wheel"), $(stat -c %s "$wheel") bytes, CUDA kernels: $TAMIS_NVCC"
printf '%s\n' "$bundled" | sed 's/^/   bundled: /'
printf '%s\n' "$wheel"
