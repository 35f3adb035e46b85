# SPDX-License-Identifier: Apache-2.0
"""OpenCL drivers that pip has installed (the extra ``opencl``), for the ICD loader, which looks into the
system's folder alone."""
from __future__ import annotations

import importlib.metadata
import os
import pathlib
import tempfile
import threading
from typing import Optional

from ._c import ffi
from ._core import NULL, lib

# By these a user says which drivers there are.
_NAMED_BY = ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH")
_SYSTEM = pathlib.Path("/etc/OpenCL/vendors")

_lock = threading.Lock()
_found = False


def find() -> None:
    """Comes before devices are looked for; does its work once in a process.

    An ICD loader loads drivers at its first call, and never again. For that moment it is pointed to a folder
    with the system's drivers and with pip's. The environment is as before afterwards, so that programs which
    this one starts see nothing of it. Where the user has named drivers, or pip has none, nothing is done."""
    global _found
    with _lock:
        if _found:
            return
        _found = True
        driver = None if any(os.environ.get(name) for name in _NAMED_BY) else _of_pip()
        if driver is None:
            return
        with tempfile.TemporaryDirectory(prefix="tamis-opencl-") as name:
            folder = pathlib.Path(name)
            for icd in sorted(_SYSTEM.glob("*.icd")):
                (folder / icd.name).symlink_to(icd)
            (folder / "tamis-intel.icd").write_text(f"{driver}\n")
            before = os.environ.get("OCL_ICD_VENDORS")  # none, or empty
            os.environ["OCL_ICD_VENDORS"] = name
            try:
                lib.tamis_device_list(NULL, 0, ffi.new("size_t *"), NULL)
            finally:
                del os.environ["OCL_ICD_VENDORS"]
                if before is not None:
                    os.environ["OCL_ICD_VENDORS"] = before


def _of_pip() -> Optional[pathlib.Path]:
    """Intel's runtime for CPUs. It finds its own libraries, which pip puts beside it."""
    try:
        files = importlib.metadata.files("intel-opencl-rt") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == "libintelocl.so":
            return pathlib.Path(os.path.abspath(file.locate()))
    return None
