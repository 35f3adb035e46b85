#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages, runs the installed program, removes the packages and looks for what is
# left. It changes the machine: for a bare Debian that is thrown away, as root.
# Usage: debian.sh FILE.deb...
set -eu
export DEBIAN_FRONTEND=noninteractive
[ $# -gt 0 ] || { sed -n '3,5s/^# //p' "$0" >&2; exit 2; }
packages=(tamis libtamis-dev libtamis2)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What belongs to packages, and what they may have made.
files() {
    find /etc /opt /usr /var/lib -xdev \
        ! -path '/var/lib/apt/*' ! -path '/var/lib/dpkg/*' ! -path '/var/lib/systemd/*' | sort
}

# apt-get ARGUMENT...
quietly() {
    apt-get -q -y "$@" >"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }
}

for file in "$@"; do
    cp "$file" "$work"
done
chmod 755 "$work" # apt reads the files as a user of its own
quietly update
files >"$work/before"

echo '== without what is recommended'
quietly install --no-install-recommends "$work"/*.deb
tamis devices
quietly purge --autoremove "${packages[@]}"

echo '== with it'
quietly install "$work"/*.deb
dpkg-query -W -f '${Package} ${Version} ${Status}\n' "${packages[@]}"
tamis devices
tamis serve --help | grep '^usage: tamis serve '
if command -v systemd-analyze >/dev/null; then
    systemd-analyze verify --man=no tamis-serve.service
    [ "$(systemctl is-enabled tamis-serve.service)" = disabled ] || { echo 'FAIL: the service is enabled'; exit 1; }
fi
tamis devices | grep -q '^opencl:0 .*usable$' || { echo 'FAIL: no OpenCL device'; exit 1; }
ldconfig -p | grep 'libtamis\.so\.2'
quietly purge --autoremove "${packages[@]}"

files >"$work/after"
left=$(comm -13 "$work/before" "$work/after" | grep -i tamis || true)
[ -z "$left" ] || { printf 'FAIL: left behind:\n%s\n' "$left"; exit 1; }
! dpkg-query -W -f '${Package}\n' "${packages[@]}" 2>/dev/null | grep . || { echo 'FAIL: still known'; exit 1; }
echo '== removed; nothing of tamis is left'
