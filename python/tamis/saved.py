# SPDX-License-Identifier: Apache-2.0
"""Sequences as streams of bytes (tamis/saved.h): saved from one cache, restored into another one, of
whatever device or process."""
from __future__ import annotations

from typing import Any, BinaryIO

from . import _core
from ._c import ffi
from ._core import NULL, check, error, lib
from .cache import Sequence
from .errors import ArgumentError, FileError, FormatError
from .plan import Plan


def _params(fingerprint: bytes, bounds: bool) -> Any:
    if len(fingerprint) != 16:
        raise ArgumentError(f"a fingerprint of {len(fingerprint)} bytes: it has 16")
    params = ffi.new("tamis_save_params *")
    params.fingerprint = fingerprint
    params.flags = lib.TAMIS_SAVE_BOUNDS if bounds else 0
    return params


def write_all(file: BinaryIO, data: bytes) -> None:
    """Writes all bytes, also to a file that takes some of them at a time."""
    while data:
        n = file.write(data)
        if not n:
            raise FileError(f"the file has taken none of {len(data)} bytes")
        data = data[n:]


def read_all(file: BinaryIO, n: int, what: str) -> bytes:
    """Reads n bytes. Raises FormatError where the file ends before."""
    parts = []
    while n:
        part = file.read(n)
        if not part:
            raise FormatError(f"the file ends within {what}: {n} bytes are missing")
        parts.append(part)
        n -= len(part)
    return b"".join(parts)


def save(plan: Plan, sequence: Sequence, file: BinaryIO, fingerprint: bytes = bytes(16), *,
         bounds: bool = False) -> None:
    """Writes a sequence to a binary file, from where that stands on. The sequence stays as it is.

    Args:
        fingerprint: 16 bytes, of the model (`Model.fingerprint`) or whatever else K and V come from.
        bounds: save bounds of full pages, too; without it they are computed anew.

    K and V go with their planes, bit for bit; the tokens do not. What the file raises travels; what has been
    written is then no stream. Raises StateError for a sequence that is in the midst of something."""
    def write(_: Any, data: Any, n: int) -> int:
        with _core.callback() as call:
            write_all(file, bytes(ffi.buffer(data, n)))
        return int(call.failed)

    callback = _core.function_for_c("tamis_saved_write", write, 1)
    check(lib.tamis_plan_save(plan._pointer, sequence.handle, _params(fingerprint, bounds), callback, NULL,
                              error()))


def restore(plan: Plan, file: BinaryIO, fingerprint: bytes = bytes(16)) -> Sequence:
    """Adds a sequence to the plan's cache that is what was saved, read from where the file stands up to the
    end of the stream and no further. It goes on with the same bits on the same kind of device.

    Raises ArgumentError where fingerprint, shape, dtype, planes or eviction are not those that it was saved
    with, with both values; FormatError for what is no saved sequence or is cut off; DamagedError where a
    checksum does not hold; FullError. What the file raises travels. Nothing has changed then."""
    def read(_: Any, data: Any, n: int) -> int:
        with _core.callback() as call:
            ffi.memmove(data, read_all(file, n, "a saved sequence"), n)
        return int(call.failed)

    callback = _core.function_for_c("tamis_saved_read", read, 1)
    plan._collect()
    out = ffi.new("tamis_sequence *")
    check(lib.tamis_plan_restore(plan._pointer, _params(fingerprint, False), callback, NULL, out, error()))
    return Sequence(plan.cache, out[0])
