# SPDX-License-Identifier: Apache-2.0
"""Models and runners: what they compute, whom they call, and when they are freed."""
from __future__ import annotations

import gc
import os
import pathlib
import weakref
from typing import Any, Iterator

import numpy
import pytest

import tamis
from tamis import Quest, Run, SnapKV

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = pathlib.Path(os.environ.get("TAMIS_TEST_DATA") or ROOT / "tests" / "data")
TEXT = (DATA / "text.txt").read_bytes()


@pytest.fixture(scope="module")
def tiny() -> Iterator[tamis.Model]:
    """One KV head, two layers, 97 tokens, on the reference."""
    with tamis.Context("reference") as context, tamis.Model(context, DATA / "tiny.gguf") as model:
        yield model


@pytest.fixture(scope="module")
def needle(tiny: tamis.Model) -> tamis.Model:
    """Two KV heads, four layers, each token a byte."""
    return tamis.Model(tiny.context, DATA / "needle.gguf")


def greedy(runner: tamis.Runner, sequence: tamis.Sequence, tokens: Any, n: int) -> list[int]:
    out = [runner.prefill(sequence, tokens)]
    while len(out) < n:
        out.append(int(runner.decode(sequence, out[-1])[0]))
    return out


# ---- Models ---------------------------------------------------------------------------------------


def test_what_a_model_says(tiny: tamis.Model) -> None:
    info = tiny.info
    assert (info.architecture, info.name, info.n_layers, info.n_heads, info.n_kv_heads) == \
        ("qwen2", "tiny", 2, 3, 1)
    assert (info.head_dim, info.dim, info.ff_dim, info.n_vocab, info.context) == (64, 32, 24, 97, 256)
    assert info.tensors_of_type == {"f32": 8, "f16": 10, "bf16": 9} and info.type == "bf16"
    assert info.weight_bytes == 99648 and info.sliding_window == 0
    assert len(tiny.fingerprint) == 16 and tiny.fingerprint != bytes(16)
    known = {one.name: one for one in tamis.architectures()}
    assert known["qwen2"].refused is None and any(one.refused for one in known.values())


def test_loading_tells_how_far_it_is(tiny: tamis.Model) -> None:
    told: list[tuple[int, int]] = []
    again = tamis.Model(tiny.context, DATA / "tiny.gguf", progress=lambda *done: told.append(done))
    assert again.fingerprint == tiny.fingerprint
    assert told[-1] == (99136, 99136) and told == sorted(told) and len(told) == 27

    def stop(done: int, total: int) -> None:
        raise KeyError(done)

    with pytest.raises(KeyError, match="6208"):
        tamis.Model(tiny.context, DATA / "tiny.gguf", progress=stop)
    with pytest.raises(tamis.FileError, match="none.gguf"):
        tamis.Model(tiny.context, DATA / "none.gguf")
    with pytest.raises(tamis.FormatError):
        tamis.Model(tiny.context, DATA / "text.txt")
    loaded = tamis.load(DATA / "tiny.gguf", "reference")
    assert loaded.context.device.backend == "reference" and loaded.vocab.n_tokens == 97


def test_shapes_are_checked(tiny: tamis.Model, needle: tamis.Model) -> None:
    cache = tiny.cache(256)
    assert (cache.n_layers, cache.n_heads, cache.n_kv_heads, cache.dtype) == (2, 3, 1, "f16")
    with pytest.raises(tamis.ArgumentError, match="the model has 4, 4, 2, 64"):
        needle.runner(cache)
    with pytest.raises(tamis.ArgumentError, match="max_context is 257"):
        tiny.runner(cache, max_context=257)
    with pytest.raises(tamis.UnsupportedError, match="caller"):
        tiny.runner(cache, select="caller")
    with pytest.raises(tamis.ArgumentError, match="plane"):
        tiny.runner(cache, evict="snapkv")


def test_layers_and_their_room() -> None:
    with tamis.Context("reference") as context:
        model = tamis.Model(context, DATA / "models" / "gemma3.gguf")
        layers = model.layers(model.info.context)
        window = model.info.sliding_window
        local = [layer.attention.sliding_window == window for layer in layers]
        assert 0 < sum(local) == model.info.n_local_layers < len(layers)
        assert [layer.full for layer in layers] == local
        room = model.layer_tokens(model.info.context, max_rows=4, page_size=8)
        assert room is not None and [bool(n) for n in room] == local and max(room) < model.info.context
        assert model.layer_tokens(model.info.context, max_rows=4, page_size=8, sequences=3) == \
            [3 * n for n in room]
        tokens = [5 + i % 40 for i in range(58)]
        found = []
        for params in ({}, {"layer_tokens": room}):
            cache = model.cache(model.info.context, page_size=8, **params)
            runner = model.runner(cache, max_rows=4, give_back=bool(params))
            sequence = cache.add()
            found.append((greedy(runner, sequence, tokens, 5), sequence.stats.pages))
        assert found[0][0] == found[1][0] and found[0][1] > found[1][1]


# ---- Steps ----------------------------------------------------------------------------------------


def test_a_prompt_in_chunks_is_a_prompt_at_once(tiny: tamis.Model) -> None:
    tokens = tiny.vocab.encode(TEXT[:150])
    told: list[tuple[int, int]] = []
    logits = []
    for rows in (512, 64):
        cache = tiny.cache(256, dtype="f32")
        runner, sequence = tiny.runner(cache, max_rows=rows), cache.add()
        token = runner.prefill(sequence, tokens, watch=lambda *done: told.append(done))
        logits.append(runner.logits())
        assert logits[-1].shape == (97,) and logits[-1].argmax() == token and len(sequence) == 150
    assert told == [(150, 150), (64, 150), (128, 150), (150, 150)]
    assert numpy.abs(logits[0] - logits[1]).max() < 1e-4
    # The last token as a decode row.
    cache = tiny.cache(256, dtype="f32")
    runner, sequence = tiny.runner(cache), cache.add()
    runner.prefill(sequence, tokens[:-1])
    assert runner.decode(sequence, tokens[-1:]).tolist() == [token]
    assert numpy.abs(runner.logits() - logits[0]).max() < 1e-4
    assert runner.plan.counters.rows_full == tiny.info.n_layers


def test_sequences_do_not_mind_each_other(tiny: tamis.Model) -> None:
    texts = [tiny.vocab.encode(TEXT[a:b]) for a, b in ((0, 120), (300, 340), (50, 150))]
    cache = tiny.cache(1024)
    runner = tiny.runner(cache, select=Quest(budget=64), max_sequences=3)
    runner.build(3, 3)
    alone = []
    for text in texts:
        alone.append(greedy(runner, cache.add(), text, 6))
    sequences = [cache.add() for _ in texts]
    together = [[runner.prefill(sequence, text)] for sequence, text in zip(sequences, texts)]
    for _ in range(5):
        for out, token in zip(together, runner.decode(sequences, [out[-1] for out in together])):
            out.append(int(token))
    assert together == alone
    assert [len(sequence) for sequence in sequences] == [125, 45, 105]


def test_a_step_of_several_runs(tiny: tamis.Model) -> None:
    text = tiny.vocab.encode(TEXT[:120])
    cache = tiny.cache(1024)
    runner = tiny.runner(cache, select=Quest(budget=64), max_sequences=2, max_selected_rows=8)
    wanted = greedy(runner, cache.add(), text, 6)
    one, other = cache.add(), cache.add()
    first = runner.prefill(one, text)
    draft = [first, *wanted[1:3], 0]
    out = runner.step([Run(one, draft, outputs=4), Run(other, text, outputs=1, exact=True, evict=True)])
    assert out.tolist()[:3] == wanted[1:4] and out[4] == first and len(out) == 5
    assert runner.logits(4).argmax() == first
    one.truncate(len(text) + 3)  # the last token of the draft was wrong
    assert int(runner.decode(one, wanted[3])[0]) == wanted[4]
    with pytest.raises(tamis.ArgumentError, match="not exact and comes behind"):
        runner.step([Run(other, [1], exact=True), Run(one, [1])])
    with pytest.raises(tamis.ArgumentError, match="3 parents for 2 tokens"):
        runner.step([Run(one, [1, 2], parents=[0, 0, 0])])


def test_a_tree_of_drafts(tiny: tamis.Model) -> None:
    text = tiny.vocab.encode(TEXT[:40])
    cache = tiny.cache(1024)
    runner = tiny.runner(cache, max_sequences=2, max_selected_rows=8, trees=True)
    wanted = greedy(runner, cache.add(), text, 5)
    sequence = cache.add()
    first = runner.prefill(sequence, text)
    out = runner.step([Run(sequence, [first, 0, wanted[1]], outputs=3, parents=[tamis.NO_ROW, 0, 0])])
    assert out[0] == wanted[1] and out[2] == wanted[2]
    runner.plan.keep_path(sequence, 2)
    assert len(sequence) == len(text) + 2 and int(runner.decode(sequence, wanted[2])[0]) == wanted[3]


def test_an_eviction_follows_a_prompt(tiny: tamis.Model) -> None:
    cache = tiny.cache(256, evict=SnapKV(budget=48, window=8))
    runner = tiny.runner(cache, evict=SnapKV(budget=48, window=8))
    sequence = cache.add()
    runner.prefill(sequence, tiny.vocab.encode(TEXT[:150]))
    assert sequence.lane_lengths().max() == 48 and len(sequence) == 150 == sequence.evicted_at
    assert runner.plan.counters.tokens_evicted == 2 * 102


def test_what_is_refused_changes_nothing(tiny: tamis.Model) -> None:
    cache = tiny.cache(64)
    runner, sequence = tiny.runner(cache, max_rows=16), cache.add()
    runner.prefill(sequence, [1, 2, 3])
    for tokens, reason in (([97], "token 97"), ([-1], "token -1"), ([], "no tokens"),
                           ([0] * 254, "254 tokens")):
        with pytest.raises(tamis.ArgumentError, match=reason):
            runner.prefill(sequence, tokens)
    with pytest.raises(tamis.ArgumentError, match="2 tokens for 1 sequences"):
        runner.decode([sequence], [1, 2])
    assert len(sequence) == 3
    with pytest.raises(tamis.StateError, match="no logits"):
        runner.logits()
    with pytest.raises(tamis.FullError, match="pages"):
        runner.prefill(sequence, [0] * 100)
    assert len(sequence) == 3 + 48  # whole chunks stay


def test_what_watch_raises_ends_the_prompt(tiny: tamis.Model) -> None:
    cache = tiny.cache(256)
    runner, sequence = tiny.runner(cache, max_rows=16), cache.add()

    def stop(done: int, count: int) -> None:
        if done == 32:
            raise RuntimeError(f"at {done} of {count}")

    with pytest.raises(RuntimeError, match="at 32 of 100"):
        runner.prefill(sequence, [1] * 100, watch=stop)
    assert len(sequence) == 32
    runner.prefill(sequence, [1] * 32)  # nobody watches any more
    assert len(sequence) == 64


# ---- The observer ---------------------------------------------------------------------------------


def test_an_observer_sees_what_is_attended(tiny: tamis.Model) -> None:
    cache = tiny.cache(256, dtype="f32")
    runner, sequence = tiny.runner(cache, max_rows=16), cache.add()
    runner.prefill(sequence, tiny.vocab.encode(TEXT[:40]))
    seen: list[tamis.AttentionRows] = []
    runner.observe(seen.append)
    runner.decode(sequence, 5)
    assert [rows.layer for rows in seen] == [0, 1]
    for rows in seen:
        assert rows.q.shape == rows.out.shape == (1, 3, 64) and rows.k.shape == rows.v.shape == (1, 1, 64)
        k, v = sequence.read(rows.layer, 0)
        assert numpy.array_equal(rows.k[0, 0], k[-1]) and numpy.array_equal(rows.v[0, 0], v[-1])
        weights = numpy.exp(rows.q[0].astype(float) @ k.T / 8)
        out = weights @ v / weights.sum(-1, keepdims=True)
        assert numpy.abs(out - rows.out[0]).max() < 1e-5
    runner.prefill(sequence, [1, 2, 3])
    assert seen[-1].q.shape == (3, 3, 64)
    runner.observe(None)
    runner.decode(sequence, 5)
    assert len(seen) == 4


def test_what_an_observer_raises_travels(tiny: tamis.Model) -> None:
    cache = tiny.cache(256)
    runner, sequence = tiny.runner(cache), cache.add()
    token = runner.prefill(sequence, [1, 2, 3])

    def fail(rows: tamis.AttentionRows) -> None:
        if rows.layer == 1:
            raise LookupError("layer 1")

    runner.observe(fail)
    with pytest.raises(LookupError, match="layer 1"):
        runner.decode(sequence, token)
    assert len(sequence) == 3
    runner.observe(None)
    runner.decode(sequence, token)
    assert len(sequence) == 4


def test_reads_are_those_of_a_plan_over_the_same_rows(needle: tamis.Model) -> None:
    cache = needle.cache(512)
    select = Quest(budget=64)
    runner = needle.runner(cache, select=select, max_context=256, max_sequences=2, reads=True)
    one, other = cache.add(), cache.add()
    with pytest.raises(tamis.StateError, match="no step"):
        runner.read()
    runner.prefill(one, needle.vocab.encode(TEXT[:170]))
    runner.prefill(other, needle.vocab.encode(TEXT[:40]))
    forks = [one.fork(), other.fork()]
    seen: list[tamis.AttentionRows] = []
    runner.observe(seen.append)
    runner.decode([one, other], [97, 98])
    plan = cache.plan(select=select, max_context=256, max_sequences=2, reads=True)
    context = needle.context
    with plan.step(forks) as step:
        for rows in seen:
            step.write(rows.layer, context.array(rows.k), context.array(rows.v))
            step.attend(rows.layer, context.array(rows.q), context.empty(rows.out.shape))
    read = runner.plan.read()
    assert numpy.array_equal(read, plan.read()) and numpy.array_equal(runner.read(1), read[1])
    assert read.shape == (2, 4, 2, 11) and (read[0].sum(-1) == 4).all() and (read[1].sum(-1) == 3).all()
    assert len({lane.tobytes() for lane in read[0].reshape(8, -1)}) > 1  # heads read different pages
    # A prompt leaves them as they are; a step that fails leaves none.
    runner.prefill(other, needle.vocab.encode(TEXT[40:80]))
    assert numpy.array_equal(runner.plan.read(), read)
    out = runner.step([Run(one, [99], outputs=1), Run(other, [1, 2, 3], exact=True)])
    assert runner.plan.read().shape[0] == 1 and out.shape == (1,)
    runner.observe(lambda rows: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        runner.decode(one, 97)
    with pytest.raises(tamis.StateError, match="no step"):
        runner.read()
    with pytest.raises(tamis.StateError, match="reads=True"):
        needle.runner(cache, max_context=256).read()


# ---- Ends -----------------------------------------------------------------------------------------


def test_what_is_forgotten_is_freed_at_once() -> None:
    context = tamis.Context("reference")
    model = tamis.Model(context, DATA / "tiny.gguf")
    cache = model.cache(256)
    runner = model.runner(cache, reads=True)
    sequence = cache.add()
    runner.observe(lambda rows: None)
    runner.prefill(sequence, [1, 2, 3], watch=lambda done, count: None)
    runner.decode(sequence, 1)
    vocab, plan = model.vocab, runner.plan
    assert model.vocab is vocab and runner.plan is plan
    gone = [weakref.ref(one) for one in (model, runner, vocab, plan)]
    gc.disable()
    try:
        del sequence
        assert cache.stats.sequences == 0 and cache.stats.pages_held == 0
        del runner
        assert plan.counters.steps == 2  # a plan keeps its runner
        del plan
        assert [one() is None for one in gone] == [False, True, False, True]
        del model
        assert vocab.encode("a").size == 1  # a vocabulary keeps its model
        del vocab
        assert all(one() is None for one in gone)
    finally:
        gc.enable()


def test_an_observer_that_holds_its_runner_is_no_leak() -> None:
    model = tamis.load(DATA / "tiny.gguf", "reference")
    cache = model.cache(256)
    runner, gone = model.runner(cache), []
    runner.observe(lambda rows, of=runner: None)
    gone.append(weakref.ref(runner))
    del runner
    gc.collect()
    assert gone[0]() is None


def test_what_is_closed_says_so() -> None:
    context = tamis.Context("reference")
    model = tamis.Model(context, DATA / "tiny.gguf")
    cache = model.cache(256)
    runner = model.runner(cache)
    vocab, plan, sequence = model.vocab, runner.plan, cache.add()
    for part in (vocab, plan):
        with pytest.raises(tamis.StateError, match="is closed with what it belongs to"):
            part.close()
    model.close()
    for call in (lambda: vocab.encode("a"), lambda: model.fingerprint):
        with pytest.raises(tamis.StateError, match="closed"):
            call()
    with pytest.raises(tamis.StateError, match="the model has been destroyed"):
        runner.prefill(sequence, [1])
    runner.close()
    for call in (lambda: plan.counters, lambda: runner.logits(), lambda: runner.prefill(sequence, [1])):
        with pytest.raises(tamis.StateError, match="closed"):
            call()
    assert plan.closed and runner.closed and model.closed and vocab.closed
