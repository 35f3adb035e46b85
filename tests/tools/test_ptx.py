#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the CUDA kernels to PTX and looks for differences of a number with itself.

Usage: test_ptx.py NVCC FOLDER_OF_KERNELS

x - x is 0 or, where x is not finite, NaN: but what turns PTX into machine code may contract it with
the product that x is, and then gives the product's rounding error. Kernels look at bits instead. One
head dim stands for all: they share the templates.
"""
import os
import re
import subprocess
import sys
import tempfile

OPERATION = re.compile(r"^\s*(?:@!?%\w+\s+)?(sub|add|mul|neg|fma)(?:\.(?:rn|ftz|sat))*\.f32\s+(.*);")


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


def compile_ptx(nvcc, folder, source):
    with tempfile.TemporaryDirectory() as made:
        ptx = os.path.join(made, "kernel.ptx")
        subprocess.run([nvcc, "-ptx", "-std=c++17", "-O3", "-arch=compute_80",
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
    assert kernels > 0, f"no kernel in {folder}"
    print(f"{kernels} kernels")
    sys.exit(failed)


main()
