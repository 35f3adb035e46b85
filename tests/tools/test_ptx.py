#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the CUDA kernels to PTX and looks for differences of a number with itself, and for the
waits of kernels that may begin early.

Usage: test_ptx.py NVCC FOLDER_OF_KERNELS

x - x is 0 or, where x is not finite, NaN: but what turns PTX into machine code may contract it with
the product that x is, and then gives the product's rounding error. Kernels look at bits instead.
Without its wait attend would read lists that are being written, which shows on a GPU alone. One head
dim stands for all: they share the templates.
"""
import os
import re
import subprocess
import sys
import tempfile

OPERATION = re.compile(r"^\s*(?:@!?%\w+\s+)?(sub|add|mul|neg|fma)(?:\.(?:rn|ftz|sat))*\.f32\s+(.*);")

# Of kernels that take part in launches that overlap: what one of them must have, by its file.
OVERLAP = {
    "attend.cu": (r"attend_decode_\w+", "griddepcontrol.wait;"),
    "attend_mma.cu": (r"attend_(decode|logits)_\w+", "griddepcontrol.wait;"),
    "sparse_attend.cu": (r"score_select_\w+", "griddepcontrol.launch_dependents;"),
}


class Finder:
    """The operations of one kernel, each of which may be a number less itself."""

    def __init__(self):
        self.products, self.negated = {}, {}

    def is_opposite(self, x, y):
        """Whether one of two registers is the other negated."""
        return self.negated.get(x) == y or self.negated.get(y) == x

    def is_itself(self, name, to, of):
        if name == "mul":
            self.products[to] = sorted(of)
        elif name == "neg":
            self.negated[to] = of[0]
        elif name == "sub":
            return of[0] == of[1]
        elif name == "add":
            return self.is_opposite(*of)
        elif name == "fma":
            return self.products.get(self.negated.get(of[2])) == sorted(of[:2])
        return False


def find(ptx):
    """(kernel, line of PTX) of each such difference."""
    kernel, finder, found = "", Finder(), []
    for line in ptx.splitlines():
        entry = re.search(r"\.(?:entry|func)\s.*?(\w+)\(", line)
        if entry:
            kernel, finder = entry.group(1), Finder()
        operation = OPERATION.match(line)
        if not operation:
            continue
        to, *of = re.split(r",\s*", operation.group(2))
        if finder.is_itself(operation.group(1), to, of):
            found.append((kernel, line.strip()))
    return found


def check_finder():
    """The test itself must see what it looks for, and that alone."""
    lines = ["mul.f32 %f3, %f1, %f2;", "neg.f32 %f4, %f3;"]
    wrong = ["sub.f32 %f5, %f3, %f3;", "@%p1 sub.rn.ftz.f32 %f5, %f1, %f1;",
             "add.f32 %f5, %f4, %f3;", "fma.rn.f32 %f5, %f2, %f1, %f4;"]
    right = ["sub.f32 %f5, %f3, %f1;", "add.f32 %f5, %f4, %f1;", "fma.rn.f32 %f5, %f1, %f1, %f4;"]
    for line in wrong + right:
        found = find(".visible .entry k(\n" + "\n".join(lines + [line]))
        assert bool(found) == (line in wrong), line


def lacking(ptx, name, instruction):
    """The kernels of that name without the instruction; all of the file if it has none."""
    parts = re.split(r"\.entry\s+(\w+)\(", ptx)[1:]
    kernels = {kernel: text for kernel, text in zip(parts[::2], parts[1::2])
               if re.fullmatch(name, kernel)}
    return [kernel for kernel, text in kernels.items() if instruction not in text] or (
        [] if kernels else [name])


def compile_ptx(nvcc, folder, source):
    architecture = "compute_90" if source in OVERLAP else "compute_80"
    with tempfile.TemporaryDirectory() as made:
        ptx = os.path.join(made, "kernel.ptx")
        subprocess.run([nvcc, "-ptx", "-std=c++17", "-O3", "-arch=" + architecture,
                        "-DONLY_DIM_128", "-I", folder, "-o", ptx,
                        os.path.join(folder, source)], check=True)
        with open(ptx, encoding="utf-8") as file:
            return file.read()


def main():
    nvcc, folder = sys.argv[1:]
    check_finder()
    kernels, failed = 0, False
    for source in sorted(name for name in os.listdir(folder) if name.endswith(".cu")):
        ptx = compile_ptx(nvcc, folder, source)
        kernels += ptx.count(".entry")
        found = find(ptx)
        if found:
            failed = True
            print(f"{source}: {len(found)} differences of a number with itself, "
                  f"the first in {found[0][0]}: {found[0][1]}")
        without = lacking(ptx, *OVERLAP[source]) if source in OVERLAP else []
        if without:
            failed = True
            print(f"{source}: {', '.join(without)} without {OVERLAP[source][1]}")
    assert kernels > 0, f"no kernel in {folder}"
    print(f"{kernels} kernels")
    sys.exit(failed)


main()
