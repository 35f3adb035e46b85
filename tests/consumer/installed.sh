#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Programs of others on an installed copy of the library, which was moved after it was installed.
# Usage: installed.sh TREE WORK CC CXX WAY [ARGUMENT...], where WAY is
#   install BUILD      installs the build into WORK/copy
#   pkg-config         builds and runs the README's example by cc and pkg-config, compiles the others
#   cxx                the same for a C++ program that includes every public header
#   cmake              both by CMake's find_package
#   tools              runs the installed command line
#   static [OPTION...] all of these, with a static library that is built for it by the CMake options
# Exit status: 0 all is well, 77 pkg-config is missing.
set -eu
tree=$1 work=$2 cc=$3 cxx=$4 way=$5
shift 5
copy=$work/copy
unset LD_LIBRARY_PATH PKG_CONFIG_PATH

fail() {
    echo "FAIL $*"
    exit 1
}

# install BUILD: what is installed must not know where it was.
install() {
    rm -rf "$work/first" "$copy"
    cmake --install "$1" --prefix "$work/first" >"$work/install.log" || fail 'cmake --install'
    mv "$work/first" "$copy"
    # systemd's unit alone names the program where it was installed.
    unit=$(find "$copy" -name tamis-serve.service)
    [ -z "$unit" ] || grep -q "$work/first/bin/tamis serve" "$unit" || fail "$unit: another program"
    if grep -rlIF --exclude=tamis-serve.service -e "$work/first" -e "$tree" "$copy"; then fail 'paths of the build are installed'; fi
}

# package NAME OPTION...: asks pkg-config for a .pc file of the copy.
package() {
    name=$1
    shift
    found=$(find "$copy" -name tamis.pc)
    PKG_CONFIG_PATH=$(dirname "$found") pkg-config "$@" "$name"
}

need_pkg_config() {
    command -v pkg-config >/dev/null || {
        echo 'skipped: there is no pkg-config'
        exit 77
    }
}

# every_header: a C++ program that calls each library.
every_header() {
    for header in "$copy"/include/tamis/*.h; do
        echo "#include <tamis/$(basename "$header")>"
    done
    echo '#include <cstdio>'
    echo 'int main() {'
    echo '    tamis_model *model = nullptr;'
    echo '    tamis_model_destroy(&model);'
    echo '    return std::puts(tamis_version()) < 0;'
    echo '}'
}

# build NAME COMPILER SOURCE PROGRAM: as a user would, but for the place of the library.
build() {
    libraries=$(package tamis --variable=libdir)
    # shellcheck disable=SC2046,SC2086 # lists of words
    $2 "$3" $(package "$1" --cflags --libs ${static:-}) "-Wl,-rpath,$libraries" -o "$4"
}

# prints PROGRAM PATTERN
prints() {
    said=$("$1" 2>&1) || fail "$1: $said"
    echo "$said" | grep -q "$2" || fail "$1 says: $said"
    echo "$said"
}

by_pkg_config() {
    need_pkg_config
    [ "$(package tamis --modversion)" = "$version" ] || fail 'the version of tamis.pc'
    for source in "$tree"/docs/examples/*.c "$tree"/docs/examples/layouts/*.c; do
        # shellcheck disable=SC2046 # a list of words
        $cc -fsyntax-only -Wall -Werror "$source" $(package tamis --cflags) || fail "$source"
    done
    build tamis "$cc" "$tree/docs/examples/decode.c" "$work/decode"
    prints "$work/decode" 'read 0\.[0-9]* of the cache'
}

by_cxx() {
    need_pkg_config
    every_header >"$work/headers.cpp"
    libraries_of_all=tamis
    [ -z "$(find "$copy" -name tamis-model.pc)" ] || libraries_of_all=tamis-model
    build $libraries_of_all "$cxx -Wall -Wextra -pedantic -Werror" "$work/headers.cpp" "$work/headers"
    prints "$work/headers" "^$version\$"
}

by_cmake() {
    rm -rf "$work/by-cmake"
    every_header >"$work/every-header.cpp"
    cmake -S "$tree/tests/consumer/installed" -B "$work/by-cmake" -DCMAKE_PREFIX_PATH="$copy" \
        -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" -DEXAMPLES="$tree/docs/examples" \
        -DHEADERS="$work/every-header.cpp" >"$work/cmake.log" 2>&1 &&
        cmake --build "$work/by-cmake" >>"$work/cmake.log" 2>&1 || {
        tail -n 20 "$work/cmake.log"
        fail 'find_package(tamis)'
    }
    prints "$work/by-cmake/decode" 'read 0\.[0-9]* of the cache'
    prints "$work/by-cmake/headers" "^$version\$"
}

# With no environment: it finds the library by its own place.
by_tools() {
    env -i "$copy/bin/tamis" devices >"$work/devices" || fail 'tamis devices'
    grep -q '^reference:0 .*usable$' "$work/devices" || fail "no reference: $(cat "$work/devices")"
    [ -n "${static:-}" ] || ldd "$copy/bin/tamis" | grep -qF "=> $copy/" ||
        fail "the library of $copy is not taken: $(ldd "$copy/bin/tamis")"
}

version=$(sed -n 's/^project(tamis VERSION \([0-9.]*\) .*/\1/p' "$tree/CMakeLists.txt")
case $way in
install) install "$1" ;;
pkg-config) by_pkg_config ;;
cxx) by_cxx ;;
cmake) by_cmake ;;
tools) by_tools ;;
static)
    static=--static
    work=$work/static copy=$work/copy
    mkdir -p "$work"
    need_pkg_config
    # No time for optimisation: what is asked is whether it links.
    cmake -S "$tree" -B "$work/build" -DBUILD_SHARED_LIBS=OFF -DCMAKE_BUILD_TYPE=Debug \
        -DTAMIS_TESTS=OFF -DTAMIS_NVCC=OFF -DCMAKE_C_COMPILER="$cc" "$@" >"$work/build.log" 2>&1 &&
        cmake --build "$work/build" --parallel 2 >>"$work/build.log" 2>&1 || {
        tail -n 20 "$work/build.log"
        fail 'a static build'
    }
    install "$work/build"
    [ -z "$(find "$copy" -name 'libtamis.so*')" ] || fail 'a shared library is installed'
    by_pkg_config
    by_cxx
    by_cmake
    [ ! -e "$work/build/tamis" ] || by_tools
    ;;
*) fail "$way: no such way" ;;
esac
