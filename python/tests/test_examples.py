# SPDX-License-Identifier: Apache-2.0
"""The examples in Python print what their originals in C print, checksums of all outputs included."""
from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import tamis
from conftest import DEVICES, REPOSITORY


def c_compiler() -> str:
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("a program would have to be built with the library's sanitizer")
    found = os.environ.get("CC") or shutil.which("cc")
    if not found:
        pytest.skip("there is no C compiler (Debian: gcc)")
    return found


def program(name: str, folder: pathlib.Path, *libraries: str) -> str:
    """The example of docs/examples as a program: the one that EXAMPLE_NAME names, or one that is compiled
    here with the package's own library."""
    built = os.environ.get(f"EXAMPLE_{name.upper()}")
    if built:
        return built
    compiler = c_compiler()
    package = pathlib.Path(tamis.__file__).parent / "lib"
    model = next(package.glob("libtamis_model.so*")).resolve()  # libtamis lies beside it
    library = next(model.parent.glob("libtamis.so*"))
    out = str(folder / name)
    subprocess.run([*compiler.split(), f"-I{REPOSITORY / 'lib' / 'include'}",
                    str(REPOSITORY / "docs" / "examples" / f"{name}.c"), str(library),
                    f"-Wl,-rpath,{library.parent}", *libraries, "-o", out], check=True)
    return out


def output(command: list[str], device: str) -> str:
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, timeout=120,
                          env={**os.environ, "TAMIS_DEVICE": device}).stdout


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name, last", [("decode", "of the cache"), ("batch", "checksum ")])
def test_an_example_prints_what_its_original_prints(name: str, last: str, device: str,
                                                    tmp_path: pathlib.Path) -> None:
    expected = output([program(name, tmp_path)], device)
    assert last in expected.splitlines()[-1]
    mirror = REPOSITORY / "python" / "examples" / f"{name}.py"
    assert output([sys.executable, str(mirror)], device) == expected


def test_an_engine_in_numpy(tmp_path: pathlib.Path) -> None:
    """The engine of engine_opencl.c on its own OpenCL queue, and one in NumPy in 40 lines: bit for bit."""
    if "opencl" not in DEVICES:
        pytest.skip("there is no OpenCL device")
    if not os.environ.get("EXAMPLE_ENGINE_OPENCL") and not pathlib.Path("/usr/include/CL/cl.h").exists():
        pytest.skip("there are no OpenCL headers (Debian: opencl-headers)")
    expected = output([program("engine_opencl", tmp_path, "-lOpenCL")], "")
    assert "checksum " in expected
    mirror = REPOSITORY / "python" / "examples" / "engine.py"
    assert output([sys.executable, str(mirror)], "opencl") == expected
    assert len(mirror.read_text().splitlines()) <= 40


def test_the_overhead_of_calls_is_measured() -> None:
    c_compiler()
    script = REPOSITORY / "python" / "examples" / "overhead.py"
    table = output([sys.executable, str(script), "--layers", "4", "--steps", "20", "--runs", "3"], "reference")
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")][1:]
    assert [row[0].strip() for row in rows] == ["step begin + end", "write", "attend",
                                                "**a layer: write + attend**"]
    assert all(0 < float(c) < float(python) < 1e4 for _, c, python, _ in rows)
