# SPDX-License-Identifier: Apache-2.0
"""Arrays: memory is shared without copies, both ways, lives as long as somebody looks at it, and no longer;
what cannot be shared is refused with the reason."""
from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy
import pytest

import tamis
from conftest import DEVICES
from tamis.array import DTYPES

HOST = [device for device in DEVICES if not device.startswith("cuda")]
NUMPY = {"f32": numpy.float32, "f16": numpy.float16, "i32": numpy.int32, "u8": numpy.uint8}


@pytest.fixture(scope="module", params=HOST)
def host(request: pytest.FixtureRequest) -> Any:
    """A context that uses the host's memory in place."""
    with tamis.Context(request.param) as context:
        yield context


def filled(shape: Any, dtype: Any = numpy.float32, seed: int = 1) -> numpy.ndarray:
    """Numbers in memory that can be wrapped."""
    out = tamis.empty(shape, dtype)
    out[...] = numpy.random.default_rng(seed).integers(0, 200, out.shape)
    return out


# ---- NumPy ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NUMPY)
def test_numpy_s_memory_is_used_in_place(host: tamis.Context, dtype: str) -> None:
    source = filled((6, 2, 32), NUMPY[dtype])
    array = host.wrap(source)
    assert (array.shape, array.dtype, array.row_stride) == ((6, 2, 32), dtype, 64)
    assert array.address == source.ctypes.data
    assert numpy.array_equal(array.read(), source)
    source[2, 1, 5] = 77
    assert array.read()[2, 1, 5] == 77
    array.write(numpy.zeros((6, 2, 32)))
    host.wait()
    assert not source.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_looks_at_an_array_s_memory(host: tamis.Context, dtype: str) -> None:
    array = host.array(numpy.arange(64).reshape(4, 16), dtype)
    view = array.numpy()
    if dtype == "bf16":
        assert view.dtype == numpy.uint16
        assert numpy.array_equal(tamis.from_bf16(view), numpy.arange(64).reshape(4, 16))
    else:
        assert view.dtype == NUMPY[dtype] and numpy.array_equal(view, numpy.arange(64).reshape(4, 16))
    assert view.ctypes.data == array.address and view.flags.writeable and not view.flags.owndata
    view[3, 15] = 9
    assert array.read()[3, 15] == 9
    part = array[2:4, 4:8].numpy()
    assert part.ctypes.data == view[2:4, 4:8].ctypes.data and part.strides == view[2:4, 4:8].strides
    assert numpy.array_equal(part, view[2:4, 4:8])


@pytest.mark.parametrize("dtype", NUMPY)
def test_numpy_takes_an_array_by_dlpack(host: tamis.Context, dtype: str) -> None:
    array = host.array(numpy.arange(64).reshape(4, 2, 8), dtype)
    view = numpy.from_dlpack(array)
    assert view.ctypes.data == array.address and view.dtype == NUMPY[dtype]
    assert numpy.array_equal(view, array.read())
    assert numpy.array_equal(numpy.from_dlpack(array[1:3]), array.read()[1:3])


def test_rows_may_lie_apart(host: tamis.Context) -> None:
    source = filled((12, 16))
    for part in source[::3], source[1::2], source[4:9], source[::3][1:], source[:, :8][::2]:
        if part.ctypes.data % 64:
            continue
        array = host.wrap(part)
        assert array.address == part.ctypes.data and array.row_stride * 4 == part.strides[0]
        assert numpy.array_equal(array.read(), part)
        assert numpy.array_equal(array.numpy(), part) and array.numpy().strides == part.strides
        array.write(part + 1)
        assert numpy.array_equal(array.read(), part)  # which has changed, too
    one = host.wrap(source[:1])
    assert (one.shape, one.row_stride) == ((1, 16), 16)
    assert host.wrap(filled(5)).shape == (5,)
    assert host.wrap(filled((5, 1, 1))[::2]).row_stride == 2


@pytest.mark.parametrize("source, says", [
    (lambda: filled(40)[1:], "address 0x|a multiple of 64|aligned"),
    (lambda: filled((4, 16)).T, r"strides \(1, 16\) of shape \(16, 4\)"),
    (lambda: filled((4, 16))[:, ::2], r"strides \(16, 2\)"),
    (lambda: filled((4, 4, 16)).transpose(1, 0, 2), r"strides \(16, 64, 1\)"),
    (lambda: filled((4, 16))[::-1], "multiple of 64|backwards"),
    (lambda: numpy.broadcast_to(filled(16), (4, 16)), "overlap|read-only"),
    (lambda: numpy.lib.stride_tricks.as_strided(filled(64), (4, 16), (4 * 8, 4)), "overlap"),
    (lambda: filled((4, 4, 8))[:, :, :4], r"strides \(32, 8, 1\)"),
    (lambda: numpy.zeros((4, 16), [("a", "u1"), ("b", "f4")])["b"], r"no multiples of 4"),
    (lambda: filled((4, 0)), r"\(4, 0\)"),
    (lambda: filled((4, 16)).astype(">f4"), ">f4"),
    (lambda: numpy.zeros((4, 16)), "float64"),
    (lambda: numpy.zeros((4, 16), bool), "bool"),
    (lambda: numpy.zeros((4, 16), complex), "complex128"),
    (lambda: [1.0, 2.0], "a list has no memory to share"),
    (lambda: None, "a NoneType has no memory to share"),
])
def test_what_would_need_a_copy_is_refused(host: tamis.Context, source: Any, says: str) -> None:
    with pytest.raises(tamis.ArgumentError, match=says):
        host.wrap(source())


def test_memory_that_must_not_be_written_is_refused(host: tamis.Context) -> None:
    source = filled((4, 16))
    source.flags.writeable = False
    with pytest.raises(tamis.ArgumentError, match=f"{source.ctypes.data:#x} is read-only"):
        host.wrap(source)


def test_an_array_is_not_wrapped_again(host: tamis.Context) -> None:
    with pytest.raises(tamis.ArgumentError, match="already"):
        host.wrap(host.empty((2, 2)))


def test_empty_is_aligned() -> None:
    for shape in 1, 7, (3, 5), (2, 3, 64), 1000003:
        for dtype in "f4", "f2", "u1", "i4":
            made = tamis.empty(shape, dtype)
            assert made.ctypes.data % 64 == 0 and made.flags.c_contiguous and made.flags.writeable
            assert made.shape == ((shape,) if isinstance(shape, int) else shape) and made.dtype == dtype


# ---- torch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, name", [("f32", "float32"), ("f16", "float16"), ("bf16", "bfloat16"),
                                         ("i32", "int32"), ("u8", "uint8")])
def test_torch_s_memory_is_used_in_place(host: tamis.Context, dtype: str, name: str) -> None:
    torch = pytest.importorskip("torch")
    source = torch.arange(60).reshape(3, 20).to(getattr(torch, name))
    array = host.wrap(source)
    assert (array.shape, array.dtype) == ((3, 20), dtype) and array.address == source.data_ptr()
    read = tamis.from_bf16(array.read()) if dtype == "bf16" else array.read()
    assert numpy.array_equal(read, numpy.arange(60).reshape(3, 20))
    array.write(numpy.full((3, 20), 7))
    host.wait()
    assert (source == 7).all()
    view = torch.from_dlpack(array)
    assert view.data_ptr() == source.data_ptr() and view.dtype == source.dtype
    view[1, 3] = 9
    assert source[1, 3] == 9


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_torch_looks_at_an_array_s_memory(host: tamis.Context, name: str) -> None:
    torch = pytest.importorskip("torch")
    array = host.array(numpy.arange(32).reshape(4, 8), {"float32": "f32", "float16": "f16"}.get(name, "bf16"))
    view = torch.from_dlpack(array)
    assert view.data_ptr() == array.address and view.dtype == getattr(torch, name)
    assert torch.equal(view, torch.arange(32).reshape(4, 8).to(view.dtype))
    part = torch.from_dlpack(array[1:3, 2:6])
    assert torch.equal(part, view[1:3, 2:6]) and part.stride() == (8, 1)
    kept = weakref.ref(array._buffer)
    del array, view
    gc.collect()
    assert kept() is not None and part.sum() > 0
    del part
    gc.collect()
    assert kept() is None


def test_a_tensor_lives_while_it_is_wrapped(host: tamis.Context) -> None:
    torch = pytest.importorskip("torch")
    source = torch.ones(2, 64)
    storage = weakref.ref(source.untyped_storage())
    array = host.wrap(source)
    del source
    assert array.read().sum() == 128
    array.close()
    del array
    gc.collect()
    assert storage() is None


def test_a_tensor_that_wants_a_gradient_is_refused(host: tamis.Context) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises((BufferError, RuntimeError), match="grad"):
        host.wrap(torch.ones(2, 64, requires_grad=True))
    with pytest.raises(tamis.ArgumentError, match="DLPack's type"):
        host.wrap(torch.ones(2, 64, dtype=torch.float64))


# ---- Lifetimes ------------------------------------------------------------------------------------


def test_wrapped_memory_lives_while_it_is_used(host: tamis.Context) -> None:
    """By the array, a part of it, a NumPy view or a DLPack capsule of that: whichever is left last."""
    for last in range(5):
        source = filled((4, 16))
        memory = weakref.ref(source.base)  # the memory of tamis.empty
        array = host.wrap(source)
        holders: list[Any] = [source, array, array[1:3], array[1:3].numpy(), array[:2].__dlpack__()]
        del source, array
        holders = holders[last:last + 1]
        assert memory() is not None
        holders.clear()
        assert memory() is None, last


def test_own_memory_lives_while_it_is_used(host: tamis.Context) -> None:
    for last in range(5):
        array = host.array(numpy.arange(64, dtype=numpy.float32).reshape(4, 16))
        memory = weakref.ref(array._buffer)
        holders: list[Any] = [array, array[1:], array.numpy(), numpy.from_dlpack(array), array.__dlpack__()]
        del array
        holders = holders[last:last + 1]
        assert memory() is not None
        if last in (2, 3):
            assert holders[0].sum() == 2016 and holders[0][3, 15] == 63
        holders.clear()
        assert memory() is None, last


class Exporter:
    """Speaks DLPack and nothing else."""

    def __init__(self, of: numpy.ndarray) -> None:
        self.of = of

    def __dlpack__(self, **options: Any) -> Any:
        return self.of.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.of.__dlpack_device__()


def test_memory_by_dlpack_is_given_back_once(host: tamis.Context) -> None:
    source = filled((4, 16))
    memory = weakref.ref(source.base)
    array = host.wrap(Exporter(source[1:3]))
    assert array.address == source[1:3].ctypes.data and array.shape == (2, 16)
    assert numpy.array_equal(array.read(), source[1:3])
    del source
    gc.collect()
    assert memory() is not None
    del array
    gc.collect()
    assert memory() is None


@pytest.mark.parametrize("of", [numpy.zeros((4, 4)), numpy.zeros((4, 4), numpy.int8),
                                numpy.zeros((4, 4), "f4").T])
def test_memory_that_was_refused_is_given_back(host: tamis.Context, of: numpy.ndarray) -> None:
    source = of.copy(order="K")
    memory = weakref.ref(source)
    with pytest.raises(tamis.ArgumentError):
        host.wrap(Exporter(source))
    del source
    gc.collect()
    assert memory() is None


def test_a_capsule_is_taken_once(host: tamis.Context) -> None:
    array = host.empty((2, 16))
    memory, capsule = weakref.ref(array._buffer), array.__dlpack__()
    del array

    class Once:
        def __dlpack__(self, **options: Any) -> Any:
            return capsule

        def __dlpack_device__(self) -> Any:
            return 1, 0

    taken = host.wrap(Once())
    with pytest.raises(ValueError):
        host.wrap(Once())
    del taken, capsule
    gc.collect()
    assert memory() is None


def test_a_closed_array_s_memory_is_not_looked_at(host: tamis.Context) -> None:
    array = host.array(numpy.ones((4, 16), "f4"))
    part, view = array[1:3], array.numpy()
    with pytest.raises(tamis.StateError, match=r"views or DLPack tensors of this memory are left \(1\)"):
        array.close()
    capsule = array.__dlpack__()
    del view
    with pytest.raises(tamis.StateError, match="are left"):
        part.close()
    del capsule
    part.close()
    assert array.closed and part.closed
    for call in (array.read, array.numpy, part.read, lambda: array.write(0), lambda: array.address,
                 lambda: array[1:2], array.__dlpack__, lambda: numpy.asarray(part)):
        with pytest.raises(tamis.StateError, match="this Buffer has been closed"):
            call()
    array.close()


def test_closing_leaves_the_caller_s_memory_alone(host: tamis.Context) -> None:
    source = filled((4, 16))
    array = host.wrap(source)
    view = array.numpy()
    array.close()
    assert numpy.array_equal(view, source)
    source[0, 0] = 123
    assert view[0, 0] == 123


def test_arrays_outlive_their_context(host: tamis.Context) -> None:
    context = tamis.Context(host.device.id)
    array = context.array(numpy.ones((2, 16), "f4"))
    view = array.numpy()
    context.close()
    assert view.sum() == 32
    with pytest.raises(tamis.StateError):
        array.read()
    with pytest.raises(tamis.StateError, match="this Context has been closed"):
        context.empty(3)


# ---- Other memory ---------------------------------------------------------------------------------


def test_dlpack_gives_the_memory_itself(host: tamis.Context) -> None:
    array = host.empty((2, 16))
    assert array.__dlpack_device__() == (1, 0)
    for asked in {"copy": True}, {"dl_device": (2, 0)}:
        with pytest.raises(BufferError):
            array.__dlpack__(**asked)  # type: ignore[arg-type]
    for asked in {"copy": False}, {"dl_device": (1, 0)}, {"max_version": (1, 0), "stream": None}:
        array.__dlpack__(**asked)  # type: ignore[arg-type]
    array = host.empty((2, 16), "bf16")
    memory = weakref.ref(array._buffer)
    with pytest.raises((BufferError, RuntimeError), match="dtype"):
        numpy.from_dlpack(array)  # NumPy knows none, and drops the capsule
    del array
    gc.collect()
    assert memory() is None


class Cuda:
    """Has __cuda_array_interface__ and nothing else."""

    def __init__(self, address: int, shape: tuple[int, ...], typestr: str = "<f4", strides: Any = None,
                 read_only: bool = False) -> None:
        self.__cuda_array_interface__ = {"version": 3, "shape": shape, "typestr": typestr, "strides": strides,
                                         "data": (address, read_only), "stream": None}


def test_cuda_s_memory_is_for_cuda(host: tamis.Context) -> None:
    with pytest.raises(tamis.UnsupportedError):
        host.wrap(Cuda(1 << 20, (2, 16)))
    assert not hasattr(host.empty((2, 16)), "__cuda_array_interface__")

    class Elsewhere(Exporter):
        def __dlpack_device__(self) -> Any:
            return 8, 0  # Metal

    with pytest.raises(tamis.UnsupportedError, match="device type 8"):
        host.wrap(Elsewhere(filled((2, 16))))


@pytest.mark.skipif(HOST == DEVICES, reason="the backend cuda has no device here")
class TestCuda:
    """On a GPU, or on the tests' driver (TAMIS_CUDA_DRIVER)."""

    @pytest.fixture
    def cuda(self) -> Any:
        with tamis.Context("cuda") as context:
            yield context

    def test_memory_is_used_in_place(self, cuda: tamis.Context) -> None:
        owner = cuda.array(numpy.arange(96, dtype=numpy.float32).reshape(6, 16))
        interface = owner[1:].__cuda_array_interface__
        assert interface["data"] == (owner.address + 64, False) and interface["shape"] == (5, 16)
        assert interface["strides"] == (64, 4) and interface["typestr"] == "<f4"
        array = cuda.wrap(Cuda(owner.address, (6, 16)))
        assert array.address == owner.address and array.shape == (6, 16)
        array.write(numpy.zeros((6, 16)))
        assert not owner.read().any()
        owner.write(numpy.arange(96).reshape(6, 16))
        apart = cuda.wrap(Cuda(owner.address, (3, 16), strides=(128, 4)))
        assert numpy.array_equal(apart.read(), numpy.arange(96).reshape(6, 16)[::2])
        assert apart.row_stride == 32

    def test_an_object_lives_while_it_is_wrapped(self, cuda: tamis.Context) -> None:
        owner = cuda.empty((2, 16))
        foreign = Cuda(owner.address, (2, 16))
        kept = weakref.ref(foreign)
        array = cuda.wrap(foreign)
        del foreign
        assert kept() is not None
        del array
        assert kept() is None

    @pytest.mark.parametrize("foreign, says", [
        (lambda at: Cuda(at, (2, 16), read_only=True), "read-only"),
        (lambda at: Cuda(at, (2, 16), "<f8"), "<f8"),
        (lambda at: Cuda(at, (2, 16), strides=(4, 8)), "strides"),
        (lambda at: Cuda(at + 4, (2, 16)), "multiple"),
        (lambda at: Cuda(at, (2, 0)), r"\(2, 0\)")])
    def test_what_cannot_be_shared_is_refused(self, cuda: tamis.Context, foreign: Any, says: str) -> None:
        owner = cuda.empty((4, 16))
        with pytest.raises(tamis.ArgumentError, match=says):
            cuda.wrap(foreign(owner.address))

    def test_the_host_s_memory_is_not(self, cuda: tamis.Context) -> None:
        with pytest.raises(tamis.UnsupportedError):
            cuda.wrap(filled((2, 16)))
        array = cuda.empty((2, 16))
        with pytest.raises(tamis.UnsupportedError, match="Array.read"):
            array.numpy()
        assert array.__dlpack_device__() == (2, 0)
        capsule = array.__dlpack__()  # nobody takes it
        memory = weakref.ref(array._buffer)
        del array, capsule
        assert memory() is None


# ---- Contents -------------------------------------------------------------------------------------


def test_copies_have_the_values(context: tamis.Context) -> None:
    data = numpy.arange(24).reshape(4, 6)
    for dtype in NUMPY:
        array = context.array(data, dtype)
        assert array.dtype == dtype and numpy.array_equal(array.read(), data) and len(array) == 4
        assert array.nbytes == 24 * DTYPES[dtype][0] and array.size == 24
        assert context.array(data.astype(NUMPY[dtype])).dtype == dtype
    values = numpy.random.default_rng(3).standard_normal((4, 6), numpy.float32)
    assert numpy.array_equal(context.array(values, "bf16").read(), tamis.to_bf16(values))
    assert numpy.array_equal(context.array(values.T).read(), values.T)
    assert context.array(numpy.float32(3)).read() == [3]
    array = context.array(values)
    array.write(values[0])  # is broadcast
    assert numpy.array_equal(array.read(), numpy.broadcast_to(values[0], (4, 6)))
    assert numpy.array_equal(numpy.asarray(array), array.read())
    assert numpy.asarray(array, numpy.float64).dtype == numpy.float64


def test_parts_share_memory(context: tamis.Context) -> None:
    data = numpy.arange(240, dtype=numpy.float32).reshape(10, 24)
    array = context.array(data)
    assert numpy.array_equal(array[2:5].read(), data[2:5])
    assert numpy.array_equal(array[2:9][1:3].read(), data[3:5])
    assert numpy.array_equal(array[-3:].read(), data[-3:])
    assert numpy.array_equal(array[1:4, 5:9].read(), data[1:4, 5:9])
    assert numpy.array_equal(array[1:4, 5:9][1:, 1:3].read(), data[2:4, 6:8])
    array[1:4, 5:9].write(numpy.zeros((3, 4)))
    data[1:4, 5:9] = 0
    assert numpy.array_equal(array.read(), data)
    assert numpy.array_equal(array.reshape(5, 2, 24).read(), data.reshape(5, 2, 24))
    assert numpy.array_equal(array[:, 4:12].reshape(10, 2, 4).read(), data[:, 4:12].reshape(10, 2, 4))


@pytest.mark.parametrize("call, says", [
    (lambda a: a[3], "index 3"), (lambda a: a[2:2], "of 10 rows none"), (lambda a: a[::2], "not adjacent"),
    (lambda a: a[12:], "of 10 rows none"), (lambda a: a[:, ::2], "channels"),
    (lambda a: a[:, 30:], "of 24 none"), (lambda a: a.reshape(5, 2, 24)[:, 1:2], "two dimensions"),
    (lambda a: a.reshape(7, 7), r"the 240 elements"),
    (lambda a: a[:, :12].reshape(5, 24), "24 apart"), (lambda a: a.reshape(-1, 24), r"\(-1, 24\)"),
    (lambda a: a.write(numpy.zeros(5)), r"shape \(5,\) for an array of \(10, 24\)"),
    (lambda a: a.context.empty((0, 2)), r"\(0, 2\)"),
    (lambda a: a.context.empty(2, "f8"), "'f8': known are f32"),
    (lambda a: a.context.array(numpy.zeros(3)), "float64"), (lambda a: a.context.array("abc"), "<U3")])
def test_parts_that_are_none_are_refused(context: tamis.Context, call: Any, says: str) -> None:
    array = context.empty((10, 24))
    with pytest.raises(tamis.ArgumentError, match=says):
        call(array)


def test_bf16_is_rounded_to_nearest_even() -> None:
    every = numpy.arange(1 << 16, dtype=numpy.uint32).astype(numpy.uint16)
    exact = tamis.from_bf16(every)
    nan = numpy.isnan(exact)
    assert numpy.array_equal(tamis.to_bf16(exact)[~nan], every[~nan])
    assert numpy.isnan(tamis.from_bf16(tamis.to_bf16(exact)))[nan].all()
    # Between neighbours: below, at and above the middle.
    low = every[(every & 0x7FFF) < 0x7F7F].astype(numpy.uint32)
    for more, up in (0x7FFF, 0), (0x8000, low & 1), (0x8001, 1):
        between = ((low << 16) + more).view(numpy.float32)
        assert numpy.array_equal(tamis.to_bf16(between), (low + up).astype(numpy.uint16))
    quiet = numpy.uint32([0x7F800001, 0xFFC00000]).view(numpy.float32)
    assert numpy.isnan(tamis.from_bf16(tamis.to_bf16(quiet))).all()
    far = numpy.float32([numpy.inf, 3.4e38, -0.0])
    assert numpy.array_equal(tamis.to_bf16(far), [0x7F80, 0x7F80, 0x8000])
