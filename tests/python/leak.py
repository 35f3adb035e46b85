# SPDX-License-Identifier: Apache-2.0
"""Leaks a context, which python/tests/sanitized.py must find, and closes another one."""
from tamis.c import check, error, ffi, lib

import tamis


def leak() -> None:
    params = ffi.new("tamis_context_params *")
    name = ffi.new("char[]", b"reference")
    params.device = name
    check(lib.tamis_context_create(params, ffi.new("tamis_context **"), error()))


leak()
tamis.Context("reference").close()
