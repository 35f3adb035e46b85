# SPDX-License-Identifier: Apache-2.0
"""Plans and steps beside plain NumPy: what rows attend, which pages they read, which tokens stay; and that
a step which fails, or is given up, leaves everything as it was."""
from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy
import pytest

import tamis
from rig import DIM, GROUP, HEADS, KV_HEADS, LAYERS, Rig, attention, causal
from tamis import policy
from tamis.c import lib

LANES = LAYERS * KV_HEADS
PAGE = 16


@pytest.fixture
def rig(context: tamis.Context) -> Rig:
    return Rig(context)


def state(rig: Rig, *texts: tamis.Sequence) -> Any:
    """What a step that fails must leave as it was."""
    return rig.cache.stats, [(len(text), text.stats, text.lane_lengths().tolist()) for text in texts]


# ---- Attention ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [
    {}, {"scale": 0.05}, {"soft_cap": 3.0}, {"sliding_window": 21}, {"chunk": 32}, {"sinks": True},
    {"soft_cap": 2.0, "sliding_window": 40, "scale": 0.2}])
def test_rows_attend_all_that_they_see(rig: Rig, how: dict[str, Any]) -> None:
    """A prompt in two chunks, then decode rows of two sequences, with several query heads to a KV head."""
    seen = {"window": how.get("sliding_window", 0), "chunk": how.get("chunk", 0)}
    numbers = {name: how[name] for name in ("scale", "soft_cap") if name in how}
    fields = dict(how)
    if "sinks" in how:
        numbers["sinks"] = rig.random.standard_normal(HEADS)
        fields["sinks"] = rig.context.array(numbers["sinks"], "f32")
    plan = rig.plan(attention=tamis.Attention(**fields))
    a, b = rig.prompt(plan, 50), rig.prompt(plan, 9)
    rig.run(plan, a, 27, exact=True)
    for layer in range(LAYERS):
        rig.expect(layer, a, slice(0, 27), causal(range(50, 77), 77, **seen), **numbers)
    for turn in range(2):
        rig.run(plan, [b, a])
        for layer in range(LAYERS):
            rig.expect(layer, b, slice(0, 1), causal([9 + turn], 10 + turn, **seen), **numbers)
            rig.expect(layer, a, slice(1, 2), causal([77 + turn], 78 + turn, **seen), **numbers)
    assert plan.counters.rows_exact == LAYERS * (50 + 9 + 27) and plan.counters.rows_full == LAYERS * 4


def test_layers_may_attend_each_in_its_own_way(rig: Rig) -> None:
    layers = [tamis.Layer(tamis.Attention(sliding_window=20)),
              tamis.Layer(tamis.Attention(soft_cap=4), full=True)]
    plan = rig.plan(select=tamis.Window(budget=48), layers=layers)
    text = rig.prompt(plan, 150)
    rig.expect(0, text, slice(0, 150), causal(range(150), 150, window=20))
    rig.expect(1, text, slice(0, 150), causal(range(150), 150), soft_cap=4)
    rig.run(plan, text)
    rig.expect(1, text, slice(0, 1), causal([150], 151), soft_cap=4)  # though the selection is window
    with pytest.raises(tamis.ArgumentError, match="1 layers for a cache of 2"):
        rig.plan(layers=layers[:1])


@pytest.mark.parametrize("dtype, tolerance", [("f16", 2e-5), ("bf16", 2e-5), ("q8", 0.03)])
def test_caches_of_other_types(context: tamis.Context, dtype: str, tolerance: float) -> None:
    rig = Rig(context, dtype=dtype)
    text = rig.prompt(rig.plan(), 60)
    for layer in range(LAYERS):
        rig.expect(layer, text, slice(0, 60), causal(range(60), 60), tolerance)


def test_rows_of_halves(context: tamis.Context) -> None:
    """q and out of f16 and bf16; out is the f32 one, rounded."""
    rig = Rig(context, dtype="f16")
    plan = rig.plan(half_rows=True)
    text = rig.prompt(plan, 30)
    rig.draw([text], [2])
    k, v = (context.array(x[0], "f16") for x in (rig.step_k, rig.step_v))
    outs = {dtype: context.empty((2, HEADS, DIM), dtype) for dtype in ("f32", "f16", "bf16")}
    with plan.step(text, 2) as step:
        step.write(0, k, v)
        for dtype, out in outs.items():
            step.attend(0, context.array(rig.q[0], dtype), out)
        step.cancel()
    exact = outs["f32"].read()
    assert numpy.array_equal(outs["f16"].read(), exact.astype(numpy.float16))
    assert numpy.array_equal(outs["bf16"].read(), tamis.to_bf16(exact))
    whole = rig.plan()
    with whole.step(text, 2) as step:
        step.write(0, k, v)
        with pytest.raises(tamis.ArgumentError, match="f16"):
            step.attend(0, context.array(rig.q[0], "f16"), outs["f32"])
        step.cancel()


# ---- Selections -----------------------------------------------------------------------------------


def quest_pages(rig: Rig, text: tamis.Sequence, layer: int, row: int, head: int, length: int,
                select: tamis.Quest) -> list[int]:
    """The pages that Quest reads, by its definition."""
    keys, q = rig.k[text.handle][layer, :length, head], rig.q[layer, row, head * GROUP:(head + 1) * GROUP]
    n = -(-length // PAGE)
    always = {n - 1, *range(-(-select.sinks // PAGE)), *range((length - max(select.recent, 1)) // PAGE, n)}
    scores = {}
    for page in set(range(n)) - always:
        of = keys[page * PAGE:(page + 1) * PAGE].astype(numpy.float64)
        each = numpy.maximum(q * of.min(axis=0), q * of.max(axis=0)).sum(axis=1)
        scores[page] = {"max": each.max, "mean": each.mean, "sum": each.sum}[select.group]()
    best = sorted(scores, key=lambda page: (scores[page], page), reverse=True)
    return sorted([*always, *best[:select.budget // PAGE - len(always)]])


@pytest.mark.parametrize("select", [
    tamis.Quest(budget=80), tamis.Quest(budget=64, sinks=0, recent=0, group="sum"),
    tamis.Quest(budget=96, sinks=20, recent=33, group="mean")])
def test_quest_reads_the_pages_with_the_best_bounds(rig: Rig, select: tamis.Quest) -> None:
    plan = rig.plan(select=select, reads=True)
    text = rig.prompt(plan, 200)
    with pytest.raises(tamis.StateError, match="no step"):
        plan.read()
    fork = text.fork()
    rig.k[fork.handle], rig.v[fork.handle] = rig.k[text.handle], rig.v[text.handle]
    for turn in range(3):
        of, length = [text, fork], 201 + turn
        rig.draw(of, [1, 1])
        selected = {}
        with plan.step(of) as step:
            attend = step.attend

            def attend_and_ask(layer: int, *args: Any, **params: Any) -> None:
                attend(layer, *args, **params)
                for row in range(2):
                    for head in range(KV_HEADS):
                        selected[row, layer, head] = step.selected(row, head)

            step.attend = attend_and_ask  # type: ignore[method-assign]
            rig.attend_all(step)
        read = plan.read()
        assert read.shape == (2, LAYERS, KV_HEADS, -(-length // PAGE)) and read.dtype == bool
        for (row, layer, head), pages in selected.items():
            expected = quest_pages(rig, of[row], layer, row, head, length, select)
            assert pages.tolist() == expected
            assert numpy.flatnonzero(read[row, layer, head]).tolist() == expected
        assert numpy.array_equal(plan.read(1), read[1])
        for row, sequence in enumerate(of):
            for layer in range(LAYERS):
                visible = numpy.repeat(read[row, layer], PAGE, axis=1)[None, :, :length]
                rig.expect(layer, sequence, slice(row, row + 1), visible)
    counters = plan.counters
    assert counters.rows_selected == LAYERS * 6 and 0 < counters.bounds_bytes_read
    assert counters.kv_bytes_read < counters.kv_bytes_full / 2
    plan.reset_counters()
    assert plan.counters.steps == 0


def test_an_unfused_plan_reads_the_same(rig: Rig) -> None:
    read, outs = [], []
    plan = rig.plan()
    text = rig.prompt(plan, 200)
    rig.draw([text], [1])
    for unfused in False, True:
        with rig.plan(select=tamis.Quest(budget=80), reads=True, unfused=unfused) as plan:
            with plan.step(text) as step:
                rig.attend_all(step)
            text.truncate(200)
            read.append(plan.read())
            outs.append(rig.out)
            assert unfused <= (plan.counters.rows_fused == 0)
    assert numpy.array_equal(*read)
    numpy.testing.assert_allclose(*outs, atol=1e-5)


def test_other_selections(rig: Rig) -> None:
    """Window's pages are known; random's follow from the seed; oracle's have the largest mass."""
    plan = rig.plan()
    text = rig.prompt(plan, 250)
    rig.run(plan, text, 50, exact=True)
    rig.draw([text], [1])
    read = {}
    for name, select in {"window": tamis.Window(budget=80), "seed 1": tamis.Random(budget=80, seed=1),
                         "seed 2": tamis.Random(budget=80, seed=2), "again": tamis.Random(budget=80, seed=1),
                         "oracle": tamis.Oracle(budget=80), "dense": tamis.Quest(budget=80, dense_layers=1),
                         "short": tamis.Quest(budget=512), "full": "full"}.items():
        with rig.plan(select=select, reads=True) as plan:
            with plan.step(text) as step:
                rig.attend_all(step)
            text.truncate(300)
            read[name] = plan.read(0)
    assert numpy.flatnonzero(read["window"][1, 1]).tolist() == [0, 15, 16, 17, 18]
    assert numpy.array_equal(read["seed 1"], read["again"]) and (read["seed 1"] != read["seed 2"]).any()
    assert read["full"].all() and read["short"].all() and read["dense"][0].all()
    assert all((read[name].sum(axis=2) == 5).all() for name in ("window", "seed 1", "oracle"))
    assert (read["dense"][1].sum(axis=1) == 5).all()
    k, q = rig.k[text.handle][0], rig.q[0]
    masses = numpy.zeros((HEADS, 304))
    weights = numpy.einsum("hd,thd->ht", q[0].astype(float), numpy.repeat(k, GROUP, axis=1)) * DIM ** -0.5
    masses[:, :301] = numpy.exp(weights - weights.max(axis=1, keepdims=True))
    masses /= masses.sum(axis=1, keepdims=True)
    pages = masses.reshape(KV_HEADS, GROUP, 19, PAGE).sum(axis=3).max(axis=1)
    for head in range(KV_HEADS):
        chosen = read["oracle"][0, head]
        free = chosen & ~read["window"][0, head] | chosen & (numpy.arange(19) < 17)
        free[0] = False
        left = ~chosen
        assert pages[head][free].min() > pages[head][left].max()


def test_only_a_plan_that_keeps_reads_has_them(rig: Rig) -> None:
    plan = rig.plan(select=tamis.Quest(budget=64))
    rig.run(plan, rig.prompt(plan, 100))
    with pytest.raises(tamis.StateError, match="reads=True"):
        plan.read()


# ---- Lists of the caller --------------------------------------------------------------------------


def test_callers_lists_of_pages(rig: Rig) -> None:
    plan = rig.plan(select=tamis.Lists(budget=96))
    text, other = rig.prompt(plan, 200), rig.prompt(plan, 50)
    pages = [[[0, 3, 12], [11]], [[], [1, 3]]]
    rig.draw([text, other], [1, 1])
    with plan.step([text, other]) as step:
        with pytest.raises(tamis.ArgumentError, match="2 rows of 2 KV heads"):
            step.attend(0, rig.q_rows, rig.out_rows, pages=pages[:1])
        with pytest.raises(tamis.ArgumentError, match="not of both"):
            step.attend(0, rig.q_rows, rig.out_rows, pages=pages, tokens=pages)
        rig.attend_all(step, pages=pages)
        assert [step.selected(row, head).tolist() for row in range(2) for head in range(2)] == [
            [0, 3, 12], [11], [], [1, 3]]
    for row, (sequence, length) in enumerate([(text, 201), (other, 51)]):
        visible = numpy.array([[[token // PAGE in of for token in range(length)] for of in pages[row]]])
        for layer in range(LAYERS):
            if visible.any(axis=2).all():
                rig.expect(layer, sequence, slice(row, row + 1), visible)
    assert not rig.out[:, 1, :GROUP].any() and (rig.lse[:, 1, :GROUP] == -numpy.inf).all()
    assert plan.skipped == 0
    rig.draw([text], [1])
    with plan.step(text) as step:  # entries behind the end, and one that does not ascend
        rig.attend_all(step, pages=[[[2, 1, 5], [0, 99]]])
    assert plan.skipped == 2 * LAYERS


def test_callers_lists_of_tokens(rig: Rig) -> None:
    plan = rig.plan(select=tamis.Lists(budget=64), token_lists=True)
    text = rig.prompt(plan, 100)
    tokens = [[[0, 7, 50, 100], [*range(30, 60)]]]
    rig.draw([text], [1])
    with plan.step(text) as step:
        rig.attend_all(step, tokens=tokens)
        assert step.selected(0, 0).tolist() == tokens[0][0]
    visible = numpy.array([[[token in of for token in range(101)] for of in tokens[0]]])
    for layer in range(LAYERS):
        rig.expect(layer, text, slice(0, 1), visible)
    without = rig.plan(select=tamis.Lists(budget=64))
    rig.draw([text], [1])
    with without.step(text) as step:
        step.write(0, rig.k_rows, rig.v_rows)
        for params in {"tokens": tokens}, {"pages": [[[0] * 5, [0]]]}, {}:
            with pytest.raises(tamis.Error):
                step.attend(0, rig.q_rows, rig.out_rows, **params)
        step.cancel()


# ---- Rotation -------------------------------------------------------------------------------------


def rope(x: numpy.ndarray, positions: Any, frequencies: numpy.ndarray, pairing: str,
         magnitude: float = 1) -> numpy.ndarray:
    """RoPE on [rows][heads][dim], in float64."""
    out, n = x.astype(numpy.float64).copy(), len(frequencies)
    first = slice(0, n) if pairing == "half" else slice(0, 2 * n, 2)
    second = slice(n, 2 * n) if pairing == "half" else slice(1, 2 * n, 2)
    angle = (numpy.asarray(positions)[:, None] * frequencies)[:, None]
    a, b = x[..., first].astype(float), x[..., second].astype(float)
    out[..., first] = magnitude * (a * numpy.cos(angle) - b * numpy.sin(angle))
    out[..., second] = magnitude * (a * numpy.sin(angle) + b * numpy.cos(angle))
    return out


def norm(x: numpy.ndarray, weight: numpy.ndarray, eps: float) -> numpy.ndarray:
    return x / numpy.sqrt((x.astype(float) ** 2).mean(axis=-1, keepdims=True) + eps) * weight


@pytest.mark.parametrize("pairing, n_rot, magnitude, norms", [
    ("half", DIM, 1, False), ("adjacent", DIM, 1, False), ("half", 32, 1.5, False), ("adjacent", 32, 1, True),
    ("half", DIM, 1, True)])
def test_rows_are_rotated_as_they_are_written(rig: Rig, pairing: str, n_rot: int, magnitude: float,
                                              norms: bool) -> None:
    frequencies = 10000.0 ** (-numpy.arange(0, n_rot, 2) / n_rot)
    if magnitude == 1:
        rotation = tamis.Rotation.of_base(rig.context, 10000, n_rot, pairing=pairing)
    else:
        rotation = tamis.Rotation(rig.context, frequencies, pairing=pairing, magnitude=magnitude)
    assert (rotation.n_rot, rotation.pairing) == (n_rot, pairing)
    weights = [1 + rig.random.random(DIM) for _ in range(2)]
    given: dict[str, Any] = {}
    if norms:
        given = {"q_norm": rig.context.array(weights[0], "f32"),
                 "k_norm": rig.context.array(weights[1], "f32"), "eps": 1e-5}
    plan, text = rig.plan(rotated=True), rig.cache.add()
    rig.draw([text], [20])
    positions = rig.context.array(numpy.arange(20, dtype=numpy.int32))
    q, k = rig.q[0], rig.step_k[0]
    if norms:
        q, k = norm(q, weights[0], 1e-5), norm(k, weights[1], 1e-5)
    q, k = (rope(x, range(20), frequencies, pairing, magnitude) for x in (q, k))
    rows = [rig.q_rows[:20], rig.k_rows[:20], rig.v_rows[:20]]
    outs = []
    for whole in False, True:
        for array, values in zip(rows, (rig.q[0], rig.step_k[0], rig.step_v[0])):
            array.write(values)
        with plan.step(text, 20, exact=True) as step:
            if whole:
                step.write_attend(0, *rows, rotation, positions, rig.out_rows, **given)
            else:
                step.write_rotated(0, *rows, rotation, positions, **given)
                numpy.testing.assert_allclose(rig.q_rows[:20].read(), q, atol=3e-6, rtol=1e-5)
                numpy.testing.assert_allclose(rig.k_rows[:20].read(), k, atol=3e-6, rtol=1e-5)
                step.attend(0, rows[0], rig.out_rows)
            outs.append(rig.out_rows[:20].read())
            step.cancel()
    assert numpy.array_equal(*outs)
    expected = attention(q, k, rig.step_v[0], causal(range(20), 20))[0]
    numpy.testing.assert_allclose(outs[0], expected, atol=3e-5)


def test_a_rotation_that_does_not_fit_is_refused(rig: Rig) -> None:
    with pytest.raises(tamis.ArgumentError, match="'thirds': known are half, adjacent"):
        tamis.Rotation.of_base(rig.context, 10000, DIM, pairing="thirds")
    with pytest.raises(tamis.ArgumentError, match="frequencies of shape"):
        tamis.Rotation(rig.context, [[1.0]])
    rotation = tamis.Rotation.of_base(rig.context, 10000, DIM)
    positions = rig.context.array(numpy.zeros(1, numpy.int32))
    plan = rig.plan()
    with plan.step(rig.cache.add()) as step:
        rotation.table.close()
        with pytest.raises(tamis.StateError, match="closed"):
            step.write_rotated(0, rig.q_rows, rig.k_rows, rig.v_rows, rotation, positions)
        step.cancel()


# ---- Exact steps of which few rows are computed ----------------------------------------------------


def test_loaded_rows_are_as_written_ones(rig: Rig) -> None:
    rotation = tamis.Rotation.of_base(rig.context, 10000, DIM)
    plan = rig.plan(rotated=True, load_dtypes=["f32", "f16"])
    lanes, positions = [], rig.context.array(numpy.arange(30, dtype=numpy.int32))
    for way in "written", "loaded", "in parts":
        text = rig.cache.add()
        rig.random = numpy.random.default_rng(5)
        rig.draw([text], [30])
        with plan.step(text, 30, exact=True) as step:
            for layer in range(LAYERS):
                q, k, v = rig.q_rows[:30], rig.k_rows[:30], rig.v_rows[:30]
                for array, values in (q, rig.q), (k, rig.step_k), (v, rig.step_v):
                    array.write(values[layer])
                if way == "written":
                    step.write_rotated(layer, q, k, v, rotation, positions)
                elif way == "loaded":
                    step.load(layer, 0, 30, k, v, rotation)
                else:
                    step.load(layer, 0, 8, k[:8], None, rotation)
                    step.load(layer, 8, 22, k[8:], None, rotation)
                    step.load(layer, 0, 30, None, rig.context.array(rig.step_v[layer], "f16"))
        lanes.append([text.read(layer, head) for layer in range(LAYERS) for head in range(KV_HEADS)])
    for each in lanes[1:]:
        assert all(numpy.array_equal(a, b) for one, two in zip(lanes[0], each) for a, b in zip(one, two))
    assert plan.counters.rows_loaded == LAYERS * (30 + 60)
    with plan.step(rig.cache.add(), 4, exact=True) as step:
        with pytest.raises(tamis.ArgumentError, match="bf16"):
            step.load(0, 0, 4, rig.context.empty((4, KV_HEADS, DIM), "bf16"), None, rotation)
        with pytest.raises(tamis.ArgumentError):
            step.load(0, 2, 3, rig.k_rows[:3], None, rotation)
        step.cancel()


def test_few_rows_go_on(rig: Rig) -> None:
    """A layer is written for all rows, and attended for those that are kept; how far rows are from others."""
    plan, text = rig.plan(load_dtypes=["f32"]), rig.cache.add()
    unturned = tamis.Rotation(rig.context, numpy.zeros(DIM // 2))
    rig.draw([text], [24])
    kept = [3, 10, 23]
    with plan.step(text, 24, exact=True) as step:
        for array, values in ((rig.k_rows, rig.step_k), (rig.v_rows, rig.step_v)):
            array[:24].write(values[0])
        step.write(0, rig.k_rows, rig.v_rows)
        step.keep_rows(kept)
        rig.q_rows[:3].write(rig.q[0, kept])
        step.attend(0, rig.q_rows, rig.out_rows)
        out = rig.out_rows[:3].read()
        numpy.testing.assert_allclose(
            out, attention(rig.q[0, kept], rig.step_k[0], rig.step_v[0], causal(kept, 24))[0], atol=2e-5)
        step.load(1, 0, 24, rig.k_rows[:24], rig.v_rows[:24], unturned)
        other, far = rig.rows(3, KV_HEADS), rig.context.empty(3)
        for values in False, True:
            step.deviations(1, rig.context.array(other), far, values=values)
            held = (rig.step_v if values else rig.step_k)[0, kept]
            expected = ((other - held).astype(float) ** 2).sum((1, 2))
            numpy.testing.assert_allclose(far.read(), expected, rtol=1e-5)
        for bad in [3, 4], [10, 3], [24], []:
            with pytest.raises(tamis.ArgumentError):
                step.keep_rows(bad)
        with pytest.raises(tamis.ArgumentError, match=r"rows are \[-1\]"):
            step.keep_rows([-1])
    assert len(text) == 24


def test_masses_of_rows(rig: Rig) -> None:
    plan = rig.plan(row_masses=True)
    text = rig.prompt(plan, 20)
    rig.draw([text], [12])
    with plan.step(text, 12, exact=True) as step:
        rig.attend_all(step)
        masses = step.masses(1, rig.q_rows, 5)
        with pytest.raises(tamis.ArgumentError, match="13"):
            step.masses(1, rig.q_rows, 13)
    k = rig.k[text.handle][1]
    # Of values that are 1 at one token and 0 elsewhere the output is that token's weight.
    expected = []
    for row in range(12):
        v = numpy.broadcast_to(numpy.arange(32)[:, None, None] == 20 + row, k.shape)
        expected.append(attention(rig.q[1, 7:], k, v, causal(range(27, 32), 32))[0][:, :, 0].sum())
    assert masses.shape == (12,) and masses.dtype == numpy.float64
    numpy.testing.assert_allclose(masses, expected, rtol=1e-4, atol=1e-6)


# ---- Batches --------------------------------------------------------------------------------------


def test_a_mixed_step_is_as_its_parts(rig: Rig) -> None:
    plan = rig.plan(select=tamis.Quest(budget=64))
    a = rig.prompt(plan, 150)
    outs = []
    for mixed in True, False:
        b = rig.cache.add()
        rig.random = numpy.random.default_rng(8)
        if mixed:
            out = rig.run(plan, [a, b], [1, 40], exact_from=1)
            outs += [out[:, :1], out[:, 1:]]
            mixed_q, mixed_k, mixed_v = rig.q, rig.step_k, rig.step_v
        else:
            for part, of, exact in (slice(0, 1), a, False), (slice(1, 41), b, True):
                rig.q, rig.step_k, rig.step_v = (x[:, part] for x in (mixed_q, mixed_k, mixed_v))
                with plan.step(of, rig.q.shape[1], exact=exact) as step:
                    rig.attend_all(step)
                outs.append(rig.out)
        a.truncate(150)
    assert numpy.array_equal(outs[0], outs[2]) and numpy.array_equal(outs[1], outs[3])


def test_a_tree_s_path_stays(rig: Rig) -> None:
    """Two drafts behind one token: each sees its own path; the one that is kept is as if run alone."""
    plan = rig.plan(trees=True)
    text = rig.prompt(plan, 33)
    parents = [tamis.NO_ROW, 0, 0, 2]
    before = rig.k[text.handle], rig.v[text.handle]
    rig.draw([text], [4])
    with plan.step(text, 4, parents=parents) as step:
        rig.attend_all(step)
    with pytest.raises(tamis.StateError):
        plan.step(text)
    plan.keep_path(text, 3)
    assert len(text) == 33 + 3
    for known, old, new in (rig.k, before[0], rig.step_k), (rig.v, before[1], rig.step_v):
        known[text.handle] = numpy.concatenate([old, new[:, [0, 2, 3]]], axis=1)
    for layer in range(LAYERS):
        for row, position in (0, 33), (2, 34), (3, 35):
            rig.expect(layer, text, slice(row, row + 1), causal([position], position + 1))
        assert numpy.array_equal(text.read(layer, 1)[0], rig.k[text.handle][layer, :, 1])
    with plan.step(text, 4, parents=parents) as step:
        rig.attend_all(step)
    plan.keep_path(text, tamis.NO_ROW)
    assert len(text) == 36
    with pytest.raises(tamis.ArgumentError, match="3 parents for 4 rows"):
        plan.step(text, 4, parents=parents[:3])


def test_pages_behind_a_sliding_window_come_back(rig: Rig) -> None:
    attention_of_20 = tamis.Attention(sliding_window=20)
    plan = rig.plan(attention=attention_of_20, give_back=True)
    text = rig.prompt(plan, 250)
    most = lib.tamis_layer_tokens(plan_attention(attention_of_20), PAGE, 250)
    assert text.stats.pages < LANES * 8 and text.stats.shortest > 0 and most >= 20
    with pytest.raises(tamis.StateError):
        text.truncate(100)
    rig.run(plan, text)
    rig.expect(0, text, slice(0, 1), causal([250], 251, window=20))


def plan_attention(of: tamis.Attention) -> Any:
    from tamis.c import ffi

    out = ffi.new("tamis_attention *")
    of._fill(out)
    return out


# ---- Steps that fail or are given up ---------------------------------------------------------------


def test_a_step_that_does_not_fit_changes_nothing(context: tamis.Context) -> None:
    rig = Rig(context, capacity_tokens=64)
    plan = rig.plan()
    a, b = rig.prompt(plan, 40), rig.prompt(plan, 10)
    before = state(rig, a, b)
    asked = plan.step_pages([a, b], [20, 20])
    assert (asked.needed, asked.free, asked.missing) == (2 * LANES, 0, 2 * LANES)
    with pytest.raises(tamis.FullError, match=f"{2 * LANES}.*0"):
        plan.step([a, b], [20, 20])
    assert state(rig, a, b) == before
    assert plan.step_pages(a, 8).missing == 0
    b.remove()
    fork = a.fork()
    assert plan.step_pages(fork).copied == LANES
    rig.run(plan, a, 8)
    with pytest.raises(tamis.FullError):
        plan.step(a, 20)
    del fork
    rig.run(plan, a, 16)
    rig.expect(1, a, slice(0, 16), causal(range(48, 64), 64))


@pytest.mark.parametrize("params, says", [
    ({"rows": 300}, "300"), ({"rows": [1, 2]}, "2 numbers of rows for 1 sequences"),
    ({"rows": 0}, "brings no rows"), ({"exact": True, "exact_from": 1}, "exact")])
def test_steps_that_cannot_be_are_refused(rig: Rig, params: Any, says: str) -> None:
    plan, text = rig.plan(), rig.cache.add()
    before = state(rig, text)
    with pytest.raises(tamis.ArgumentError, match=says):
        plan.step(text, **params)
    with pytest.raises(tamis.ArgumentError, match="twice|more than once"):
        plan.step([text, text])
    assert state(rig, text) == before
    rig.run(plan, text)


def test_an_exception_gives_a_step_up(rig: Rig) -> None:
    plan = rig.plan(select=tamis.Quest(budget=64))
    text = rig.prompt(plan, 100)
    before = state(rig, text)
    for layers in range(LAYERS + 1):
        rig.draw([text], [1])
        with pytest.raises(KeyError, match="of the caller"):
            with plan.step(text) as step:
                for layer in range(layers):
                    step.write(layer, rig.k_rows, rig.v_rows)
                    step.attend(layer, rig.q_rows, rig.out_rows)
                assert step.open and len(text) == 101
                raise KeyError("of the caller")
        assert not step.open and state(rig, text) == before
    with pytest.raises(tamis.StateError, match="layer 0"):  # a layer that was forgotten
        with plan.step(text):
            pass
    assert state(rig, text) == before
    rig.k[text.handle], rig.v[text.handle] = (x[text.handle][:, :100] for x in (rig.k, rig.v))
    rig.run(rig.plan(), text)
    rig.expect(1, text, slice(0, 1), causal([100], 101))


def test_a_step_that_has_ended_does_nothing_more(rig: Rig) -> None:
    """Not even where the plan has another open step."""
    plan, text = rig.plan(), rig.cache.add()
    old = plan.step(text)
    old.cancel()
    rig.draw([text], [1])
    with plan.step(text) as step:
        for call in (lambda: old.write(0, rig.k_rows, rig.v_rows),
                     lambda: old.attend(0, rig.q_rows, rig.out_rows), old.end, old.cancel,
                     lambda: old.selected(0, 0), lambda: old.masses(0, rig.q_rows, 1),
                     lambda: old.keep_rows([0]), lambda: old.load(0, 0, 1, rig.k_rows, None)):
            with pytest.raises(tamis.StateError, match="this step has ended"):
                call()
        assert step.open and not old.open
        rig.attend_all(step)
    rig.expect(0, text, slice(0, 1), causal([0], 1))


def test_a_step_of_a_closed_plan(rig: Rig) -> None:
    text = rig.cache.add()
    plan = rig.plan()
    step = plan.step(text)
    assert len(text) == 1
    plan.close()
    assert not step.open and len(text) == 0
    for call in (lambda: step.write(0, rig.k_rows, rig.v_rows), step.end, step.cancel,
                 lambda: step.attend(0, rig.q_rows, rig.out_rows, lse=rig.lse_rows)):
        with pytest.raises(tamis.StateError, match="the plan of this step has been closed"):
            call()
    with pytest.raises(tamis.StateError, match="this Plan has been closed"):
        plan.step(text)
    rig.run(rig.plan(), text)


def test_a_forgotten_plan_gives_its_step_up(rig: Rig) -> None:
    text = rig.cache.add()
    rig.plan().step(text)
    gc.collect()  # a plan and its open step hold each other
    assert len(text) == 0
    rig.run(rig.plan(), text)


@pytest.mark.parametrize("rows, says", [
    (lambda rig: rig.context.empty((1, 2, 64), "i32"), "rows of i32"),
    (lambda rig: None, "NoneType is no array"),
    (lambda rig: numpy.zeros((1, 2, 64), "f4"), "ndarray is no array of tamis: see Context.wrap"),
    (lambda rig: rig.context.empty((1, 8, 64), "bf16"), "bf16"),
    (lambda rig: rig.context.empty((1, 64)), "64"),
    (lambda rig: tamis.Context("reference").empty((1, 2, 64)), "context")])
def test_rows_that_do_not_fit_are_refused(rig: Rig, rows: Any, says: str) -> None:
    plan, text = rig.plan(), rig.cache.add()
    of = rows(rig)
    with plan.step(text) as step:
        for call in (lambda: step.write(0, of, rig.v_rows), lambda: step.write(0, rig.k_rows, of)):
            with pytest.raises(tamis.ArgumentError, match=says):
                call()
        step.write(0, rig.k_rows, rig.v_rows)
        for call in (lambda: step.attend(0, of, rig.out_rows), lambda: step.attend(0, rig.q_rows, of),
                     lambda: step.attend(0, of, rig.out_rows, lse=rig.lse_rows)):
            with pytest.raises(tamis.ArgumentError, match=says):
                call()
        for layer in -1, 2, 1 << 40, "0":
            with pytest.raises(tamis.ArgumentError, match=str(layer)):
                step.write(layer, rig.k_rows, rig.v_rows)  # type: ignore[arg-type]
        step.cancel()


def test_rows_of_a_closed_array_are_refused(rig: Rig) -> None:
    plan, text = rig.plan(), rig.cache.add()
    whole = rig.context.empty((4, HEADS, DIM))
    part = whole[1:2]
    with plan.step(text) as step:
        whole.close()
        for call in (lambda: step.write(0, part, rig.v_rows), lambda: step.attend(0, rig.q_rows, whole),
                     lambda: step.attend(0, part, rig.out_rows, lse=rig.lse_rows)):
            with pytest.raises(tamis.StateError, match="closed"):
                call()
        step.cancel()


def test_what_a_plan_was_made_from_may_end_first(rig: Rig) -> None:
    for what in "context", "cache":
        mine = Rig(tamis.Context(rig.context.device.id))
        plan = mine.plan()
        text = mine.prompt(plan, 20)
        with pytest.raises(tamis.StateError, match=f"the {what} from which the"):
            with plan.step(text) as step:
                getattr(mine, what).close()
                step.write(0, mine.k_rows, mine.v_rows)
        plan.close()
        del text, step


# ---- Evictions ------------------------------------------------------------------------------------

BUDGET = 64


def evictions() -> list[tamis.Eviction]:
    return [kind(**{name: value for name, value in {"budget": BUDGET, "window": 16}.items()
                    if name in kind.__dataclass_fields__})  # type: ignore[attr-defined]
            for name, kind in policy.EVICTIONS.items() if name != "caller"]


def evicting(context: tamis.Context, evict: tamis.Eviction, **params: Any) -> tuple[Rig, tamis.Plan]:
    """A rig with a plan that has all that the eviction needs."""
    rig = Rig(context, evict=evict)
    plan = rig.plan(**params)
    if isinstance(evict, (tamis.CriticalKV, tamis.CriticalAdaKV, tamis.DefensiveKV)):
        for layer in range(LAYERS):
            plan.bind_output(layer, context.array(rig.random.standard_normal((96, HEADS * DIM)), "f16"))
    return rig, plan


@pytest.mark.parametrize("evict", evictions(), ids=lambda evict: evict.kind)
def test_evictions_keep_their_budgets(context: tamis.Context, evict: Any) -> None:
    rig, plan = evicting(context, evict, select=tamis.Quest(budget=BUDGET))
    text, bystander = rig.prompt(plan, 150), rig.prompt(plan, 30)
    before = state(rig, bystander)[1]
    done = plan.evict(text)
    lengths = text.lane_lengths()
    assert done.tokens_before == 150 * LANES and done.tokens_kept == lengths.sum() == text.stats.slots
    assert done.tokens_kept <= BUDGET * LANES and done.pages_returned == done.pages_net > 0
    if evict.kind not in ("pyramidkv", "adakv", "critical-adakv", "andpro"):  # whose lanes share budgets
        assert (lengths <= BUDGET).all()
    assert (len(text), text.evicted_at) == (150, 150) and state(rig, bystander)[1] == before
    for layer in range(LAYERS):
        for head in range(KV_HEADS):
            kept = text.positions(layer, head)
            assert (numpy.diff(kept) > 0).all() and kept[-1] < 150
            if hasattr(evict, "window"):
                assert kept[-16:].tolist() == list(range(134, 150))
            k, v = text.read(layer, head)
            assert numpy.array_equal(k, rig.k[text.handle][layer, kept, head])
            assert numpy.array_equal(v, rig.v[text.handle][layer, kept, head])
    with pytest.raises(tamis.StateError):
        text.truncate(149)
    nothing = plan.evict(bystander)
    assert nothing.tokens_before == nothing.tokens_kept == 30 * LANES and bystander.evicted_at == 0
    for _ in range(20):
        rig.run(plan, text)
    grown = 0 if evict.every == 1 else 20
    assert numpy.array_equal(text.lane_lengths(), lengths + grown) and len(text) == 170
    assert numpy.isfinite(rig.out).all()
    assert plan.counters.evictions == 1 and (plan.counters.tokens_replaced > 0) == (evict.every == 1)


def test_knorm_and_streaming_keep_what_they_say(context: tamis.Context) -> None:
    rig, plan = evicting(context, tamis.Knorm(budget=BUDGET, sinks=2, recent=6))
    text = rig.prompt(plan, 150)
    plan.evict(text)
    for layer in range(LAYERS):
        for head in range(KV_HEADS):
            norms = (rig.k[text.handle][layer, :, head].astype(float) ** 2).sum(axis=1)
            norms[[0, 1, *range(144, 150)]] = -1
            kept = text.positions(layer, head)
            assert sorted(norms[kept]) == sorted(norms)[:BUDGET]
    rig, plan = evicting(context, tamis.Streaming(budget=BUDGET, sinks=5))
    text = rig.prompt(plan, 150)
    plan.evict(text)
    assert text.positions(0, 1).tolist() == [*range(5), *range(150 - BUDGET + 5, 150)]


def test_the_caller_says_what_stays(context: tamis.Context) -> None:
    rig, plan = evicting(context, tamis.Kept(budget=BUDGET, sinks=3, window=8))
    text, fork = rig.prompt(plan, 100), None
    fork = text.fork()
    scores = rig.random.random((LAYERS, KV_HEADS, 100))
    done = plan.evict_by_scores(text, scores)
    scores = scores.astype(numpy.float32)
    scores[..., :3] = scores[..., 92:] = 2
    for layer in range(LAYERS):
        for head in range(KV_HEADS):
            best = numpy.sort(numpy.argsort(-scores[layer, head], kind="stable")[:BUDGET])
            assert numpy.array_equal(text.positions(layer, head), best)
    assert done.tokens_kept == BUDGET * LANES and done.pages_returned == 0 and done.pages_net < 0  # copies
    slots = [[[0, 5, 9], [*range(50)]], [[99], [1, 2]]]
    plan.evict_to(fork, slots)
    assert [[fork.positions(i, j).tolist() for j in range(2)] for i in range(2)] == slots
    before = state(rig, fork, text)
    for bad, says in (([[[0, 5, 5], [0]], [[0], [0]]], "5"), ([[[], [0]], [[0], [0]]], "0"),
                      ([[[0], [0]], [[0], [2]]], "2"), ([[[0], [0]]], "2 layers of 2 KV heads")):
        with pytest.raises(tamis.ArgumentError, match=says):
            plan.evict_to(fork, bad)
    for scores in numpy.zeros((LAYERS, KV_HEADS, 40)), numpy.zeros((LAYERS, 1, 100)):
        with pytest.raises(tamis.ArgumentError):
            plan.evict_by_scores(fork, scores)
    with pytest.raises(tamis.ArgumentError):
        plan.evict(text)
    assert state(rig, fork, text) == before


def test_budgets_of_heads(context: tamis.Context) -> None:
    rig, plan = evicting(context, tamis.SnapKV(budget=BUDGET, window=16))
    budgets = numpy.array([[20, 90], [48, 33]])
    plan.bind_budgets(budgets)
    text = rig.prompt(plan, 150)
    plan.evict(text)
    assert numpy.array_equal(text.lane_lengths(), budgets)
    plan.bind_budgets(None)
    text = rig.prompt(plan, 150)
    plan.evict(text)
    assert (text.lane_lengths() == BUDGET).all()
    with pytest.raises(tamis.ArgumentError, match=r"\(2,\): it must be"):
        plan.bind_budgets(numpy.array([20, 90]))


def test_an_eviction_needs_what_it_binds(context: tamis.Context) -> None:
    rig = Rig(context, evict=tamis.CriticalKV(budget=BUDGET, window=16))
    plan = rig.plan()
    text = rig.prompt(plan, 100)
    with pytest.raises(tamis.StateError, match="tamis_plan_bind_output"):
        plan.evict(text)
    with pytest.raises(tamis.ArgumentError):
        plan.bind_output(0, context.empty((8, 5)))
    for layer in range(LAYERS):
        plan.bind_output(layer, context.array(rig.random.standard_normal((8, HEADS * DIM)), "f32"))
    plan.evict(text)
    assert (text.lane_lengths() == BUDGET).all()


def test_what_is_bound_lives_as_long_as_the_plan(context: tamis.Context) -> None:
    """Memory of the caller's, too, which is used in place."""
    if context.device.backend == "cuda":
        pytest.skip("the host's memory is wrapped")
    rig = Rig(context, evict=tamis.CriticalKV(budget=BUDGET, window=16))
    plan = rig.plan()
    memories = []
    for layer in range(LAYERS):
        weights = tamis.empty((8, HEADS * DIM))
        weights[...] = rig.random.standard_normal(weights.shape)
        memories.append(weakref.ref(weights.base))
        plan.bind_output(layer, context.wrap(weights))
    del weights
    assert all(memory() is not None for memory in memories)
    plan.evict(rig.prompt(plan, 100))
    del plan
    assert not any(memory() is not None for memory in memories)


def test_reindexed_streaming_rotates(context: tamis.Context) -> None:
    rig = Rig(context, evict=tamis.Streaming(budget=BUDGET, reindex=True))
    plan = rig.plan()
    text = rig.cache.add()
    with pytest.raises(tamis.StateError, match="bind_rotation"):
        rig.run(plan, text, 100, exact=True)
        plan.evict(text)
        rig.run(plan, text)
    plan.bind_rotation(tamis.Rotation.of_base(context, 10000, DIM))
    gc.collect()  # the rotation's table is read until the plan is closed
    text = rig.prompt(plan, 100)
    plan.evict(text)
    rig.run(plan, text)
    assert numpy.isfinite(rig.out).all() and (text.lane_lengths() == BUDGET).all()


# ---- Memory and times -----------------------------------------------------------------------------


def test_memory_is_measured_before_it_is_taken(rig: Rig) -> None:
    params: dict[str, Any] = {"max_context": 512, "max_rows": 64, "select": "quest"}
    measured = tamis.Plan.measure(rig.cache, **params)
    plan = rig.cache.plan(**params)
    assert plan.memory == measured and measured.device_bytes >= measured.largest_bytes > 0
    assert (plan.max_rows, plan.max_sequences, plan.max_context) == (64, 1, 512)
    assert tamis.Plan.measure(rig.cache, **{**params, "max_rows": 256}).device_bytes > measured.device_bytes
    with pytest.raises(tamis.ArgumentError, match="no 'fast'"):
        rig.cache.plan(max_context=64, fast=True)
    with pytest.raises(tamis.ArgumentError, match="0"):
        rig.cache.plan(max_context=0)


def test_times_are_collected_on_request(rig: Rig) -> None:
    for timing in False, True:
        plan = rig.plan(select=tamis.Quest(budget=64), timing=timing)
        rig.run(plan, rig.prompt(plan, 200))
        times = plan.times
        assert (times.write_us > 0) == (times.attend_us + times.fused_us > 0) == timing
    assert "Quest(budget=64" in repr(plan) and "closed" not in repr(plan)
