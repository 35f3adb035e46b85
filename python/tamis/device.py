# SPDX-License-Identifier: Apache-2.0
"""Devices, and the context: one opened device (tamis/device.h)."""
from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any, Callable, Optional

from . import _core, _drivers
from ._c import ffi
from ._core import NULL, check, error, lib, text

if TYPE_CHECKING:
    import numpy

    from .array import Array

_KINDS = {0: "cpu", 1: "gpu", 2: "other"}
_LEVELS = {0: "error", 1: "warn", 2: "info", 3: "debug"}
WITHOUT_DRIVER = (
    "no CUDA or OpenCL device: tamis runs its plain C reference, on one thread and without a fast path. "
    "For a CPU install an OpenCL driver: pip install 'tamis[opencl]' (x86-64), or the package "
    "pocl-opencl-icd of Debian and Ubuntu. {reasons}"
)


@dataclasses.dataclass(frozen=True)
class Device:
    """One device, or one backend that offers none; ``reason`` says why it cannot be used.

    Bytes are of the device's memory as a whole and of its largest single allocation."""

    id: str
    backend: str
    name: str
    driver: str
    kind: str
    usable: bool
    reason: str
    compute_units: int
    memory_bytes: int
    max_buffer_bytes: int


def _device(info: Any) -> Device:
    return Device(text(info.id), text(info.backend), text(info.name), text(info.driver),
                  _KINDS[info.kind], bool(info.usable), text(info.reason), info.compute_units,
                  info.memory_bytes, info.max_buffer_bytes)


def devices() -> list[Device]:
    """All devices of all backends, best first, and one entry for each backend that has none.

    >>> any(device.backend == "reference" for device in devices())
    True
    """
    _drivers.find()
    count = ffi.new("size_t *")
    check(lib.tamis_device_list(NULL, 0, count, error()))
    infos = ffi.new("tamis_device_info[]", count[0])
    check(lib.tamis_device_list(infos, count[0], count, error()))
    return [_device(infos[i]) for i in range(min(len(infos), count[0]))]


def version() -> str:
    """The library's version, MAJOR.MINOR.PATCH."""
    return text(lib.tamis_version())


class Context(_core.Object):
    """An opened device with its queue, its compiled kernels and scratch memory.

    Args:
        device: ``"opencl:0"``, ``"reference"``, or a backend for its first usable device. None: the
            environment's ``TAMIS_DEVICE``, else the first usable device. Where there is none the reference
            is taken, and a warning says so and what to install.
        log: called with a level (``"error"``, ``"warn"``, ``"info"``, ``"debug"``) and a line.
        build: called with (done, all, seconds) while kernels are compiled.

    What `log` and `build` raise goes to sys.unraisablehook, which prints it, and the call goes on.

    One thread at a time uses a context and what was made from it: a call that comes while another
    thread is in one raises StateError. Threads may take turns; contexts are independent.

    >>> with Context("reference") as context:
    ...     context.device.backend
    'reference'
    """

    _owner: _core.Owner

    def __init__(self, device: Optional[str] = None, *,
                 log: Optional[Callable[[str, str], None]] = None,
                 build: Optional[Callable[[int, int, float], None]] = None) -> None:
        owner = _core.Owner()
        params = ffi.new("tamis_context_params *")
        keep: list[Any] = []
        if device is not None:
            keep.append(ffi.new("char[]", device.encode()))
            params.device = keep[-1]
        lines: list[str] = []
        opened = False

        def write(_: Any, level: int, line: Any) -> None:
            with _core.telling():
                if not opened:
                    lines.append(text(line))
                if log is not None:
                    log(_LEVELS[level], text(line))

        keep.append(ffi.callback("tamis_log_fn", write))
        params.log = keep[-1]
        if build is not None:
            def tell(_: Any, progress: Any) -> None:
                with _core.telling():
                    build(progress.done, progress.all, progress.seconds)

            keep.append(ffi.callback("tamis_build_fn", tell))
            params.build = keep[-1]
        params.allow_reference = 1
        _drivers.find()
        handle = ffi.new("tamis_context **")
        check(lib.tamis_context_create(params, handle, error()))
        opened = True
        owner.context = handle[0]
        self._take(owner, handle, "tamis_context_destroy", keep)
        self._device = _device(lib.tamis_context_device(handle[0]))
        if self._device.backend == "reference" and not self._asked(device):
            warnings.warn(WITHOUT_DRIVER.format(reasons=" ".join(lines)), RuntimeWarning, stacklevel=2)

    @staticmethod
    def _asked(device: Optional[str]) -> bool:
        import os

        name = device if device is not None else os.environ.get("TAMIS_DEVICE", "")
        return name.startswith("reference")

    @property
    def device(self) -> Device:
        """The device behind it."""
        return self._device

    def __repr__(self) -> str:
        return f"<tamis.Context {self._device.id}: {self._device.name}{', closed' if self.closed else ''}>"

    def wait(self) -> None:
        """Waits until all that was enqueued is done. Raises what the device reported late."""
        self._owner.collect()
        check(lib.tamis_context_wait(self._pointer, error()))

    def read_bandwidth(self, bytes: int = 1 << 28) -> float:
        """How fast all compute units read `bytes` of memory, in 1e9 bytes per second."""
        out = ffi.new("double *")
        check(lib.tamis_context_read_bandwidth(self._pointer, bytes, out, error()))
        return float(out[0])

    # ---- Memory ----

    def empty(self, shape: int | tuple[int, ...], dtype: str = "f32") -> Array:
        """An array of uninitialised device memory. `dtype`: "f32", "f16", "bf16", "i32" or "u8"."""
        from .array import Array

        return Array._create(self, shape, dtype)

    def array(self, data: Any, dtype: Optional[str] = None) -> Array:
        """A copy of host data (whatever NumPy takes) in device memory; of `dtype`, or of the data's own."""
        from .array import Array

        return Array._copy(self, data, dtype)

    def wrap(self, data: Any) -> Array:
        """The caller's memory as an array, in place: nothing is copied, and `data` is kept alive.

        Takes what speaks DLPack (NumPy arrays, torch tensors) and ``__cuda_array_interface__``. On a CPU
        the memory must begin at a multiple of 64: torch's does, NumPy's by ``tamis.empty``. Raises
        ArgumentError with the address or stride otherwise; UnsupportedError where the device cannot use
        such memory in place. Until the array is closed the memory is read and written by both sides:
        after calls that enqueue, `wait` comes before the host looks at it."""
        from .array import Array

        return Array._wrap(self, data)
