# SPDX-License-Identifier: Apache-2.0
"""Writes tamis/_c.py, by which cffi calls the library, from the public headers.

Usage: generate.py COMPILER HEADERS OUTPUT

COMPILER preprocesses (any that takes -E and -dM, such as gcc and clang); HEADERS is lib/include.
Types and functions come as the preprocessor leaves them; macros that are numbers become constants
of the same names."""
import os
import re
import subprocess
import sys
import tempfile

import cffi

# Of the compiler's headers only the types that cffi knows by itself are used.
EMPTY = ("stddef.h", "stdint.h")
# Functions whose callers pass a pointer that may be of a const object: nothing to say.
NUMBER = re.compile(r"\(?\s*(?:\(\w+\)\s*)?(0[xX][0-9a-fA-F]+|\d+)[uUlL]*\s*(?:<<\s*(\d+))?\s*\)?$")
KNOWN = {"UINT32_MAX": 0xFFFFFFFF, "UINT64_MAX": 0xFFFFFFFFFFFFFFFF}


def preprocess(compiler, headers, *options):
    names = sorted(name for name in os.listdir(os.path.join(headers, "tamis")) if name.endswith(".h"))
    with tempfile.TemporaryDirectory() as folder:
        for name in EMPTY:
            open(os.path.join(folder, name), "w").close()
        source = os.path.join(folder, "all.c")
        with open(source, "w") as file:
            file.writelines(f"#include <tamis/{name}>\n" for name in names)
        # Without __GNUC__ the headers have no attributes.
        command = [compiler, "-E", "-P", "-U__GNUC__", "-nostdinc", "-I", folder, "-I", headers]
        return subprocess.run([*command, *options, source], check=True, text=True,
                              stdout=subprocess.PIPE).stdout


def constants(macros):
    """The macros TAMIS_NAME that are a number, as (name, value)."""
    for line in macros.splitlines():
        match = re.match(r"#define (TAMIS_\w+) (.+)$", line)
        if not match:
            continue
        name, text = match.groups()
        number = NUMBER.match(text)
        if text in KNOWN:
            yield name, KNOWN[text]
        elif number:
            yield name, int(number.group(1), 0) << int(number.group(2) or 0)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    compiler, headers, output = sys.argv[1:]
    ffi = cffi.FFI()
    ffi.set_source("tamis._c", None)
    ffi.cdef(preprocess(compiler, headers))
    ffi.cdef("".join(f"#define {name} {value}\n"
                     for name, value in constants(preprocess(compiler, headers, "-dM"))))
    os.makedirs(os.path.dirname(output), exist_ok=True)
    ffi.emit_python_code(output)


if __name__ == "__main__":
    main()
