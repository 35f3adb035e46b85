# SPDX-License-Identifier: Apache-2.0
"""Errors: a class for each status of the library, with the library's text; and what callbacks raise."""
from __future__ import annotations

import re

import pytest

import tamis
from conftest import REPOSITORY
from tamis import _core, errors
from tamis.c import check, error, ffi, lib

STATUS_H = REPOSITORY / "lib" / "include" / "tamis" / "status.h"


def text(pointer: object) -> str:
    return ffi.string(pointer).decode()


def statuses() -> dict[int, str]:
    """The library's own list: codes and names."""
    found = {}
    while text(lib.tamis_status_name(-len(found))) != "unknown":
        found[-len(found)] = text(lib.tamis_status_name(-len(found)))
    return found


def test_there_is_one_class_for_each_status() -> None:
    names = statuses()
    listed = re.findall(r"X\((\w+), (-?\d+), ", STATUS_H.read_text())
    assert names == {int(code): name for name, code in listed}  # the header's
    assert names.pop(0) == "OK"
    assert {code: kind.name for code, kind in errors.BY_CODE.items()} == names
    for code, kind in errors.BY_CODE.items():
        assert kind.code == code == getattr(lib, f"TAMIS_{kind.name}")
        assert getattr(tamis, kind.__name__) is kind and issubclass(kind, tamis.Error)
        assert kind.__doc__ is not None and kind.__doc__.startswith(kind.name + ":")
    assert len(set(errors.BY_CODE.values())) == len(names)


@pytest.mark.parametrize("kind, base", [
    (tamis.ArgumentError, ValueError), (tamis.UnsupportedError, NotImplementedError),
    (tamis.NoMemoryError, MemoryError), (tamis.StateError, RuntimeError), (tamis.FormatError, ValueError),
    (tamis.FileError, OSError), (tamis.DeviceError, RuntimeError)])
def test_classes_are_python_s_too(kind: type[tamis.Error], base: type[Exception]) -> None:
    assert issubclass(kind, base)


@pytest.mark.parametrize("code", sorted(errors.BY_CODE))
def test_the_text_is_the_library_s(code: int) -> None:
    """What the library has written into the thread's tamis_error, whole, with bytes that are no UTF-8."""
    reason = b"a budget of 5 \xff tokens".ljust(507, b".")
    ffi.memmove(error().text, reason + b"\0", 508)
    with pytest.raises(errors.BY_CODE[code]) as raised:
        check(code)
    assert str(raised.value) == reason.decode("utf-8", "replace")
    check(0)


def test_texts_name_the_offending_value(context: tamis.Context) -> None:
    cache = tamis.Cache(context, n_layers=1, n_heads=4, n_kv_heads=2, head_dim=64, capacity_tokens=64)
    one = cache.add()
    own = ffi.new("tamis_error *")
    assert lib.tamis_cache_truncate(cache._pointer, one.handle, 77, own) == lib.TAMIS_E_ARGUMENT
    with pytest.raises(tamis.ArgumentError, match="77") as raised:
        one.truncate(77)
    assert str(raised.value) == text(own.text)
    plan = cache.plan(max_context=256)
    with pytest.raises(tamis.FullError, match=r"\b10\b.*\b8\b"):
        plan.step(one, 80)
    open_step = plan.step(one)
    with pytest.raises(tamis.StateError, match="open"):
        plan.step(one)
    open_step.cancel()
    with pytest.raises(tamis.UnsupportedError, match="100"):
        tamis.Cache(context, n_layers=1, n_heads=4, n_kv_heads=2, head_dim=100, capacity_tokens=64)
    with pytest.raises(tamis.NoMemoryError):
        context.empty((1 << 25, 1 << 25))


def test_there_is_no_such_device() -> None:
    with pytest.raises(tamis.NoDeviceError, match="reference:5"):
        tamis.Context("reference:5")
    with pytest.raises(tamis.NoDeviceError, match="abacus"):
        tamis.Context("abacus")


@pytest.mark.parametrize("call, says", [
    (lambda cache: tamis.Cache(cache.context, n_layers=-1, n_heads=4, n_kv_heads=2, head_dim=64,
                               capacity_tokens=64), "n_layers is -1"),
    (lambda cache: tamis.Cache(cache.context, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=64,
                               capacity_tokens=64, layer_tokens=[64, -2]), r"layer_tokens are \[64, -2\]"),
    (lambda cache: cache.plan(max_context=1 << 32), "max_context is 4294967296"),
    (lambda cache: cache.plan(max_context=64, attention=tamis.Attention(chunk=-5)), "chunk is -5"),
    (lambda cache: cache.plan(max_context=64).step(cache.add(), [-3]), r"rows are \[-3\]"),
    (lambda cache: cache.plan(max_context=64).step(cache.add(), 2, parents=[-3, 0]),
     r"parents are \[-3, 0\]"),
    (lambda cache: cache.add().truncate(-4), "-4"),
    (lambda cache: tamis.Quest(budget=-7)._struct(), "Quest.budget is -7"),
    (lambda cache: tamis.AdaKV(floor="a")._struct(), "AdaKV.floor is 'a'"),  # type: ignore[arg-type]
])
def test_numbers_that_do_not_fit_are_named(call: object, says: str) -> None:
    with tamis.Context("reference") as context:
        cache = tamis.Cache(context, n_layers=1, n_heads=4, n_kv_heads=2, head_dim=64, capacity_tokens=64)
        with pytest.raises(tamis.ArgumentError, match=says):
            call(cache)  # type: ignore[operator]


# ---- Callbacks ------------------------------------------------------------------------------------


def test_what_a_callback_raises_is_raised_by_the_call() -> None:
    """By the one that failed, and by no later one; the first reason counts."""
    own = ffi.new("tamis_error *")
    with _core.callback(own) as inside:
        raise KeyError("first")
    assert inside.failed and own.status == lib.TAMIS_E_STATE and "first" in text(own.text)
    with _core.callback(own):
        raise KeyError("second")
    with pytest.raises(KeyError, match="first"):
        check(lib.TAMIS_E_STATE)
    check(0)
    _core.raised()


def test_what_a_log_function_raises_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call goes on, and no later call raises it."""
    lines, printed = [], []

    def log(level: str, line: str) -> None:
        lines.append((level, line))
        raise LookupError("of a log function")

    monkeypatch.setattr("sys.unraisablehook", lambda of: printed.append(str(of.exc_value)))
    monkeypatch.setenv("TAMIS_DEVICE", "reference")
    with tamis.Context(log=log) as context:
        cache = tamis.Cache(context, n_layers=1, n_heads=4, n_kv_heads=2, head_dim=64, capacity_tokens=64)
        with pytest.raises(tamis.ArgumentError, match="77"):
            cache.add().truncate(77)
    assert ("debug", "cache: 8 pages in 1 pools, 34816 bytes") in lines
    assert printed == ["of a log function"] * len(lines)


def test_ctrl_c_in_a_callback_is_raised_behind_the_call() -> None:
    with _core.telling():
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        check(0)
    check(0)


def test_nothing_is_closed_inside_a_callback() -> None:
    context = tamis.Context("reference")
    array = context.empty((2, 3))
    with _core.callback():
        for each in context, array:
            with pytest.raises(tamis.StateError, match="inside a callback"):
                each.close()
    _core.raised()
    array.close()
    context.close()
    assert array.closed and context.closed
