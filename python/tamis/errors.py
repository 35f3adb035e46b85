# SPDX-License-Identifier: Apache-2.0
"""Errors of the library as exceptions: one class for each status code."""
from __future__ import annotations


class Error(Exception):
    """A call that failed. The text is the library's own, with the offending value.

    Attributes:
        code: the status, a number below 0 (``TAMIS_E_ARGUMENT`` is -1, and so on).
        name: its name, such as ``"E_ARGUMENT"``.
    """

    code: int = 0
    name: str = ""


class ArgumentError(Error, ValueError):
    """E_ARGUMENT: an argument is invalid."""

    code, name = -1, "E_ARGUMENT"


class UnsupportedError(Error, NotImplementedError):
    """E_UNSUPPORTED: this build, device or op does not have it."""

    code, name = -2, "E_UNSUPPORTED"


class NoDeviceError(Error):
    """E_NO_DEVICE: there is no such device, or it cannot be used."""

    code, name = -3, "E_NO_DEVICE"


class NoMemoryError(Error, MemoryError):
    """E_NO_MEMORY: out of host or device memory."""

    code, name = -4, "E_NO_MEMORY"


class FullError(Error):
    """E_FULL: a cache has no free pages left, or a store no room."""

    code, name = -5, "E_FULL"


class StateError(Error, RuntimeError):
    """E_STATE: the call is not allowed now: another thread is in the context, a step is open, what
    it was made from has been closed."""

    code, name = -6, "E_STATE"


class FormatError(Error, ValueError):
    """E_FORMAT: a file is truncated, contradicts itself or has another format."""

    code, name = -7, "E_FORMAT"


class FileError(Error, OSError):
    """E_IO: reading or writing a file failed."""

    code, name = -8, "E_IO"


class DeviceError(Error, RuntimeError):
    """E_DEVICE: the device or its driver reported an error."""

    code, name = -9, "E_DEVICE"


class DamagedError(Error):
    """E_DAMAGED: a stored record or a saved sequence is damaged."""

    code, name = -10, "E_DAMAGED"


BY_CODE: dict[int, type[Error]] = {
    kind.code: kind
    for kind in (ArgumentError, UnsupportedError, NoDeviceError, NoMemoryError, FullError, StateError,
                 FormatError, FileError, DeviceError, DamagedError)
}
