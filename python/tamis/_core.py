# SPDX-License-Identifier: Apache-2.0
"""How Python calls the library: loading it, errors, callbacks, and the end of objects.

Everything else in the package stands on this file. Every call releases the GIL (cffi)."""
from __future__ import annotations

import atexit
import collections
import os
import pathlib
import threading
import weakref
from typing import Any, Callable, Iterable, Optional

from . import errors
from ._c import ffi

_FOLDER = pathlib.Path(__file__).absolute().parent / "lib"


def _load() -> Any:
    # The model's library brings libtamis along, so that one handle has the symbols of both.
    for path in sorted(_FOLDER.glob("libtamis_model.so*")):
        # It stays until the process ends: threads of drivers may be in it when Python's end comes, and a
        # leak in it has a name.
        return ffi.dlopen(str(path), ffi.RTLD_NOW | ffi.RTLD_NODELETE)
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
    if status or _interrupts:
        _raise(status)


def _raise(status: int) -> None:
    # What a callback of Python's raised is the reason of the failure itself.
    raised()
    if threading.get_ident() in _interrupts:
        raise _interrupts.pop(threading.get_ident())
    if status:
        raise errors.BY_CODE[status](text(_local.error.text))


def raised() -> None:
    """Raises what a callback has raised in the last call; for calls that answer no status of their own."""
    value = getattr(_local, "raised", None)
    if value is not None:
        _local.raised = None
        raise value


def put(struct: Any, **fields: Any) -> None:
    """Sets numbers of a struct. Raises ArgumentError with the name and value of one that does not fit."""
    for name, value in fields.items():
        try:
            setattr(struct, name, value)
        except OverflowError as reason:
            raise errors.ArgumentError(f"{name} is {value!r}: {reason}") from None


def numbers(kind: str, values: Iterable[int], name: str) -> Any:
    """An array of C, such as of ``"uint32_t[]"``. Raises ArgumentError where one does not fit."""
    values = list(values)
    try:
        return ffi.new(kind, values)
    except OverflowError as reason:
        raise errors.ArgumentError(f"{name} are {values}: {reason}") from None


def function(name: str) -> Any:
    """A function of the library; a build may lack it (TAMIS_STORE=OFF)."""
    try:
        return getattr(lib, name)
    except AttributeError:
        raise errors.UnsupportedError(f"this build of the library lacks {name}") from None


def text(pointer: Any) -> str:
    """A C string as str; bytes that are no UTF-8 become U+FFFD."""
    return str(ffi.string(pointer).decode("utf-8", "replace"))


def choice(what: str, name: Any, known: dict[str, int]) -> int:
    """The library's number of a name. Raises ArgumentError with the names that are known."""
    if name not in known:
        raise errors.ArgumentError(f"{what} is {name!r}: known are {', '.join(known)}")
    return known[name]


def path_bytes(path: str | os.PathLike[str]) -> bytes:
    return os.fsencode(path)


# ---- Callbacks ------------------------------------------------------------------------------------

# KeyboardInterrupt and its like that came while a callback ran which could not end the call: what each
# thread is to raise once the call has returned.
_interrupts: dict[int, BaseException] = {}


class callback:
    """``with callback(error):`` around what the library calls in Python, where that may end the call. An
    exception that it raises goes to the caller of the library's call; while it runs nothing is destroyed.

    Args:
        ends: the library lets it make and destroy objects of the context: what is forgotten is destroyed.

    Attributes:
        failed: whether it has raised.
    """

    def __init__(self, error_of_call: Any = NULL, *, ends: bool = False) -> None:
        self.error = error_of_call
        self.failed = False
        self._waits = not ends

    def __enter__(self) -> callback:
        _local.depth = getattr(_local, "depth", 0) + 1
        _local.waits = getattr(_local, "waits", 0) + self._waits
        return self

    def _leave(self) -> None:
        _local.depth -= 1
        _local.waits -= self._waits

    def __exit__(self, kind: Any, value: BaseException | None, trace: Any) -> bool:
        self._leave()
        if value is None:
            return False
        error()
        if _local.raised is None:
            _local.raised = value
        self.failed = True
        if self.error:
            reason = f"{type(value).__name__}: {value}".encode()[:500]
            self.error.status = lib.TAMIS_E_STATE
            ffi.memmove(self.error.text, reason + b"\0", len(reason) + 1)
        return True


class telling(callback):
    """The same around what cannot end the call: a line of the log, a report of progress. The call goes on
    where that raises; sys.unraisablehook gets it. KeyboardInterrupt is raised once the call has returned."""

    def __exit__(self, kind: Any, value: BaseException | None, trace: Any) -> bool:
        self._leave()
        if value is None or isinstance(value, Exception):
            return False
        _interrupts[threading.get_ident()] = value
        return True


def _lost(kind: Any, value: BaseException, trace: Any) -> None:
    error()
    _local.raised = value


def function_for_c(kind: str, call: Callable[..., Any], failed: Any = None) -> Any:
    """`call`, whose body is ``with callback(): ...``, as a C function of a type; `failed` is what it answers
    where an exception comes outside of that block: a signal's handler may raise as soon as `call` begins,
    as Ctrl-C does. It travels as well."""
    return ffi.callback(kind, call, error=failed, onerror=_lost)


# ---- The end of objects ---------------------------------------------------------------------------


class Owner:
    """What a context and all that is made from it share: when a forgotten object may be destroyed.

    The garbage collector may run anywhere: inside a callback of the library, and in another thread than the
    one that uses the context, whose next call would then be refused. So what is forgotten is destroyed at
    once only in the thread that was the last to `collect`. Else it waits for the next `collect`, or for the
    context's end. A child of os.fork destroys nothing of its parent's: drivers' threads are not there."""

    def __init__(self) -> None:
        self.context = NULL  # NULL before it is made and once it is destroyed
        self._process = os.getpid()
        self._thread = threading.get_ident()
        self._lock = threading.RLock()  # over `context`; the collector may come in while it is held
        self._waiting: collections.deque[tuple[Callable[[], bool], Any]] = collections.deque()

    @property
    def inherited(self) -> bool:
        """Whether this process is a child of the one that has the device."""
        return self._process != os.getpid()

    def release(self, end: Callable[[], bool], keep: Any) -> None:
        """Calls `end`, which answers whether it is done, behind those that wait, now or later; what `keep`
        has of others lives until then."""
        if self.inherited:
            return
        self._waiting.append((end, self._others(keep)))
        if not self.context or threading.get_ident() == self._thread:
            self._end_waiting()

    def collect(self) -> None:
        """Ends what waits. Each call that makes something or begins a step begins with it."""
        self._thread = threading.get_ident()
        if self._waiting and not self.inherited:
            self._end_waiting()

    def end(self) -> None:
        """Ends what waits, before the context is destroyed."""
        with self._lock:
            self.context = NULL
        self._end_waiting()

    def _others(self, keep: Any) -> Any:
        """Without what belongs to the context: that would keep it, and is destroyed in its turn."""
        if isinstance(keep, (tuple, list)):
            return [self._others(part) for part in keep]
        return None if getattr(getattr(keep, "context", keep), "_owner", None) is self else keep

    def _end_waiting(self) -> None:
        with self._lock:
            context = self.context
            if context and (getattr(_local, "waits", 0) or lib.tamis_context_enter(context, NULL)):
                return
        left = []
        try:
            while True:  # the collector may come in again, and takes the next
                pair = self._waiting.popleft()
                if not pair[0]() and context:
                    left.append(pair)
        except IndexError:
            left = [pair for pair in left if not pair[0]()]  # of steps that have been given up now
        finally:
            lib.tamis_context_leave(context)
        self._waiting.extend(left)


_CONTEXT = "tamis_context_destroy"
_leaving = False


def _at_exit() -> None:
    """Where daemon threads are left, which may be in a call, the process ends without destroying anything."""
    global _leaving
    _leaving = threading.active_count() > 1


weakref.finalize(_at_exit, int).detach()  # registers the finalisers' own function, so that it runs behind ours
atexit.register(_at_exit)


def _destroy(owner: Owner | None, name: str, handle: Any, keep: Any, now: bool = False) -> None:
    def end() -> bool:
        pointer = ffi.new(ffi.typeof(handle), handle[0])
        handle[0] = NULL  # no other thread begins a call on it while this waits
        getattr(lib, name)(pointer)
        return True

    if _leaving or owner is not None and owner.inherited:
        handle[0] = NULL
    elif owner is None or now or name == _CONTEXT:
        if owner is not None and name == _CONTEXT:
            owner.end()
        end()
    else:
        owner.release(end, keep)


class Object:
    """Base of what the library makes: it is destroyed by close(), at the end of a ``with`` block, or when
    it is forgotten, in any order. After that its calls raise StateError. What one thread forgets while
    another one uses the context is destroyed when that one makes something or begins a step."""

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
            raise errors.StateError(f"this {type(self).__name__.lstrip('_')} has been closed")
        return pointer

    @property
    def closed(self) -> bool:
        """Whether close() has been called."""
        return not self._handle[0]

    def close(self) -> None:
        """Destroys it now, after waiting for another thread that is in the context; none may be about to
        call it. Where other objects were made from it, its memory is given back with the last of them. Not
        inside a callback, unless it belongs to no context."""
        if getattr(_local, "depth", 0) and self._owner is not None:
            raise errors.StateError(f"a {type(self).__name__} cannot be closed inside a callback")
        if self._end is None:
            raise errors.StateError(f"this {type(self).__name__} is closed with what it belongs to")
        end = self._end.detach()
        if end is not None:
            owner, name, handle, keep = end[2]
            _destroy(owner, name, handle, keep, now=True)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
