# SPDX-License-Identifier: Apache-2.0
"""The scheduler: requests get the tokens that they get alone, whatever runs beside them."""
from __future__ import annotations

import gc
import os
import pathlib
from typing import Any, Iterator

import numpy
import pytest

import tamis
from tamis import Event, Quest, Sampling, Scheduler

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = pathlib.Path(os.environ.get("TAMIS_TEST_DATA") or ROOT / "tests" / "data")
TEXT = (DATA / "text.txt").read_bytes()
PROMPTS = [TEXT[:150], TEXT[200:260], TEXT[400:490], TEXT[600:610]]


@pytest.fixture(scope="module")
def tiny() -> Iterator[tamis.Model]:
    with tamis.Context("reference") as context, tamis.Model(context, DATA / "tiny.gguf") as model:
        yield model


def runner_of(model: tamis.Model, capacity: int = 1024, **params: Any) -> tamis.Runner:
    params = {"select": Quest(budget=64), "max_sequences": 4, "max_rows": 40, **params}
    return model.runner(model.cache(capacity), **params)


def alone(model: tamis.Model, prompt: bytes, n: int, **params: Any) -> list[int]:
    runner = runner_of(model, **params)
    sequence = runner.cache.add()
    out = [runner.prefill(sequence, model.vocab.encode(prompt))]
    while len(out) < n:
        out.append(int(runner.decode(sequence, out[-1])[0]))
    return out


def tokens_of(events: list[Event], id: int) -> list[int]:
    return [event.value for event in events if event.id == id and event.kind == "token"]


def test_requests_get_the_tokens_that_they_get_alone(tiny: tamis.Model) -> None:
    runner = runner_of(tiny)
    with Scheduler(runner) as scheduler:
        ids = [scheduler.add(tiny.vocab.encode(prompt), 8) for prompt in PROMPTS]
        assert ids == sorted(ids) and ids[0] > 0 and scheduler.stats.waiting == 4
        exact = scheduler.add(tiny.vocab.encode(PROMPTS[0]), 8, exact=True)
        events = list(scheduler.run())
        for id, prompt in zip(ids, PROMPTS):
            assert tokens_of(events, id) == alone(tiny, prompt, 8)
            kinds = [event.kind for event in events if event.id == id]
            assert kinds == ["began"] + ["token"] * 8 + ["ended"]
        assert tokens_of(events, exact) == alone(tiny, PROMPTS[0], 8, select=None)
        assert all(event.error is None for event in events)
        assert scheduler.stats.mixed_steps > 0 and scheduler.stats.running == 0
        assert runner.cache.stats.sequences == 0
        assert scheduler.step() == []


def test_stops_and_cancelling(tiny: tamis.Model) -> None:
    wanted = alone(tiny, PROMPTS[0], 8)
    stop = wanted[4]
    scheduler = Scheduler(runner_of(tiny))
    id = scheduler.add(tiny.vocab.encode(PROMPTS[0]), 8, stops=[stop])
    other = scheduler.add(tiny.vocab.encode(PROMPTS[1]), 100)
    events: list[Event] = []
    while not tokens_of(events, other):
        events += scheduler.step()
    scheduler.cancel(other)
    events = events + list(scheduler.run())
    assert tokens_of(events, id) == wanted[:wanted.index(stop) + 1]
    assert not any(event.kind == "ended" for event in events if event.id == other)
    assert scheduler.runner.cache.stats.pages_held == 0
    for gone in (id, other, 999):
        with pytest.raises(tamis.ArgumentError, match=str(gone)):
            scheduler.cancel(gone)


def test_choosing_tokens(tiny: tamis.Model) -> None:
    prompt = tiny.vocab.encode(PROMPTS[1])
    scheduler = Scheduler(runner_of(tiny))
    seen: list[numpy.ndarray] = []

    def least(logits: numpy.ndarray) -> int:
        seen.append(logits)
        return int(logits.argmin())

    by_hand = scheduler.add(prompt, 4, choose=least)
    drawn = [scheduler.add(prompt, 12, choose=Sampling(temperature=2, seed=seed)) for seed in (1, 1, 2)]
    greedy = scheduler.add(prompt, 4, choose=lambda logits: int(logits.argmax()))
    events = list(scheduler.run())
    assert len(seen) == 4 and seen[0].shape == (97,) and seen[0].dtype == numpy.float32
    assert tokens_of(events, by_hand) == [int(logits.argmin()) for logits in seen]
    assert tokens_of(events, greedy) == alone(tiny, PROMPTS[1], 4)
    texts = [tokens_of(events, id) for id in drawn]
    assert texts[0] == texts[1] != texts[2] and len(texts[0]) == 12
    session = tiny.session(sampling=Sampling(temperature=2, seed=1), bounds="minmax", select=Quest(budget=64))
    assert session.ask(PROMPTS[1].decode(), max_new=12) == tiny.vocab.text(texts[0])


def test_what_a_callback_raises_ends_its_request_alone(tiny: tamis.Model) -> None:
    prompt = tiny.vocab.encode(PROMPTS[1])
    scheduler = Scheduler(runner_of(tiny))

    def fail(*_: Any) -> int:
        raise LookupError("nothing to choose from")

    failing = [scheduler.add(prompt, 4, choose=fail), scheduler.add(prompt, 4, reads=fail),
               scheduler.add(prompt, 4, choose=lambda logits: 97)]
    fine = scheduler.add(prompt, 4)
    events = list(scheduler.run())
    ends = {event.id: event.error for event in events if event.kind == "ended"}
    assert [type(ends[id]) for id in failing[:2]] == [LookupError, LookupError] and ends[fine] is None
    assert isinstance(ends[failing[2]], tamis.ArgumentError)
    assert tokens_of(events, fine) == alone(tiny, PROMPTS[1], 4)
    assert scheduler.runner.cache.stats.sequences == 0

    def interrupt(logits: numpy.ndarray) -> int:
        raise KeyboardInterrupt

    stopped, fine = scheduler.add(prompt, 4, choose=interrupt), scheduler.add(prompt, 4)
    with pytest.raises(KeyboardInterrupt):
        list(scheduler.run())
    events = list(scheduler.run())  # the others go on, and no event is lost
    assert tokens_of(events, fine) == alone(tiny, PROMPTS[1], 4) and not tokens_of(events, stopped)
    with pytest.raises(tamis.ArgumentError, match="97"):  # nothing of what was raised is left
        scheduler.add([97], 1)


def test_reads_are_those_of_a_runner(tiny: tamis.Model) -> None:
    prompt = tiny.vocab.encode(PROMPTS[0])
    scheduler = Scheduler(runner_of(tiny))
    told: list[tuple[int, int, list[int], int]] = []
    id = scheduler.add(prompt, 3, reads=lambda layer, head, pages, of: told.append(
        (layer, head, pages.tolist(), of)))
    scheduler.add(prompt, 3)
    tokens = tokens_of(list(scheduler.run()), id)
    runner = runner_of(tiny, reads=True)
    sequence = runner.cache.add()
    runner.prefill(sequence, prompt)
    for i, token in enumerate(tokens[:2]):
        runner.decode(sequence, token)
        read = runner.read()
        for layer in range(2):
            assert told[2 * i + layer] == (layer, 0, numpy.flatnonzero(read[layer, 0]).tolist(), 10)
    assert len(told) == 4


def test_a_sequence_that_a_request_brings(tiny: tamis.Model) -> None:
    prompt = tiny.vocab.encode(PROMPTS[0])
    runner = runner_of(tiny)
    scheduler = Scheduler(runner)
    sequence = runner.cache.add()
    runner.prefill(sequence, prompt[:100])
    with pytest.raises(tamis.ArgumentError, match="100"):  # refused: it stays the caller's
        scheduler.add(prompt[:50], 4, sequence=sequence)
    assert not sequence.removed and len(sequence) == 100
    id = scheduler.add(prompt, 6, sequence=sequence)
    assert sequence.removed
    del sequence
    events = list(scheduler.run())
    assert events[0] == Event(id, "began", 100) and tokens_of(events, id) == alone(tiny, PROMPTS[0], 6)
    assert runner.cache.stats.sequences == 0


def test_preempted_requests_go_on(tiny: tamis.Model) -> None:
    for host_bytes in (0, 1 << 30):
        runner = runner_of(tiny, capacity=256)
        scheduler = Scheduler(runner, host_bytes=host_bytes)
        ids = [scheduler.add(tiny.vocab.encode(prompt), 40) for prompt in PROMPTS]
        events = list(scheduler.run())
        assert scheduler.stats.preempted > 0 and (scheduler.stats.saved > 0) == (host_bytes > 0)
        assert {"preempted", "resumed"} <= {event.kind for event in events}
        for id, prompt in zip(ids, PROMPTS):
            assert tokens_of(events, id) == alone(tiny, prompt, 40)
    scheduler = Scheduler(runner_of(tiny, capacity=64))
    id = scheduler.add(tiny.vocab.encode(PROMPTS[0]), 4)
    last = list(scheduler.run())[-1]
    assert (last.id, last.kind) == (id, "ended") and isinstance(last.error, tamis.FullError)


def test_sharing_prompts(tiny: tamis.Model) -> None:
    runner = runner_of(tiny)
    scheduler = Scheduler(runner, share=True, max_kept=2)
    prompt = tiny.vocab.encode(PROMPTS[0])
    for salt, shared in ((bytes(16), 0), (b"\1" * 16, 0), (bytes(16), len(prompt) - 1)):
        id = scheduler.add(prompt, 3, salt=salt)
        events = list(scheduler.run())
        assert events[0] == Event(id, "began", shared) and tokens_of(events, id) == alone(tiny, PROMPTS[0], 3)
    assert scheduler.stats.kept == 2 and scheduler.stats.tokens_shared == len(prompt) - 1
    assert [scheduler.drop_kept() for _ in range(3)] == [True, True, False]
    assert runner.cache.stats.pages_held == 0
    with pytest.raises(tamis.ArgumentError, match="3 bytes"):
        scheduler.add(prompt, 1, salt=b"abc")


def test_what_is_refused(tiny: tamis.Model) -> None:
    runner = runner_of(tiny)
    with pytest.raises(tamis.ArgumentError, match="max_running"):
        Scheduler(runner, max_running=5)
    with pytest.raises(tamis.ArgumentError, match="store"):
        Scheduler(runner, store_tokens=16)
    scheduler = Scheduler(runner)
    with pytest.raises(tamis.StateError):
        Scheduler(runner)
    for tokens, n, reason in (([], 1, "no tokens"), ([97], 1, "token 97"), ([1], 0, "max_new"),
                              ([1] * 250, 8, "256")):
        with pytest.raises(tamis.ArgumentError, match=reason):
            scheduler.add(tokens, n)
    assert scheduler.stats.waiting == 0
    runner.close()
    with pytest.raises(tamis.StateError):
        scheduler.add([1], 1)


def test_a_forgotten_scheduler_removes_its_sequences(tiny: tamis.Model) -> None:
    runner = runner_of(tiny)
    scheduler = Scheduler(runner)
    scheduler.add(tiny.vocab.encode(PROMPTS[0]), 40, choose=Sampling(temperature=1))
    scheduler.step()
    assert runner.cache.stats.sequences == 1
    gc.disable()
    try:
        del scheduler
        assert runner.cache.stats.sequences == 0
    finally:
        gc.enable()
    Scheduler(runner).close()  # a runner has one at a time
