# SPDX-License-Identifier: Apache-2.0
"""Memory of other packages, and ours for them: DLPack (version 0 of its structs, which all speak) and
__cuda_array_interface__ (version 3)."""
from __future__ import annotations

import ctypes
from typing import Any

from .errors import ArgumentError, UnsupportedError

CPU, CUDA = 1, 2
_PINNED = 3  # CUDA's memory of the host


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("dtype", _DataType), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.PYFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", _Deleter)]

# (code, bits) of a DLDataType: 0 signed, 1 unsigned, 2 float, 4 bfloat
_TYPES = {"f32": (2, 32), "f16": (2, 16), "bf16": (4, 16), "i32": (0, 32), "u8": (1, 8)}
_NAMES = {pair: name for name, pair in _TYPES.items()}
_OF_CUDA = {"<f4": "f32", "<f2": "f16", "<i4": "i32", "|u1": "u8"}

_FRESH, _USED = b"dltensor", b"used_dltensor"  # names of capsules, which must live as long as these
_api = ctypes.pythonapi
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))


class Foreign:
    """Memory of another package; it is given back when this is forgotten. Strides in elements."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str,
                 device: str, read_only: bool, keep: Any, managed: Any = None) -> None:
        self.address, self.shape, self.strides, self.dtype = address, shape, strides, dtype
        self.device, self.read_only, self._keep, self._managed = device, read_only, keep, managed

    def __del__(self) -> None:
        managed, self._managed = self._managed, None
        if managed and managed.contents.deleter:
            managed.contents.deleter(managed)


def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def take(data: Any) -> Foreign:
    """The memory of a NumPy array, or of an object that has __dlpack__ or __cuda_array_interface__."""
    import numpy

    if isinstance(data, numpy.ndarray):  # read-only arrays have no DLPack
        if not data.dtype.isnative or data.dtype not in (numpy.float32, numpy.float16, numpy.int32,
                                                         numpy.uint8):
            raise ArgumentError(f"arrays of {data.dtype} are not supported: float32, float16, int32 and "
                                "uint8 are")
        if any(stride % data.itemsize for stride in data.strides):
            raise ArgumentError(f"strides of {data.strides} bytes are no multiples of {data.itemsize}")
        names = {"float32": "f32", "float16": "f16", "int32": "i32", "uint8": "u8"}
        return Foreign(data.ctypes.data, data.shape, tuple(n // data.itemsize for n in data.strides),
                       names[data.dtype.name], "cpu", not data.flags.writeable, data)
    if not hasattr(data, "__dlpack__"):  # which knows bf16, too
        interface = getattr(data, "__cuda_array_interface__", None)
        if interface is not None:
            return _take_cuda(data, interface)
        raise ArgumentError(f"a {type(data).__name__} has no memory to share: NumPy arrays, and objects with "
                            "__dlpack__ or __cuda_array_interface__ have")
    device = data.__dlpack_device__()[0]
    if int(device) not in (CPU, CUDA, _PINNED):
        raise UnsupportedError(f"memory of DLPack's device type {int(device)}: 1 (CPU), 2 (CUDA) and 3 "
                               "(CUDA's host memory) are taken")
    capsule = data.__dlpack__()
    managed = ctypes.cast(_pointer(capsule, _FRESH), ctypes.POINTER(_Managed))
    _rename(capsule, _USED)
    tensor = managed.contents.tensor
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else _packed(shape)
    pair = (tensor.dtype.code, tensor.dtype.bits)
    foreign = Foreign((tensor.data or 0) + tensor.byte_offset, shape, strides,
                      _NAMES.get(pair, f"DLPack's type {pair}"),
                      "cuda" if tensor.device_type == CUDA else "cpu", False, None, managed)
    if tensor.dtype.lanes != 1:
        raise ArgumentError(f"elements of {tensor.dtype.lanes} lanes are not supported")
    return foreign


def _take_cuda(data: Any, interface: dict[str, Any]) -> Foreign:
    dtype = _OF_CUDA.get(interface["typestr"], interface["typestr"])
    shape = tuple(interface["shape"])
    bytes_apart = interface.get("strides")
    item = int(interface["typestr"][2:])
    strides = tuple(n // item for n in bytes_apart) if bytes_apart else _packed(shape)
    address, read_only = interface["data"]
    return Foreign(address, shape, strides, dtype, "cuda", read_only, data)


# ---- Ours for others ------------------------------------------------------------------------------


def give(view: Any, dtype: str, device: tuple[int, int]) -> Any:
    """A capsule of a NumPy array's memory, which keeps the array alive.

    NumPy makes it, since what destroys a capsule that nobody has taken may run while an exception is
    raised, where no Python may. Of NumPy's own it has all but the type and the device."""
    capsule = view.__dlpack__()
    tensor = ctypes.cast(_pointer(capsule, _FRESH), ctypes.POINTER(_Managed)).contents.tensor
    tensor.dtype.code, tensor.dtype.bits = _TYPES[dtype]
    tensor.device_type, tensor.device_id = device
    return capsule
