# SPDX-License-Identifier: Apache-2.0
"""The C library as cffi gives it: ``lib`` has functions, enumerators and macros by their names in the
headers, ``ffi`` their types. What the package has no class for is called here."""
from ._c import ffi
from ._core import check, error, lib

__all__ = ["check", "error", "ffi", "lib"]
