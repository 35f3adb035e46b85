# SPDX-License-Identifier: Apache-2.0
"""Arrays in device memory (tamis/buffer.h), and the ways to and from NumPy and torch without copies."""
from __future__ import annotations

import weakref
from typing import Any, Optional, Sequence as Seq

import numpy
from numpy import ndarray  # in Array numpy is a method

from . import _core, _dlpack
from ._c import ffi
from ._core import check, error, lib
from .device import Context
from .errors import ArgumentError, StateError, UnsupportedError

#: dtype → (bytes of an element, NumPy's dtype, tamis_dtype of rows or None)
DTYPES: dict[str, tuple[int, Any, Optional[int]]] = {
    "f32": (4, numpy.dtype(numpy.float32), lib.TAMIS_F32),
    "f16": (2, numpy.dtype(numpy.float16), lib.TAMIS_F16),
    "bf16": (2, numpy.dtype(numpy.uint16), lib.TAMIS_BF16),
    "i32": (4, numpy.dtype(numpy.int32), None),
    "u8": (1, numpy.dtype(numpy.uint8), None),
}
_OF_NUMPY = {numpy.dtype(numpy.float32): "f32", numpy.dtype(numpy.float16): "f16",
             numpy.dtype(numpy.int32): "i32", numpy.dtype(numpy.uint8): "u8"}
ALIGNMENT = 64  # of rows in memory, bytes


def empty(shape: int | tuple[int, ...], dtype: Any = numpy.float32) -> numpy.ndarray:
    """An uninitialised NumPy array whose memory begins at a multiple of 64, which `Context.wrap` takes.

    >>> empty((3, 5)).ctypes.data % 64
    0
    """
    dtype = numpy.dtype(dtype)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    size = int(numpy.prod(shape)) * dtype.itemsize
    memory = numpy.empty(size + ALIGNMENT, numpy.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    aligned: ndarray = memory[begin:begin + size].view(dtype)
    return aligned.reshape(shape)


def name_of(dtype: Any) -> str:
    """The name that this package has for a NumPy dtype. Raises ArgumentError for others."""
    try:
        return _OF_NUMPY[numpy.dtype(dtype)]
    except KeyError:
        raise ArgumentError(f"arrays of {dtype} are not supported: "
                            f"{', '.join(str(d) for d in _OF_NUMPY)} are") from None


class _Buffer(_core.Object):
    """A tamis_buffer, which the arrays that lie in it share."""

    def __init__(self, context: Context, handle: Any, foreign: Optional[_dlpack.Foreign] = None) -> None:
        self._context = context
        self._foreign = foreign  # whose memory it is; None: its own
        self._arrays: weakref.WeakSet[Array] = weakref.WeakSet()  # whose tamis_rows name it
        self._views: weakref.WeakSet[_Memory] = weakref.WeakSet()
        self._take(context._owner, handle, "tamis_buffer_destroy", (foreign, context))

    def close(self) -> None:
        left = len(self._views)
        if left and self._foreign is None:
            raise StateError(f"NumPy views or DLPack tensors of this memory are left ({left}): they would "
                             "read what is no longer there")
        super().close()
        for array in self._arrays:
            array._rows.buffer = ffi.NULL


class _Memory:
    """What NumPy holds as the base of a view: it keeps the buffer alive."""

    def __init__(self, buffer: _Buffer, address: int, shape: tuple[int, ...], strides: tuple[int, ...],
                 dtype: numpy.dtype) -> None:
        self.buffer = buffer
        buffer._views.add(self)
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": shape,
                                    "strides": strides, "typestr": dtype.str}


class Array:
    """Elements in device memory, row-major, of which rows may lie apart: element (r, i, ...) of the shape
    (rows, ...) is ``row_stride`` elements behind that of row r - 1, and inside a row all are packed.

    Made by `Context.empty`, `array` and `wrap`. Slices share memory. Whatever holds an array, or a NumPy
    view or DLPack capsule of it, keeps the memory alive.

    Attributes:
        shape, dtype: as in NumPy, but that dtype is "f32", "f16", "bf16", "i32" or "u8".
        row_stride: elements from one row to the next.
    """

    __slots__ = ("_buffer", "_offset", "_rows", "context", "dtype", "row_stride", "shape", "__weakref__")

    def __init__(self, buffer: _Buffer, offset: int, shape: tuple[int, ...], dtype: str,
                 row_stride: int) -> None:
        self._buffer = buffer
        self._offset = offset
        self.context = buffer._context
        self.shape = shape
        self.dtype = dtype
        self.row_stride = row_stride
        self._rows: Any = None
        code = DTYPES[dtype][2]
        if code is not None:  # what plans and ops take; made once
            self._rows = ffi.new("tamis_rows *")
            self._rows.buffer = buffer._pointer
            self._rows.offset = offset
            self._rows.row_stride = row_stride
            self._rows.dtype = code
            buffer._arrays.add(self)

    # ---- Making ----

    @staticmethod
    def _shape(shape: int | Seq[int]) -> tuple[int, ...]:
        shape = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
        if not shape or any(n <= 0 for n in shape):
            raise ArgumentError(f"shape {shape}: every dimension must be at least 1")
        return shape

    @staticmethod
    def _dtype(dtype: str) -> str:
        if dtype not in DTYPES:
            raise ArgumentError(f"dtype {dtype!r}: known are {', '.join(DTYPES)}")
        return dtype

    @classmethod
    def _create(cls, context: Context, shape: int | Seq[int], dtype: str) -> Array:
        context._owner.collect()
        shape, dtype = cls._shape(shape), cls._dtype(dtype)
        handle = ffi.new("tamis_buffer **")
        size = int(numpy.prod(shape, dtype=object)) * DTYPES[dtype][0]
        check(lib.tamis_buffer_create(context._pointer, size, handle, error()))
        return cls(_Buffer(context, handle), 0, shape, dtype, _row(shape))

    @classmethod
    def _copy(cls, context: Context, data: Any, dtype: Optional[str]) -> Array:
        data = numpy.asarray(data)
        if dtype is None:
            dtype = name_of(data.dtype)
        array = cls._create(context, data.shape or 1, dtype)
        array.write(data)
        return array

    @classmethod
    def _wrap(cls, context: Context, data: Any) -> Array:
        context._owner.collect()
        if isinstance(data, Array):
            raise ArgumentError("this is an array of tamis already")
        foreign = _dlpack.take(data)
        if foreign.dtype not in DTYPES:
            raise ArgumentError(f"arrays of {foreign.dtype} are not supported: {', '.join(DTYPES)} are")
        shape = cls._shape(foreign.shape or (1,))
        stride = _row_stride(foreign, shape)
        item = DTYPES[foreign.dtype][0]
        size = ((shape[0] - 1) * stride + _row(shape)) * item
        handle = ffi.new("tamis_buffer **")
        if foreign.read_only:
            raise ArgumentError(f"the memory at {foreign.address:#x} is read-only")
        if foreign.device == "cuda":
            check(_core.function("tamis_buffer_wrap_cuda")(context._pointer, foreign.address, size, handle,
                                                            error()))
        else:
            check(lib.tamis_buffer_wrap_host(context._pointer, ffi.cast("void *", foreign.address), size,
                                             handle, error()))
        return cls(_Buffer(context, handle, foreign), 0, shape, foreign.dtype, stride)

    # ---- Parts ----

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Array:
        """``a[i:j]``: rows; ``a[:, i:j]``: the same channels of each row, of a shape (rows, channels)."""
        rows, columns = key if isinstance(key, tuple) and len(key) == 2 else (key, slice(None))
        if not isinstance(rows, slice) or not isinstance(columns, slice):
            raise ArgumentError(f"index {key!r}: only slices a[i:j] and a[i:j, k:l] share memory")
        begin, end, step = rows.indices(self.shape[0])
        if step != 1 or end <= begin:
            raise ArgumentError(f"rows {rows}: of {self.shape[0]} rows none, or not adjacent ones")
        shape, offset = (end - begin, *self.shape[1:]), begin * self.row_stride
        if columns != slice(None):
            if len(self.shape) != 2:
                raise ArgumentError(f"channels {columns} of shape {self.shape}: only arrays of two "
                                    "dimensions are cut so")
            first, last, step = columns.indices(self.shape[1])
            if step != 1 or last <= first:
                raise ArgumentError(f"channels {columns}: of {self.shape[1]} none, or not adjacent ones")
            shape, offset = (end - begin, last - first), offset + first
        return Array(self._buffer, self._offset + offset * DTYPES[self.dtype][0], shape, self.dtype,
                     self.row_stride)

    def reshape(self, *shape: int) -> Array:
        """The same memory in another shape; of packed rows alone unless the number of rows stays."""
        shape = self._shape(shape)
        if int(numpy.prod(shape)) != self.size:
            raise ArgumentError(f"shape {shape} has not the {self.size} elements of {self.shape}")
        if shape[0] != self.shape[0] and self.row_stride != _row(self.shape):
            raise ArgumentError(f"rows of {_row(self.shape)} that lie {self.row_stride} apart cannot "
                                f"become {shape}")
        return Array(self._buffer, self._offset, shape, self.dtype,
                     self.row_stride if shape[0] == self.shape[0] else _row(shape))

    @property
    def size(self) -> int:
        """Elements."""
        return int(numpy.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, without what lies between rows."""
        return self.size * DTYPES[self.dtype][0]

    @property
    def closed(self) -> bool:
        """Whether the memory has been given back."""
        return self._buffer.closed

    def close(self) -> None:
        """Gives the memory back now, for all arrays that share it; what was wrapped stays the caller's.
        Raises StateError while NumPy views or DLPack tensors of memory that is not the caller's are left."""
        self._buffer.close()

    def __repr__(self) -> str:
        return f"<tamis.Array {self.shape} {self.dtype} on {self.context.device.id}>"

    # ---- To and from the host ----

    @property
    def address(self) -> int:
        """Where the first element is: in the host's memory where the device uses that in place, in the
        device's on CUDA; 0 elsewhere."""
        data = lib.tamis_buffer_data(self._buffer._pointer)
        address = int(ffi.cast("uintptr_t", data)) if data else self._cuda()
        return address + self._offset if address else 0

    def _cuda(self) -> int:
        return int(_core.function("tamis_buffer_cuda")(self._buffer._pointer))

    def numpy(self) -> ndarray:
        """The memory itself as a NumPy array (bf16 as uint16), after waiting for what is enqueued. Raises
        UnsupportedError where the device has memory of its own; `read` copies there.

        Before it is used again after further calls, `Context.wait` must have returned."""
        self.context.wait()
        if not lib.tamis_buffer_data(self._buffer._pointer):
            raise UnsupportedError(f"{self.context.device.id} has memory of its own: use Array.read")
        return self._view(self.address)

    def _view(self, address: int) -> ndarray:
        item, dtype, _ = DTYPES[self.dtype]
        strides = tuple(n * item for n in self._strides())
        return numpy.asarray(_Memory(self._buffer, address, self.shape, strides, dtype))

    def _strides(self) -> tuple[int, ...]:
        inner = [1]
        for n in reversed(self.shape[2:]):
            inner.append(inner[-1] * n)
        return (self.row_stride, *reversed(inner)) if len(self.shape) > 1 else (self.row_stride,)

    def read(self) -> ndarray:
        """A copy on the host (bf16 as uint16). Waits."""
        item, dtype, _ = DTYPES[self.dtype]
        out = numpy.empty(self.shape, dtype)
        if self.row_stride == _row(self.shape):
            check(lib.tamis_buffer_read(self._buffer._pointer, self._offset, ffi.from_buffer(out),
                                        out.nbytes, error()))
            return out
        for row in range(self.shape[0]):
            part = out[row:row + 1]
            check(lib.tamis_buffer_read(self._buffer._pointer, self._offset + row * self.row_stride * item,
                                        ffi.from_buffer(part), part.nbytes, error()))
        return out

    def write(self, data: Any) -> None:
        """Copies host data of the same shape into it. Enqueues; `data` may be changed at once."""
        item, dtype, _ = DTYPES[self.dtype]
        data = numpy.asarray(data)
        if self.dtype == "bf16" and data.dtype != numpy.uint16:
            data = to_bf16(data)
        try:
            data = numpy.ascontiguousarray(numpy.broadcast_to(data, self.shape), dtype)
        except ValueError as reason:
            raise ArgumentError(f"data of shape {data.shape} for an array of {self.shape}: "
                                f"{reason}") from None
        if self.row_stride == _row(self.shape):
            check(lib.tamis_buffer_write(self._buffer._pointer, self._offset, ffi.from_buffer(data),
                                         data.nbytes, error()))
            return
        for row in range(self.shape[0]):
            part = data[row:row + 1]
            check(lib.tamis_buffer_write(self._buffer._pointer,
                                         self._offset + row * self.row_stride * item,
                                         ffi.from_buffer(part), part.nbytes, error()))

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> ndarray:
        if copy is False:
            return self.numpy()
        out = self.read()
        return out if dtype is None else out.astype(dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.context.device.backend == "cuda":
            return _dlpack.CUDA, int(self.context.device.id.partition(":")[2] or 0)
        return _dlpack.CPU, 0

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None,
                   dl_device: Optional[tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:
        """The memory itself, for numpy.from_dlpack, torch.from_dlpack and their like. Waits. Raises
        BufferError where a copy or another device is asked for."""
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"copy={copy}, dl_device={dl_device}: this is the memory itself, on "
                              f"{self.__dlpack_device__()}; Array.read copies")
        self.context.wait()
        address = self.address
        if not address:
            raise UnsupportedError(f"{self.context.device.id} has memory that DLPack cannot name")
        return _dlpack.give(self._view(address), self.dtype, self.__dlpack_device__())

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.context.device.backend != "cuda":
            raise AttributeError(f"{self.context.device.id} is no CUDA device")
        self.context.wait()
        item, dtype, _ = DTYPES[self.dtype]
        return {"version": 3, "shape": self.shape, "typestr": dtype.str, "data": (self.address, False),
                "strides": tuple(n * item for n in self._strides()), "stream": None}

    # ---- For calls ----

    def _place(self) -> Any:
        return {"buffer": self._buffer._pointer, "offset": self._offset}


def rows(array: Array) -> Any:
    """The tamis_rows of an array, for calls."""
    try:
        found = array._rows
        array._buffer._pointer  # raises where it has been closed
    except AttributeError:
        raise ArgumentError(f"{type(array).__name__} is no array of tamis: see Context.wrap and "
                            "Context.array") from None
    if found is None:
        raise ArgumentError(f"rows of {array.dtype}: f32, f16 and bf16 are taken")
    return found


def integers(data: Any, dtype: Any, what: str) -> numpy.ndarray:
    """A packed array of one dimension of whole numbers. Raises ArgumentError with the first one that `dtype`
    does not hold.

    >>> integers(range(3), numpy.int32, "tokens")
    array([0, 1, 2], dtype=int32)
    """
    found = numpy.asarray(data)
    if found.size == 0:
        return numpy.empty(0, dtype)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ArgumentError(f"{what}: an array of {found.dtype} of shape {found.shape} is no list of whole "
                            "numbers")
    if found.dtype != dtype:
        limits = numpy.iinfo(dtype)
        wrong = (found < limits.min) | (found > limits.max)
        if wrong.any():
            at = int(wrong.argmax())
            raise ArgumentError(f"{what}: entry {at} is {found[at]}")
    return numpy.ascontiguousarray(found, dtype)


def to_bf16(data: numpy.ndarray) -> numpy.ndarray:
    """f32 rounded to bf16, to nearest even, as uint16; NaN stays NaN.

    >>> [hex(n) for n in to_bf16(numpy.float32([1, 1.00390625, -2.5]))]
    ['0x3f80', '0x3f80', '0xc020']
    """
    bits = numpy.ascontiguousarray(data, numpy.float32).view(numpy.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return numpy.where(numpy.isnan(data), (bits >> 16) | 0x40, rounded).astype(numpy.uint16)


def from_bf16(data: numpy.ndarray) -> numpy.ndarray:
    """bf16 as uint16 to f32, exact."""
    return (numpy.asarray(data, numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)


def _row(shape: tuple[int, ...]) -> int:
    return int(numpy.prod(shape[1:]))


def _row_stride(foreign: _dlpack.Foreign, shape: tuple[int, ...]) -> int:
    """Elements between rows, where all inside a row are packed."""
    packed = 1
    for axis in range(len(shape) - 1, 0, -1):
        if shape[axis] != 1 and foreign.strides[axis] != packed:
            raise ArgumentError(f"strides {foreign.strides} of shape {shape}: the elements of a row are not "
                                "packed, and wrapping does not copy")
        packed *= shape[axis]
    stride = foreign.strides[0] if shape[0] > 1 else packed
    if stride < packed:
        raise ArgumentError(f"strides {foreign.strides} of shape {shape}: rows overlap or run backwards")
    return stride
