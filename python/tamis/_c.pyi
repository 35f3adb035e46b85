# SPDX-License-Identifier: Apache-2.0
# For type checkers: of the C library's functions and types only their names are known (generate.py).
from typing import Any

ffi: Any
