#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds a wheel (tools/wheel.sh) and installs it in an environment that has nothing but what it asks for: it
# brings its libraries, warns where no OpenCL driver is, uses PoCL where that is visible, and passes the tests
# of python/tests. Then `pip install` of the tree. Nothing but the build tools needs the network.
# Usage: wheel.sh TREE
set -eu
tree=$1
cd "$tree"
build=$(tools/python_env.sh build python/requirements-build.txt)
wheels=$(tools/python_env.sh --wheels test python/requirements-test.txt)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tools/wheel.sh "$work/dist"
wheel=$(ls "$work"/dist/*.whl)
tag=${wheel##*-}
case $tag in
manylinux_*) ;;
*) echo "FAIL the tag is ${tag%.whl}"; exit 1 ;;
esac
"$build/bin/auditwheel" show "$wheel" | tr -s ' \n' ' ' | grep -q -F "tag: \"${tag%.whl}\"" || {
    echo "FAIL auditwheel does not see ${tag%.whl}:"
    "$build/bin/auditwheel" show "$wheel"
    exit 1
}

"${PYTHON:-python3}" -m venv "$work/env"
python=$work/env/bin/python
export PIP_NO_INDEX=1 PIP_FIND_LINKS=$wheels PIP_QUIET=1 PIP_DISABLE_PIP_VERSION_CHECK=1
"$python" -m pip install "$wheel" pytest
"$python" -m pip check
cd "$work"
mkdir none

installed=$tree/tests/python/installed.py
OCL_ICD_VENDORS=$work/none "$python" "$installed" "$work/env" reference
pocl=/etc/OpenCL/vendors/pocl.icd
if [ -e "$pocl" ]; then
    OCL_ICD_VENDORS=$pocl "$python" "$installed" "$work/env" opencl
    answers=$(cd "$tree" && OCL_ICD_VENDORS=$pocl "$python" python/examples/five_lines.py)
    case $answers in
    *48213*30582*) ;; # the keys that stand in the text
    *) echo "FAIL five_lines.py answers: $answers"; exit 1 ;;
    esac
fi
"$python" -m pytest -q -p no:cacheprovider --ignore="$tree/python/tests/hf" "$tree/python/tests"

# From the tree, with a build environment that pip makes, and without optimisation, which takes time.
"$python" -m pip install --force-reinstall --no-deps --config-settings=cmake.build-type=Debug \
    --config-settings=cmake.define.TAMIS_CUDA=OFF --config-settings=cmake.define.TAMIS_OPENCL=OFF "$tree"
"$python" - "$work/env" <<'END_OF_PYTHON'
import sys, tamis
assert tamis.__file__.startswith(sys.argv[1]), tamis.__file__
reasons = {device.backend: device.reason for device in tamis.devices()}
assert "built without" in reasons["opencl"] and "built without" in reasons["cuda"], reasons
END_OF_PYTHON
echo 'all is well'
