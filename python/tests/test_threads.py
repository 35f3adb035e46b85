# SPDX-License-Identifier: Apache-2.0
"""Threads, callbacks, forks and the process's end: a second thread in a context is refused, calls let other
threads run, and what is forgotten anywhere is destroyed where that harms nobody."""
from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from typing import Any, Callable, Iterator

import numpy
import pytest

import tamis
from conftest import DEVICES
from rig import Rig, causal
from tamis.c import ffi, lib


class Thread(threading.Thread):
    """A thread whose exception is raised by join()."""

    def __init__(self, run: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call, self.raised = run, None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._call()
        except BaseException as reason:  # goes to who joins
            self.raised = reason

    def join(self, timeout: Any = 60) -> Any:
        super().join(timeout)
        assert not self.is_alive()
        if self.raised is not None:
            raise self.raised
        return self.answer


class Inside:
    """Is in the context as a call that takes long would be."""

    def __init__(self, context: tamis.Context) -> None:
        self.context = context._pointer

    def __enter__(self) -> None:
        assert lib.tamis_context_enter(self.context, ffi.NULL) == lib.TAMIS_OK

    def __exit__(self, *_: Any) -> None:
        lib.tamis_context_leave(self.context)


def wrapped(context: tamis.Context) -> tuple[tamis.Array, Any]:
    """An array over NumPy's memory, and what says whether that is still held."""
    source = tamis.empty((4, 16))
    source[...] = 1
    return context.wrap(source), weakref.ref(source.base)


@pytest.fixture
def host(contexts: Callable[..., tamis.Context]) -> Iterator[tamis.Context]:
    context = contexts()
    if context.device.backend == "cuda":
        pytest.skip("the host's memory is wrapped")
    yield context


# ---- Two threads ----------------------------------------------------------------------------------


def test_a_second_thread_is_refused(contexts: Callable[..., tamis.Context]) -> None:
    rig = Rig(contexts())
    plan = rig.plan()
    text = rig.prompt(plan, 20)
    rig.draw([text], [1])
    step = plan.step(text)
    calls: list[Callable[[], Any]] = [
        rig.context.wait, lambda: rig.context.empty(3), rig.q_rows.read, lambda: rig.q_rows.write(0),
        rig.cache.add, text.fork, lambda: len(text), lambda: text.stats, lambda: text.read(0, 0),
        lambda: text.truncate(3),
        lambda: rig.plan(), lambda: step.write(0, rig.k_rows, rig.v_rows), step.end, step.cancel,
        lambda: step.attend(0, rig.q_rows, rig.out_rows), lambda: plan.evict(text), text.remove]

    def other() -> None:
        for call in calls:
            with pytest.raises(tamis.StateError, match="another thread is in a call"):
                call()

    with Inside(rig.context):
        Thread(other).join()
        assert step.open and not text.removed
        rig.attend_all(step)
        step.end()
    rig.expect(0, text, slice(0, 1), causal([20], 21))
    Thread(lambda: rig.run(plan, text)).join()  # threads may take turns
    rig.expect(1, text, slice(0, 1), causal([21], 22))


def test_threads_that_do_not_wait_for_each_other(contexts: Callable[..., tamis.Context]) -> None:
    """Each call is done, or refused; nothing is harmed."""
    rig = Rig(contexts())
    texts, begin, done = [rig.cache.add() for _ in range(2)], threading.Barrier(2), [0, 0]
    plans = [rig.plan(max_rows=8) for _ in texts]
    refused = [0, 0]

    def work(me: int) -> None:
        plan, text = plans[me], texts[me]
        begin.wait()
        while done[me] < 200:
            step = None
            try:
                array = rig.context.empty((2, 16))
                with plan.step(text) as step:
                    for layer in range(2):
                        step.write(layer, rig.k_rows, rig.v_rows)
                        step.attend(layer, rig.q_rows, rig.out_rows)
                done[me] += 1
                del array
            except tamis.StateError:
                refused[me] += 1
            while step is not None and step.open:  # giving it up was refused, too
                try:
                    step.cancel()
                except tamis.StateError:
                    time.sleep(0)

    for thread in [Thread(lambda me=me: work(me)) for me in range(2)]:  # type: ignore[misc]
        thread.join()
    assert sum(refused) > 0
    assert [len(text) for text in texts] == done == [200, 200]
    with plans[0].step(texts) as step:
        step.cancel()
    texts.clear()
    del step  # which holds them
    assert rig.cache.stats.pages_held == 0


def test_a_call_lets_other_threads_run(contexts: Callable[..., tamis.Context]) -> None:
    context = contexts()
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1

    counter = Thread(count)
    try:
        before = counted[0]
        began = time.monotonic()
        size = 1 << (20 if context.device.backend == "cuda" else 26)  # the tests' driver is slow
        assert context.read_bandwidth(size) > 0  # one call of the library
        meanwhile, seconds = counted[0] - before, time.monotonic() - began
    finally:
        stop.set()
        counter.join()
    assert meanwhile > 10000 * seconds, f"{meanwhile} in {seconds:.3f} s"


@pytest.mark.parametrize("n", [3])
def test_contexts_in_threads_of_their_own(n: int) -> None:
    def work() -> list[Any]:
        with tamis.Context(DEVICES[0]) as context:
            rig = Rig(context, seed=3)
            plan = rig.plan(select=tamis.Quest(budget=64))
            text = rig.prompt(plan, 120)
            outs = [rig.run(plan, text).tobytes() for _ in range(5)]
            return [*outs, text.fork().read(1, 1)[0].tobytes()]

    expected = work()
    for thread in [Thread(work) for _ in range(n)]:
        assert thread.join() == expected


# ---- What is forgotten ----------------------------------------------------------------------------


def test_what_another_thread_forgets_waits(host: tamis.Context) -> None:
    """For the thread that uses the context, to make something; with the memory that it uses."""
    rig = Rig(host)
    plan = rig.plan()
    array, memory = wrapped(host)
    things: list[Any] = [array, rig.prompt(plan, 20), rig.plan(), tamis.Prefixes(rig.cache), host.empty(4)]
    del array
    with Inside(host):
        Thread(things.clear).join()
        assert memory() is not None and rig.cache.stats.sequences == 1
    assert memory() is not None and rig.cache.stats.sequences == 1
    host.empty(1)
    assert memory() is None and rig.cache.stats.sequences == 0
    rig.prompt(plan, 20)


def test_a_step_ends_what_waits(host: tamis.Context) -> None:
    """So that the pages of forgotten sequences are there for it."""
    rig = Rig(host, capacity_tokens=64)
    plan = rig.plan()
    texts = [rig.prompt(plan, 40)]
    text = rig.cache.add()
    Thread(texts.clear).join()
    assert rig.cache.stats.sequences == 2
    rig.run(plan, text, 40, exact=True)
    assert rig.cache.stats.sequences == 1


def test_a_step_that_another_thread_forgets_is_given_up_first(host: tamis.Context) -> None:
    """Its sequences, which were forgotten before it, go with it."""
    rig = Rig(host)
    texts = [rig.prompt(rig.plan(), 20)]
    plans = [rig.plan()]
    plans[0].step(texts[0]).sequences.clear()

    def forget() -> None:
        texts.clear()
        plans.clear()
        gc.collect()

    Thread(forget).join()
    assert rig.cache.stats.sequences == 1
    array = host.empty(1)  # which is not forgotten at once: that would end what waits, too
    assert rig.cache.stats.sequences == 0 and len(array) == 1


def test_collecting_in_another_thread_makes_no_call_fail(host: tamis.Context) -> None:
    rig = Rig(host)
    plan = rig.plan()
    text = rig.prompt(plan, 20)
    stop = threading.Event()
    kept: list[Any] = []

    def collect() -> int:
        times = 0
        while not stop.is_set():
            times += gc.collect() >= 0
        return times

    thread = Thread(collect)
    try:
        until = time.monotonic() + 0.8
        while time.monotonic() < until:
            loop: list[Any] = [host.empty((64, 64)), text.fork(), wrapped(host)[0]]
            loop.append(loop)
            del loop
            while rig.cache.stats.sequences > 5:  # forks hold pages until the other thread has had its turn
                time.sleep(0)
                host.empty(1)
            rig.run(plan, text)
            text.truncate(20)
            array, memory = wrapped(host)
            kept.append(memory)
    finally:
        stop.set()
        assert thread.join() > 2
    del array
    gc.collect()
    host.empty(1)
    assert rig.cache.stats.sequences == 1 and not any(memory() is not None for memory in kept)


def test_a_whole_context_is_forgotten_in_another_thread(host: tamis.Context) -> None:
    def make() -> tuple[Any, ...]:
        rig = Rig(tamis.Context(host.device.id))
        plan = rig.plan()
        array, memory = wrapped(rig.context)
        text = rig.prompt(plan, 20)
        return rig, plan, plan.step(text), text, array, memory

    *things, memory = Thread(make).join()
    context = weakref.ref(things[0].context)
    things.clear()
    for _ in range(2):  # the plan with its step, then the context with what that still used
        gc.collect()
    assert context() is None and memory() is None


def test_what_a_callback_forgets_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    things: list[Any] = []
    seen: list[bool] = []

    def log(level: str, line: str) -> None:
        if things:
            things.clear()
            seen.append(memory() is not None)

    with tamis.Context("reference", log=log) as context:
        array, memory = wrapped(context)
        things.append(array)
        del array
        cache = tamis.Cache(context, n_layers=1, n_heads=4, n_kv_heads=2, head_dim=64, capacity_tokens=64)
        assert seen == [True] and memory() is not None
        cache.add()
        assert memory() is None


def test_progress_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    if "opencl" not in DEVICES:
        pytest.skip("no OpenCL device compiles")
    told: list[tuple[int, int, float]] = []
    with tamis.Context("opencl", build=lambda *progress: told.append(progress)) as context:
        Rig(context).plan()
    assert told[0][0] == 0 and told[-1][0] == told[-1][1] > 0
    assert all(0 <= done <= every and seconds >= 0 for done, every, seconds in told)


# ---- Processes ------------------------------------------------------------------------------------


def script(text: str, device: str, leaves: bool = False) -> None:
    """Runs Python, which must end in peace and print nothing but "end"; `leaves`: it leaves memory to the end
    of its process, which is no leak for a sanitizer to find."""
    setup = f"import gc, os, sys, threading, time\nsys.path.insert(0, {os.path.dirname(__file__)!r})\n" \
            f"import tamis\nfrom rig import Rig\nrig = Rig(tamis.Context({device!r}))\n" \
            "plan = rig.plan()\ntext = rig.prompt(plan, 20)\n"
    options = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0" * leaves
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", setup + text], text=True, timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, "ASAN_OPTIONS": options.lstrip(":")})
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stdout


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("leave", [
    "step = plan.step(text)",
    "plan.step(text); rig.plan = plan; rig.rig = rig; gc.disable(); del rig, plan, text",
    "view = rig.q_rows[2:3].__dlpack__(); rig.context.close()",
    *(f"""
def work():
    try:
        while True:
            rig.context.{call}
    except tamis.Error:  # as another thread has come in
        pass
threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)""" for call in ("wait()", "read_bandwidth(1 << 24)")),
    "made = []; thread = threading.Thread(target=lambda: made.append(Rig(tamis.Context('reference'))))"
    "; thread.start(); thread.join(); made.append(made[0].plan())",
], ids=["open step", "loop", "view", "waiting daemon", "reading daemon", "another thread's"])
def test_a_process_ends_in_peace(device: str, leave: str) -> None:
    if device != "reference" and "daemon" in leave:
        pytest.skip("a process that ends while a thread is in a driver is that driver's matter: PoCL crashes "
                    "at times, and the tests' CUDA driver reports what is left")
    script(leave + "\nprint('end')\n", device, leaves="daemon" in leave)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("device", [device for device in DEVICES if device != "cuda"])
def test_a_forked_child_leaves_its_parent_s_device_alone(device: str) -> None:
    script("""
rig.run(plan, text)
step = plan.step(text)
child = os.fork()
if child == 0:
    class Nothing:
        def __getattr__(self, name):
            print(f"{name} is called")
            os._exit(3)
    tamis._core.lib = tamis.cache.lib = Nothing()
    rig.q_rows.close()
    kept = rig.k_rows
    del rig, plan, text, step
    gc.collect()
    sys.exit(7)  # not os._exit: finalisers run
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
rig.draw([text], [1])
rig.attend_all(step)
step.end()
assert len(text) == 22
print("end")
""", device, leaves=True)
