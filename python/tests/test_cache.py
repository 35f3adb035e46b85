# SPDX-License-Identifier: Apache-2.0
"""Caches and sequences: what they hold, what they share, and that pages come back."""
from __future__ import annotations

import gc
from typing import Any

import numpy
import pytest

import tamis
from rig import DIM, HEADS, KV_HEADS, LAYERS, Rig

SHAPE: dict[str, Any] = dict(n_layers=LAYERS, n_heads=HEADS, n_kv_heads=KV_HEADS, head_dim=DIM)
LANES = LAYERS * KV_HEADS


@pytest.fixture
def rig(context: tamis.Context) -> Rig:
    return Rig(context)


@pytest.mark.parametrize("dtype, tolerance", [
    ("f32", 0), ("f16", 0), ("bf16", 0), ("q8", 0.02), ("k8v4", 0.3), ("q4", 0.3)])
def test_rows_are_read_as_they_were_written(context: tamis.Context, dtype: str, tolerance: float) -> None:
    rig = Rig(context, dtype=dtype)
    assert rig.cache.dtype == dtype
    text = rig.prompt(rig.plan(), 37)
    assert len(text) == 37 and bool(text) and bool(rig.cache.add())
    for layer in range(LAYERS):
        for head in range(KV_HEADS):
            k, v = text.read(layer, head)
            assert k.shape == v.shape == (37, DIM)
            assert abs(k - rig.k[text.handle][layer, :, head]).max() <= tolerance
            assert abs(v - rig.v[text.handle][layer, :, head]).max() <= tolerance
            part, _ = text.read(layer, head, 5, 7)
            assert numpy.array_equal(part, k[5:12])
            assert numpy.array_equal(text.positions(layer, head), numpy.arange(37))
    assert numpy.array_equal(text.lane_lengths(), numpy.full((LAYERS, KV_HEADS), 37))
    assert text.evicted_at == 0


def test_stats_count_pages(rig: Rig) -> None:
    empty = rig.cache.stats
    assert (empty.sequences, empty.pages_held, empty.bytes_held) == (0, 0, 0)
    assert empty.pages_total == LANES * 1024 // 16 and empty.bytes_reserved > 1024 * LANES * DIM * 4 * 2
    text = rig.prompt(rig.plan(), 37)
    held = rig.cache.stats
    assert (held.sequences, held.pages_held, held.pages_shared) == (1, 3 * LANES, 0)
    assert held.bytes_held * empty.pages_total == held.pages_held * empty.bytes_reserved
    own = text.stats
    assert (own.slots, own.pages, own.pages_shared, own.bytes_held, own.shortest) == (
        37 * LANES, 3 * LANES, 0, held.bytes_held, 0)
    text.remove()
    assert rig.cache.stats == empty and text.removed
    text.remove()
    with pytest.raises(tamis.ArgumentError):
        len(text)


def test_forks_share_pages_until_one_writes(rig: Rig) -> None:
    plan = rig.plan()
    text = rig.prompt(plan, 37)
    fork = text.fork()
    rig.k[fork.handle], rig.v[fork.handle] = rig.k[text.handle], rig.v[text.handle]
    assert len(fork) == 37 and fork.handle != text.handle and fork.cache is text.cache
    assert rig.cache.stats.pages_held == 3 * LANES and rig.cache.stats.pages_shared == 3 * LANES
    rig.run(plan, fork, 20)
    assert (len(text), len(fork)) == (37, 57)
    assert rig.cache.stats.pages_shared == 2 * LANES and plan.counters.pages_copied == LANES
    assert numpy.array_equal(text.read(1, 1)[0], rig.k[text.handle][1, :, 1])
    assert numpy.array_equal(fork.read(1, 1)[0], rig.k[fork.handle][1, :, 1])
    text.remove()
    assert rig.cache.stats.pages_shared == 0 and len(fork) == 57


def test_truncation_gives_pages_back(rig: Rig) -> None:
    text = rig.prompt(rig.plan(), 60)
    text.truncate(60)
    assert text.stats.pages == 4 * LANES
    text.truncate(33)
    assert (len(text), text.stats.pages) == (33, 3 * LANES)
    with pytest.raises(tamis.ArgumentError, match="34.*33"):
        text.truncate(34)
    with pytest.raises(tamis.ArgumentError, match="-1"):
        text.truncate(-1)
    text.truncate(0)
    assert (len(text), rig.cache.stats.pages_held) == (0, 0)


def test_a_forgotten_sequence_is_removed(rig: Rig) -> None:
    plan = rig.plan()
    texts = [rig.prompt(plan, 37) for _ in range(3)]
    assert rig.cache.stats.sequences == 3
    del texts[1]
    assert rig.cache.stats.sequences == 2
    texts[0].remove()
    kept = texts.pop()
    texts.clear()
    assert rig.cache.stats.sequences == 1 and len(kept) == 37


def test_one_in_a_step_is_removed_behind_it(rig: Rig) -> None:
    plan = rig.plan()
    text = rig.prompt(plan, 20)
    rig.draw([text], [1])
    step = plan.step(text)
    step.sequences.clear()
    del text
    gc.collect()
    rig.attend_all(step)
    step.end()
    assert rig.cache.stats.sequences == 1
    another = rig.cache.add()  # a call that makes something
    assert rig.cache.stats.sequences == 1 and len(another) == 0


@pytest.mark.parametrize("params, pages", [
    ({"capacity_tokens": 100}, 7 * LANES), ({"capacity_tokens": 100, "page_size": 64}, 2 * LANES),
    ({"capacity_tokens": 100, "layer_tokens": [0, 33]}, 7 * KV_HEADS + 3 * KV_HEADS)])
def test_capacity_is_in_whole_pages(context: tamis.Context, params: Any, pages: int) -> None:
    cache = tamis.Cache(context, **SHAPE, **params)
    assert cache.stats.pages_total == pages and cache.page_size == params.get("page_size", 16)


def test_capacity_may_be_in_bytes(context: tamis.Context) -> None:
    for more in {}, {"bounds_dtype": "q8"}, {"planes": ["positions", "scores"]}, {"dtype": "q4"}:
        stats = tamis.Cache(context, **SHAPE, capacity_bytes=1 << 20, **more).stats  # type: ignore[arg-type]
        page = stats.bytes_reserved // stats.pages_total
        assert (1 << 20) - page * LANES < stats.bytes_reserved <= 1 << 20
    cache = tamis.Cache(context, **SHAPE, capacity_tokens=64)
    assert cache.stats.bytes_reserved < tamis.Cache(context, **SHAPE, capacity_tokens=64,
                                                    evict=tamis.H2O(budget=32)).stats.bytes_reserved


@pytest.mark.parametrize("params, says", [
    ({"capacity_tokens": 64, "dtype": "f8"}, "'f8': known are f32, f16, bf16, q8"),
    ({"capacity_tokens": 64, "bounds": "median"}, "'median': known are minmax"),
    ({"capacity_tokens": 64, "bounds_dtype": "q4"}, "'q4'"),
    ({"capacity_tokens": 64, "planes": ["ages"]}, "'ages': known are positions, scores"),
    ({"capacity_tokens": 64, "layer_tokens": [64]}, "1 entries for 2 layers"),
    ({"capacity_tokens": 64, "page_size": 12}, "12"), ({}, "capacity"),
    ({"capacity_tokens": 64, "capacity_bytes": 64}, "capacity")])
def test_parameters_that_do_not_fit_are_refused(context: tamis.Context, params: Any, says: str) -> None:
    with pytest.raises((tamis.ArgumentError, tamis.UnsupportedError), match=says):
        tamis.Cache(context, **SHAPE, **params)


def test_bounds_can_be_changed(rig: Rig) -> None:
    assert rig.cache.bounds == tamis.Bounds("minmax", 0)
    rig.cache.bounds = "meanstd"
    assert rig.cache.bounds == tamis.Bounds("meanstd", 1)
    rig.cache.bounds = tamis.Bounds("meanstd", 2.5)
    assert rig.cache.bounds.width == 2.5
    with pytest.raises(tamis.ArgumentError, match="-1"):
        rig.cache.bounds = tamis.Bounds("meanstd", -1)
    with pytest.raises(tamis.ArgumentError, match="'median'"):
        rig.cache.bounds = "median"
    with rig.plan().step(rig.cache.add()) as step:
        with pytest.raises(tamis.StateError):
            rig.cache.bounds = "mean"
        step.cancel()
    rig.cache.bounds = "mean"
    assert rig.cache.bounds.kind == "mean"


def test_lanes_that_there_are_not_are_refused(rig: Rig) -> None:
    text = rig.prompt(rig.plan(), 20)
    for call in (lambda: text.lane_length(2, 0), lambda: text.lane_length(0, 2),
                 lambda: text.lane_length(-1, 0), lambda: text.read(0, 0, 10, 11),
                 lambda: text.read(0, -1), lambda: text.read(0, 0, -1, 3),
                 lambda: text.read(0, 0, 21), lambda: text.positions(0, 0, 0, 21)):
        with pytest.raises(tamis.ArgumentError):
            call()
    other = Rig(rig.context).cache.add()
    with pytest.raises(tamis.ArgumentError, match=str(other.handle)):
        rig.plan().step(other)


def test_the_read_limit_is_measured(rig: Rig) -> None:
    text = rig.prompt(rig.plan(), 200)
    assert 0 < rig.cache.read_limit([text], 1) < 1e5
    for of in [], [rig.cache.add()]:
        with pytest.raises(tamis.ArgumentError):
            rig.cache.read_limit(of)


# ---- The end --------------------------------------------------------------------------------------


def test_a_closed_cache_is_gone(rig: Rig) -> None:
    plan = rig.plan()
    text = rig.prompt(plan, 20)
    assert "closed" not in repr(rig.cache) and f"{LAYERS} layers, {KV_HEADS} KV heads" in repr(rig.cache)
    with rig.cache as cache:
        assert cache is rig.cache
    assert rig.cache.closed and "closed" in repr(rig.cache)
    rig.cache.close()
    for call in (rig.cache.add, text.fork, lambda: len(text), lambda: text.read(0, 0), text.remove,
                 lambda: rig.cache.stats, lambda: rig.plan(), lambda: plan.step(text),
                 lambda: plan.evict(text)):
        with pytest.raises(tamis.StateError, match="closed|destroyed"):
            call()


# ---- Prefixes -------------------------------------------------------------------------------------


def test_prefixes_fork_what_begins_alike(rig: Rig) -> None:
    plan = rig.plan()
    prefixes = tamis.Prefixes(rig.cache)
    texts = [rig.prompt(plan, 40) for _ in range(2)]
    prefixes.add(texts[0], range(40))
    prefixes.add(texts[1], [*range(20), *range(100, 120)], b"a tenant's own..")
    fork, length = prefixes.fork([*range(30), 7, 8]) or (None, 0)
    assert fork is not None and length == 30 and len(fork) == 30
    assert numpy.array_equal(fork.read(0, 0)[0], texts[0].read(0, 0)[0][:30])
    assert prefixes.fork(range(200, 230)) is None
    assert prefixes.fork(range(30), least=30) is None  # the last one must be computed
    other = prefixes.fork([*range(20), 100, 5], b"a tenant's own..")
    assert other is not None and other[1] == 21
    assert prefixes.fork(range(30), b"another tenant's") is None
    prefixes.remove(texts[0])
    assert prefixes.fork(range(30)) is None
    with pytest.raises(tamis.ArgumentError, match="41.*40|40.*41"):
        prefixes.add(texts[0], range(41))
    with pytest.raises(tamis.ArgumentError, match="salt of 5 bytes"):
        prefixes.add(texts[0], [1], b"short")
    prefixes.close()
    with pytest.raises(tamis.StateError):
        prefixes.fork([1, 2])
