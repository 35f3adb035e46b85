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


def program(name: str, folder: pathlib.Path) -> str:
    """The example of docs/examples as a program: the one that EXAMPLE_NAME names, or one that is compiled
    here with the package's own library."""
    built = os.environ.get(f"EXAMPLE_{name.upper()}")
    if built:
        return built
    compiler = os.environ.get("CC") or shutil.which("cc")
    if not compiler:
        pytest.skip("there is no C compiler (Debian: gcc)")
    package = pathlib.Path(tamis.__file__).parent / "lib"
    model = next(package.glob("libtamis_model.so*")).resolve()  # libtamis lies beside it
    library = next(model.parent.glob("libtamis.so*"))
    out = str(folder / name)
    subprocess.run([*compiler.split(), f"-I{REPOSITORY / 'lib' / 'include'}",
                    str(REPOSITORY / "docs" / "examples" / f"{name}.c"), str(library),
                    f"-Wl,-rpath,{library.parent}", "-o", out], check=True)
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
