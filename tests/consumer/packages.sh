#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The Debian packages of a finished build: their names, what they ask for, which files are in which, and
# that the program in them runs where they are unpacked.
# Usage: packages.sh BUILD. Exit status: 0 all is well, 77 Debian's tools are missing.
set -eu
build=$1
for tool in dpkg-deb dpkg-shlibdeps file; do
    command -v $tool >/dev/null || { echo "skipped: there is no $tool"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAIL $*"
    exit 1
}

# has PACKAGE FIELD PATTERN
has() {
    dpkg-deb -f "$work/$1"_*.deb "$2" | grep -qE "$3" ||
        fail "$1, $2: $(dpkg-deb -f "$work/$1"_*.deb "$2")"
}

# holds PACKAGE PATTERN: a file of it matches.
holds() {
    grep -qxE "$2" "$work/$1.files" || fail "$1 holds no $2: $(cat "$work/$1.files")"
}

(cd "$work" && cpack --config "$build/CPackConfig.cmake" -B "$work") >"$work/log" 2>&1 || {
    tail -n 20 "$work/log"
    fail 'cpack'
}
version=$(sed -n 's/^set(CPACK_PACKAGE_VERSION "\(.*\)")$/\1/p' "$build/CPackConfig.cmake")
names=$(cd "$work" && echo *.deb)
arch=$(dpkg --print-architecture)
[ "$names" = "libtamis-dev_${version}_$arch.deb libtamis2_${version}_$arch.deb tamis_${version}_$arch.deb" ] ||
    fail "packages: $names"

for package in libtamis2 libtamis-dev tamis; do
    dpkg-deb -c "$work/$package"_*.deb | awk '$1 !~ /^d/ { print $6 }' >"$work/$package.files"
    dpkg-deb -x "$work/$package"_*.deb "$work/unpacked"
    holds $package "\./usr/share/doc/$package/copyright"
    has $package Description "sparse-attention pipeline of LLM inference, (library|headers|command line)$"
    has $package Maintainer .
done
[ -z "$(sort "$work"/*.files | uniq -d)" ] || fail "in two packages: $(sort "$work"/*.files | uniq -d)"
others=$(cat "$work"/*.files | grep -vE '^\./usr/(bin|include|lib|share/(doc|man|bash-completion|fish|zsh))/' || true)
[ -z "$others" ] || fail "files where none should be: $others"

holds libtamis2 '\./usr/lib/(.*/)?libtamis\.so\.2'
holds libtamis-dev '\./usr/lib/(.*/)?libtamis\.so'
holds libtamis-dev '\./usr/include/tamis/tamis\.h'
holds libtamis-dev '\./usr/lib/(.*/)?pkgconfig/tamis\.pc'
holds libtamis-dev '\./usr/lib/(.*/)?cmake/tamis/tamis-config\.cmake'
holds libtamis-dev '\./usr/share/doc/libtamis-dev/examples/decode\.c'
holds tamis '\./usr/bin/tamis'
holds tamis '\./usr/share/man/man1/tamis\.1'
holds tamis '\./usr/share/bash-completion/completions/tamis'
holds tamis '\./usr/share/zsh/vendor-completions/_tamis'
holds tamis '\./usr/share/fish/vendor_completions\.d/tamis\.fish'
has libtamis2 Depends 'libc6 '
has libtamis2 Recommends 'pocl-opencl-icd \| opencl-icd, libclblast1'
has libtamis-dev Depends "libtamis2 \(= $version\)"
has tamis Depends "libtamis2 \(= $version\)"
dpkg-deb -I "$work"/libtamis2_*.deb | grep -q ' shlibs *$' || fail 'libtamis2 says not which programs need it'
dpkg-deb -I "$work"/libtamis2_*.deb | grep -qE ' (triggers|postinst) ' || fail 'nothing runs ldconfig'

program=$(grep -xE '\./(.*/)?bin/tamis' "$work/tamis.files")
(cd "$work/unpacked" && env -i "$program" devices) | grep -q '^reference:0 .*usable$' || fail 'tamis devices'

# The server and its service, if the build has it: the unit names the program, and systemd takes it as it is.
if (cd "$work/unpacked" && env -i "$program" help) | grep -q '^  serve '; then
    unit=./usr/lib/systemd/system/tamis-serve.service
    holds tamis "$unit"
    holds tamis '\./usr/share/doc/tamis/serve\.md'
    has tamis Depends 'libmicrohttpd'
    (cd "$work/unpacked" && env -i "$program" serve --help) | grep -q '^usage: tamis serve ' ||
        fail 'tamis serve --help'
    grep -q '^ExecStart=/usr/bin/tamis serve ' "$work/unpacked/$unit" || fail "the unit: $(cat "$work/unpacked/$unit")"
    ! grep -q '@' <(grep -v '^SystemCallFilter=' "$work/unpacked/$unit") || fail 'the unit holds an @'
    for script in postinst prerm postrm; do
        dpkg-deb -I "$work"/tamis_*.deb "$script" | sh -n || fail "$script"
    done
    if command -v systemd-analyze >/dev/null; then
        sed "s|^ExecStart=/usr/bin/tamis|ExecStart=$work/unpacked/usr/bin/tamis|" "$work/unpacked/$unit" \
            >"$work/tamis-serve.service"
        said=$(systemd-analyze verify --man=no "$work/tamis-serve.service" 2>&1) || said="$said (failed)"
        [ -z "$said" ] || fail "the unit: $said"
    fi
fi
cd "$work" && ls -l ./*.deb
