#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No two files call each other in a circle: test_circles.py NM OBJECT...

An object is a file; it needs the objects that define what it uses. Names that several objects define
(programs' own main) count for none."""
import collections
import re
import subprocess
import sys

# An evaluator calls functions and macros; these evaluate what they are given and what they say.
ALLOWED = [{"jinja/calls", "jinja/evaluate", "jinja/statements"}]


def name_of(path):
    return re.sub(r"^.*\.dir/(\./)?|\.c\.o$", "", path)


def read(nm, paths):
    """The file that defines each name, and the names that each file uses."""
    owners, uses = collections.defaultdict(set), {name_of(path): set() for path in paths}
    lines = subprocess.run([nm, "-A", *paths], check=True, capture_output=True, text=True).stdout
    for line in lines.splitlines():
        path, found = line.rsplit(":", 1)
        kind, symbol = found.split()[-2:]
        if kind == "U":
            uses[name_of(path)].add(symbol)
        elif kind in "TDBR":
            owners[symbol].add(name_of(path))
    return {symbol: next(iter(of)) for symbol, of in owners.items() if len(of) == 1}, uses


def circles(edges):
    """The sets of files that reach each other (Tarjan, SIAM J. Comput. 1(2), 1972)."""
    index, low, stack, out = {}, {}, [], []

    def visit(at):
        index[at] = low[at] = len(index)
        stack.append(at)
        for to in edges[at]:
            if to not in index:
                visit(to)
            if to in stack:
                low[at] = min(low[at], low[to])
        if low[at] == index[at]:
            found = set()
            while at not in found:
                found.add(stack.pop())
            if len(found) > 1:
                out.append(found)

    for start in edges:
        if start not in index:
            visit(start)
    return out


def main():
    owners, uses = read(sys.argv[1], sys.argv[2:])
    edges = {file: sorted({owners[s] for s in used if owners.get(s, file) != file})
             for file, used in uses.items()}
    sys.setrecursionlimit(10 * len(edges) + 1000)
    bad = [sorted(found) for found in circles(edges) if found not in ALLOWED]
    for files in bad:
        print("files that call each other in a circle:", ", ".join(files))
    print(f"{len(edges)} files")
    return 1 if bad or not edges else 0


if __name__ == "__main__":
    sys.exit(main())
