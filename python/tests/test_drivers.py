# SPDX-License-Identifier: Apache-2.0
"""Which OpenCL drivers are seen: the system's, pip's, and the user's in their place."""
from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

POCL = pathlib.Path("/etc/OpenCL/vendors/pocl.icd")

# The system's folder is that of the first argument. PoCL finds no device where its library has been given
# another place, so that drivers are listed, and whether they can be used.
PROGRAM = """
import os, pathlib, sys, warnings
warnings.simplefilter("error")
from tamis import _drivers
import tamis
_drivers._SYSTEM = pathlib.Path(sys.argv[1])
before = dict(os.environ)
if len(sys.argv) > 2:
    tamis.Context(sys.argv[2]).close()
found = [(device.driver, device.usable) for device in tamis.devices() if device.backend == "opencl"]
assert dict(os.environ) == before, set(os.environ.items()) ^ set(before.items())
print([pair for pair in found if pair[0]])
"""


@pytest.fixture
def empty(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


@pytest.fixture
def pip(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder of packages in which PoCL lies as pip's intel-opencl-rt would: its data beside lib/."""
    if not POCL.exists():
        pytest.skip("PoCL is not installed (Debian: pocl-opencl-icd)")
    packages = tmp_path / "lib" / "python3" / "site-packages"
    info = packages / "intel_opencl_rt-2026.2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: intel-opencl-rt\nVersion: 2026.2.0\n")
    (info / "RECORD").write_text("../../libintelocl.so,,\nintel_opencl_rt-2026.2.0.dist-info/METADATA,,\n")
    name = POCL.read_text().strip()
    found = [path for path in [pathlib.Path(name), *pathlib.Path("/usr/lib").glob(f"*/{name}")]
             if path.exists()]
    (tmp_path / "lib" / "libintelocl.so").symlink_to(found[0])
    return packages


def drivers(system: pathlib.Path, packages: pathlib.Path, *device: str, **named: str) -> str:
    """The OpenCL drivers that a new process sees, as a list."""
    hidden = ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH", "TAMIS_DEVICE")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env["PYTHONPATH"] = os.pathsep.join([str(packages), env.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    env.update(named)
    answer = subprocess.run([sys.executable, "-c", PROGRAM, str(system), *device], env=env, check=True,
                            text=True, stdout=subprocess.PIPE)
    return answer.stdout.strip()


def test_a_driver_of_pip_is_seen(pip: pathlib.Path, empty: pathlib.Path) -> None:
    named = drivers(empty, pip, OCL_ICD_VENDORS=str(pip.parents[1] / "libintelocl.so"))
    assert named.count("(") == 1
    assert drivers(empty, pip) == named
    assert drivers(empty / "missing", pip) == named
    assert drivers(empty, pip, OCL_ICD_VENDORS="") == named
    # All devices are looked for even where one is named.
    assert drivers(empty, pip, "reference") == named


def test_drivers_that_the_user_names_are_the_only_ones(pip: pathlib.Path, empty: pathlib.Path) -> None:
    assert drivers(empty, pip, OCL_ICD_VENDORS=str(empty)) == "[]"
    assert drivers(empty, pip, OPENCL_VENDOR_PATH=str(empty)) == "[]"
    assert "True" in drivers(empty, pip, OCL_ICD_VENDORS=str(POCL))


def test_drivers_of_the_system_stay(pip: pathlib.Path, tmp_path: pathlib.Path) -> None:
    system = tmp_path / "vendors"
    system.mkdir()
    (system / "pocl.icd").symlink_to(POCL)
    (pip.parents[1] / "libintelocl.so").unlink()  # PoCL cannot be loaded twice
    assert "True" in drivers(system, pip)
