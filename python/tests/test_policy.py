# SPDX-License-Identifier: Apache-2.0
"""Policies: every kind, field and option of the library has its class and field, with the same default."""
from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import tamis
from tamis import policy
from tamis.c import ffi, lib

SELECTIONS = list(policy.SELECTIONS.values())
EVICTIONS = list(policy.EVICTIONS.values())
KINDS = [*SELECTIONS, *EVICTIONS]

# A value of each number that no kind has as its default, and that fits to the others' defaults.
PROBES = {"budget": 512, "sinks": 3, "recent": 20, "window": 16, "kernel": 3, "pooling": 1, "chunk": 8,
          "floor": 0.5, "beta": 7, "every": 5, "dense_layers": 1, "group": 2, "seed": 9}


def text(pointer: Any) -> str:
    return ffi.string(pointer).decode()


def default(kind: Any) -> Any:
    """The library's struct of a kind's defaults."""
    out = ffi.new(kind._struct_name + " *")
    fill = lib.tamis_selection_default if issubclass(kind, tamis.Selection) else lib.tamis_eviction_default
    fill(kind._code, out)
    return out


def fields(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_are_the_library_s(kind: Any) -> None:
    made, expected = kind()._struct(), default(kind)
    for name, _ in ffi.typeof(kind._struct_name).fields:
        if name != "reserved":
            assert getattr(made, name) == getattr(expected, name), name
    assert bytes(ffi.buffer(made)) == bytes(ffi.buffer(expected))


def test_every_kind_has_its_class() -> None:
    names = []
    while lib.tamis_selection_name_at(len(names)):
        names.append(text(lib.tamis_selection_name_at(len(names))))
    assert names == [*policy.SELECTIONS, "quest-paper"]
    assert {kind._code: kind.kind for kind in SELECTIONS} == {
        code: text(lib.tamis_selection_name(code)) for code in ffi.typeof("tamis_selection_kind").elements}
    codes = set(ffi.typeof("tamis_eviction_kind").elements) - {lib.TAMIS_EVICT_NONE}
    assert {kind._code: kind.kind for kind in EVICTIONS} == {
        code: text(lib.tamis_eviction_name(code)) for code in codes}
    assert all(getattr(tamis, kind.__name__) is kind for kind in KINDS)


@pytest.mark.parametrize("kind", EVICTIONS)
def test_an_eviction_has_the_fields_that_the_library_takes(kind: Any) -> None:
    """What its check refuses for a kind is no field of the class, and the other way round."""
    taken = set()
    for name, value in PROBES.items():
        struct = default(kind)
        if not hasattr(struct, name):
            continue
        setattr(struct, name, value)
        if lib.tamis_eviction_check(struct, ffi.NULL) == lib.TAMIS_OK:
            taken.add(name)
    index = 0
    while lib.tamis_eviction_option_name(index):
        struct = default(kind)
        struct.options = 1 << index
        if lib.tamis_eviction_check(struct, ffi.NULL) == lib.TAMIS_OK:
            option = text(lib.tamis_eviction_option_name(index)).replace("-", "_")
            taken.add(option)
            assert kind(**{option: True})._struct().options == 1 << index
        index += 1
    assert fields(kind) == taken


@pytest.mark.parametrize("kind", KINDS)
def test_fields_reach_the_library(kind: Any) -> None:
    for name in fields(kind) & PROBES.keys():
        names = {"group": policy.GROUPS, "pooling": policy.POOLINGS}.get(name)
        value = PROBES[name] if names is None else next(n for n in names if names[n] == PROBES[name])
        struct = dataclasses.replace(kind(), **{name: value})._struct()
        assert getattr(struct, name) == PROBES[name], name
        setattr(struct, name, getattr(default(kind), name))
        assert bytes(ffi.buffer(struct)) == bytes(ffi.buffer(default(kind)))  # nothing else has changed


@pytest.mark.parametrize("kind", KINDS)
def test_a_zero_that_would_mean_the_default_is_refused(kind: Any) -> None:
    for name in fields(kind):
        field = next(field for field in dataclasses.fields(kind) if field.name == name)
        if name in kind._options or isinstance(field.default, str) or name == "floor":
            continue
        if name in kind._may_be_zero:
            assert getattr(kind(**{name: 0})._struct(), name) == 0
        else:
            with pytest.raises(tamis.ArgumentError, match=f"{kind.__name__}.{name} is 0"):
                kind(**{name: 0})._struct()


def test_a_floor_of_0_is_none() -> None:
    for kind in tamis.AdaKV, tamis.CriticalAdaKV, tamis.AnDPro, tamis.DefensiveKV:
        for floor in 0, 0.0, None:
            assert kind(floor=floor)._struct().floor == -1
        assert kind(floor=0.25)._struct().floor == 0.25


@pytest.mark.parametrize("make, says", [
    (lambda: tamis.Quest(group="median")._struct(), "Quest.group is 'median': known are max, mean, sum"),
    (lambda: tamis.SnapKV(pooling="min")._struct(), "SnapKV.pooling is 'min'"),
    (lambda: tamis.Quest(budget=1 << 32)._struct(), "Quest.budget is 4294967296"),
    (lambda: tamis.PyramidKV(beta="steep")._struct(), "PyramidKV.beta is 'steep'"),
    (lambda: tamis.selection("quests"), "'quests': known are full, window, quest,"),
    (lambda: tamis.eviction("lru"), "'lru': known are none, streaming, h2o,"),
    (lambda: tamis.selection("full", budget=5), "full has no 'budget': it has no fields"),
    (lambda: tamis.selection("window", seed=5), "window has no 'seed': it has budget, sinks"),
    (lambda: tamis.eviction("tova", window=5), "tova has no 'window'"),
    (lambda: tamis.selection(tamis.Quest(), window=5), "quest has no 'window'"),
    (lambda: tamis.selection("quest-paper", window=5), "quest has no 'window'"),
    (lambda: tamis.eviction(tamis.TOVA(), window=5), "tova has no 'window'"),
    (lambda: tamis.eviction(None, budget=5), "there is no budget"),
    (lambda: policy.check_selection(tamis.Quest(budget=32, recent=32), 16), "32"),
    (lambda: policy.check_eviction(tamis.SnapKV(budget=20)), "20"),
])
def test_what_does_not_fit_is_refused(make: Any, says: str) -> None:
    with pytest.raises(tamis.ArgumentError, match=says):
        make()


def test_names_make_policies() -> None:
    for kind in SELECTIONS:
        assert tamis.selection(kind.kind) == kind()
    for kind in EVICTIONS:
        assert tamis.eviction(kind.kind) == kind()
    assert tamis.selection(None) == tamis.Full()
    assert tamis.eviction(None) is tamis.eviction("none") is None
    assert tamis.selection("quest", budget=512) == tamis.Quest(budget=512)
    assert tamis.selection(tamis.Quest(sinks=8), budget=512) == tamis.Quest(sinks=8, budget=512)
    assert tamis.eviction(tamis.H2O(rerank=True), budget=64) == tamis.H2O(budget=64, rerank=True)
    paper, parsed = tamis.selection("quest-paper", budget=2048), ffi.new("tamis_selection *")
    assert lib.tamis_selection_parse(b"quest-paper", parsed, ffi.NULL) == lib.TAMIS_OK
    assert bytes(ffi.buffer(paper._struct())) == bytes(ffi.buffer(parsed))
    assert len({tamis.Quest(), tamis.Quest(), tamis.Quest(sinks=1)}) == 2  # they are values


@pytest.mark.parametrize("kind", EVICTIONS)
def test_planes_are_the_library_s(kind: Any) -> None:
    bits = lib.tamis_eviction_planes(kind()._struct())
    assert bits and sum(policy.PLANES[name] for name in kind().planes) == bits
    for name in kind._options:
        of = kind(**{name: True})
        assert sum(policy.PLANES[name] for name in of.planes) == lib.tamis_eviction_planes(of._struct())
