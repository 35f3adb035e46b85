# SPDX-License-Identifier: Apache-2.0
"""How Python calls the library: loading it, errors, callbacks, and the end of objects.

Everything else in the package stands on this file. Every call releases the GIL (cffi)."""
from __future__ import annotations

import collections
import os
import pathlib
import threading
import weakref
from typing import Any, Callable

from . import errors
from ._c import ffi

_FOLDER = pathlib.Path(__file__).absolute().parent / "lib"


def _vendors_beside_python() -> None:
    """Names the OpenCL drivers that pip has installed (the extra ``opencl``) to the ICD loader, which
    looks into the system's folder alone."""
    import sys

    if any(os.environ.get(name) for name in ("OCL_ICD_FILENAMES", "OCL_ICD_VENDORS")):
        return
    library = pathlib.Path(sys.prefix) / "lib" / "libintelocl.so"
    if library.exists():
        os.environ["OCL_ICD_FILENAMES"] = str(library)


def _load() -> Any:
    _vendors_beside_python()
    # The model's library brings libtamis along, so that one handle has the symbols of both.
    for path in sorted(_FOLDER.glob("libtamis_model.so*")):
        return ffi.dlopen(str(path))
    raise ImportError(f"no libtamis_model.so in {_FOLDER}: install tamis by pip, or see docs/python.md")


lib = _load()
NULL = ffi.NULL

_local = threading.local()


def error() -> Any:
    """The tamis_error of this thread, to be the last argument of a call."""
    try:
        return _local.error
    except AttributeError:
        _local.error = ffi.new("tamis_error *")
        _local.raised = None
        return _local.error


def check(status: int) -> None:
    """Raises what the last call of this thread answered, unless that is OK."""
    if status:
        _raise(status)


def _raise(status: int) -> None:
    # What a callback of Python's raised is the reason of the failure itself.
    raised = getattr(_local, "raised", None)
    if raised is not None:
        _local.raised = None
        raise raised
    raise errors.BY_CODE[status](text(_local.error.text))


def function(name: str) -> Any:
    """A function of the library; a build may lack it (TAMIS_STORE=OFF)."""
    try:
        return getattr(lib, name)
    except AttributeError:
        raise errors.UnsupportedError(f"this build of the library lacks {name}") from None


def text(pointer: Any) -> str:
    """A C string as str; bytes that are no UTF-8 become U+FFFD."""
    return ffi.string(pointer).decode("utf-8", "replace")


def path_bytes(path: str | os.PathLike[str]) -> bytes:
    return os.fsencode(path)


# ---- Callbacks ------------------------------------------------------------------------------------


class callback:
    """``with callback():`` around what the library calls in Python. An exception that it raises goes
    to the caller of the library's call; while it runs nothing is destroyed."""

    def __init__(self, error_of_call: Any = NULL) -> None:
        self.error = error_of_call
        self.failed = False

    def __enter__(self) -> callback:
        _local.depth = getattr(_local, "depth", 0) + 1
        return self

    def __exit__(self, kind: Any, value: BaseException | None, trace: Any) -> bool:
        _local.depth -= 1
        if value is None:
            return False
        error()
        _local.raised = value
        self.failed = True
        if self.error:
            reason = f"{type(value).__name__}: {value}".encode()[:500]
            self.error.status = lib.TAMIS_E_STATE
            ffi.memmove(self.error.text, reason + b"\0", len(reason) + 1)
        return True


def _lost(kind: Any, value: BaseException, trace: Any) -> None:
    error()
    _local.raised = value


def function_for_c(kind: str, call: Callable[..., Any], failed: Any = None) -> Any:
    """`call`, whose body is ``with callback(): ...``, as a C function of a type; `failed` is what it answers
    where an exception comes outside of that block: a signal's handler may raise as soon as `call` begins,
    as Ctrl-C does. It travels as well."""
    return ffi.callback(kind, call, error=failed, onerror=_lost)


def raised() -> None:
    """Raises what a callback has raised in a call that answers no status of its own."""
    value = getattr(_local, "raised", None)
    if value is not None:
        _local.raised = None
        raise value


# ---- The end of objects ---------------------------------------------------------------------------


class Owner:
    """What a context and all that is made from it share: when a forgotten object may be destroyed.

    The garbage collector may run anywhere: inside a callback of the library, and in another thread
    than the one that uses the context. What cannot be destroyed at once waits here for the next call
    that makes something."""

    def __init__(self) -> None:
        self.context = NULL  # NULL before it is made and once it is destroyed
        self._lock = threading.RLock()  # over `context`; the collector may come in while it is held
        self._waiting: collections.deque[Callable[[], bool]] = collections.deque()

    def release(self, end: Callable[[], bool]) -> None:
        """Calls `end`, which answers whether it is done, now or later."""
        if getattr(_local, "depth", 0) or not self._ended(end):
            self._waiting.append(end)

    def _ended(self, end: Callable[[], bool]) -> bool:
        with self._lock:
            context = self.context
            if context and lib.tamis_context_enter(context, NULL):
                return False
        try:
            return end()
        finally:
            if context:
                lib.tamis_context_leave(context)

    def forget(self) -> None:
        """The context is about to be destroyed."""
        with self._lock:
            self.context = NULL

    def collect(self) -> None:
        """Ends what waits; each call that makes something begins with it."""
        for _ in range(len(self._waiting)):
            self.release(self._waiting.popleft())


def _destroy(owner: Owner | None, name: str, handle: Any, keep: Any, now: bool = False) -> None:
    def end(_: Any = keep) -> bool:  # which lives as long as this waits
        getattr(lib, name)(handle)  # sets it to NULL
        return True

    if owner is None or now:
        end()
    else:
        owner.release(end)


class Object:
    """Base of what the library makes: it is destroyed by close(), at the end of a ``with`` block, or when
    it is forgotten, in any order. After that its calls raise StateError."""

    _owner: Owner | None
    _end: weakref.finalize[Any, Any] | None = None  # None: it belongs to another object, and ends with that

    def _take(self, owner: Owner | None, handle: Any, destroy: str, keep: Any = None) -> None:
        """Owns *handle, which `destroy` ends; `keep` lives at least as long."""
        self._owner = owner
        self._handle = handle
        self._keep = keep
        self._end = weakref.finalize(self, _destroy, owner, destroy, handle, keep)

    def _collect(self) -> None:
        """Ends what waits for that in its context: what makes something calls it."""
        if self._owner is not None:
            self._owner.collect()

    @property
    def _pointer(self) -> Any:
        pointer = self._handle[0]
        if not pointer:
            raise errors.StateError(f"this {type(self).__name__} has been closed")
        return pointer

    @property
    def closed(self) -> bool:
        """Whether close() has been called."""
        return not self._handle[0]

    def close(self) -> None:
        """Destroys it now, after waiting for another thread that is in the context. Where other objects
        were made from it, its memory is given back with the last of them. Not inside a callback, unless it
        belongs to no context."""
        if getattr(_local, "depth", 0) and self._owner is not None:
            raise errors.StateError(f"a {type(self).__name__} cannot be closed inside a callback")
        if self._end is None:
            raise errors.StateError(f"this {type(self).__name__} is closed with what it belongs to")
        end = self._end.detach()
        if end is not None:
            _destroy(*end[2], now=True)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
