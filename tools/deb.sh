#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Debian packages libtamis2, libtamis-dev and tamis for this machine's Debian or Ubuntu.
#   tools/deb.sh [FOLDER [CMAKE OPTION...]]
# They go to the folder; default: build-deb/ of the tree, where they are built.
set -eu
tree=$(realpath "$(dirname "$0")/..")
out=$(realpath -m "${1:-$tree/build-deb}")
[ $# = 0 ] || shift
cd "$tree"
. tools/packages.sh

# shellcheck disable=SC2086 # a list of words
install_missing $needed_to_build dpkg-dev file
say "building into build-deb/"
build build-deb -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr -DTAMIS_TOOLS=ON \
    -DTAMIS_SERVE=ON -DTAMIS_TESTS=OFF -DTAMIS_PCRE2=ON "$@"
mkdir -p "$out"
quietly cpack --config build-deb/CPackConfig.cmake -B "$out"
rm -rf "$out/_CPack_Packages"
ls -l "$out"/*.deb
