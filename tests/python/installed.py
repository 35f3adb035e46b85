# SPDX-License-Identifier: Apache-2.0
"""Runs a plan by the package that is installed in a folder, and looks where it and its libraries come from.

Usage: installed.py FOLDER BACKEND, the backend that must be found where none is asked for"""
import doctest
import sys
import warnings

import numpy
import tamis


def opened(backend: str) -> tamis.Context:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        context = tamis.Context()
    assert context.device.backend == backend, context.device
    texts = [str(warning.message) for warning in said]
    assert bool(texts) == (backend == "reference"), texts
    assert all("pip install 'tamis[opencl]'" in text for text in texts), texts
    return context


def attend(context: tamis.Context) -> None:
    cache = tamis.Cache(context, n_layers=1, n_heads=4, n_kv_heads=2, head_dim=64, capacity_tokens=256)
    plan = cache.plan(select=tamis.Quest(budget=64, recent=16), max_context=256)
    text = cache.add()
    k, v = (context.array(numpy.full((1, 2, 64), value, "f4")) for value in (1, 3))
    q, out = context.array(numpy.ones((1, 4, 64), "f4")), context.empty((1, 4, 64))
    with plan.step(text) as step:
        step.write(0, k, v)
        step.attend(0, q, out)
    assert (out.read() == 3).all() and len(text) == 1


def loaded_from(folder: str) -> None:
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "/" in line}
    for name in "libtamis.so", "libtamis_model", "libOpenCL", "libhiredis", "libpcre2":
        found = [path for path in paths if path.rsplit("/", 1)[-1].startswith(name)]
        assert found and all(path.startswith(folder) for path in found), (name, found)


def main() -> None:
    folder, backend = sys.argv[1:]
    assert tamis.__file__.startswith(folder), tamis.__file__
    attend(opened(backend))
    assert not doctest.testmod(tamis).failed
    loaded_from(folder)


main()
