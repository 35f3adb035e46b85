#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes a virtual environment with what a requirements file names, once, and prints its path.
#   tools/python_env.sh NAME REQUIREMENTS           the environment
#   tools/python_env.sh --wheels NAME REQUIREMENTS  in its place a folder of wheels, for pip's --find-links
# PYTHON makes it (/usr/bin/python3, else python3). It lies in $TAMIS_TEST_CACHE (~/.cache/tamis-test), under
# a name with the version of Python and a hash of the file, so that another file has another one; what is no
# longer used may be removed. Exit status 77 with the reason where PyPI does not give it.
set -eu
wheels=''
[ "${1:-}" != --wheels ] || { wheels=-wheels; shift; }
[ $# = 2 ] || { sed -n '3,8s/^# //p' "$0" >&2; exit 2; }
name=$1 requirements=$2
cache=${TAMIS_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tamis-test}
[ -n "${PYTHON:-}" ] || for PYTHON in /usr/bin/python3 python3; do
    ! command -v "$PYTHON" >/dev/null || break
done

cannot() {
    printf 'skipped: %s\n' "$*" >&2
    exit 77
}

command -v "$PYTHON" >/dev/null || cannot "there is no $PYTHON"
"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
    cannot "$PYTHON makes no virtual environments (Debian: python3-venv)"
# With the files that it names, which lie beside it.
files=("$requirements")
while read -r file; do
    files+=("$(dirname "$requirements")/$file")
done < <(sed -n 's/^-r //p' "$requirements")
hash=$(cat "${files[@]}" | sha256sum | cut -c 1-12)
version=$("$PYTHON" -c 'import platform; print(platform.python_version(), platform.machine(), sep="-")')
folder=$cache/python-$name$wheels-$version-$hash
mkdir -p "$cache"

# One makes it and others wait, also for the pip of one that was killed, which holds the lock as well. It is
# whole once it has the file `made`: a virtual environment cannot be made elsewhere and moved, for its
# programs have its path.
exec 9>"$folder.lock"
flock 9
if [ ! -e "$folder/made" ]; then
    rm -rf "$folder"
    began=$SECONDS
    log=$folder.log
    printf '== making %s from %s\n' "$folder" "$requirements" >&2
    if [ -n "$wheels" ]; then
        "$PYTHON" -m pip --version >/dev/null 2>&1 || cannot "$PYTHON has no pip (Debian: python3-pip)"
        mkdir "$folder"
        make=("$PYTHON" -m pip download --only-binary :all: --dest "$folder")
    else
        "$PYTHON" -m venv "$folder"
        make=("$folder/bin/python" -m pip install)
    fi
    if ! "${make[@]}" --quiet --disable-pip-version-check -r "$requirements" >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        rm -rf "$folder" "$log"
        cannot "PyPI did not give what $requirements names"
    fi
    rm -f "$log"
    touch "$folder/made"
    printf '== made in %s s, %s\n' $((SECONDS - began)) "$(du -sh "$folder" | cut -f 1)" >&2
fi
printf '%s\n' "$folder"
