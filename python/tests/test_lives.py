# SPDX-License-Identifier: Apache-2.0
"""Random lives: contexts, arrays, views of arrays, caches, sequences, plans and steps are made, used, closed
and forgotten in any order, by several threads in turn. What is left is as it must be, and at the end
nothing is left.

TAMIS_LIVES says how many lives (12), TAMIS_LIVES_SEED which is the first (1)."""
from __future__ import annotations

import gc
import os
import random
import threading
import weakref
from typing import Any, Callable, Optional

import numpy
import pytest

import tamis
from conftest import DEVICES

LIVES = int(os.environ.get("TAMIS_LIVES", "12"))
FIRST = int(os.environ.get("TAMIS_LIVES_SEED", "1"))
ACTS = 100
LAYERS, HEADS, KV_HEADS, DIM, CAPACITY, MOST_ROWS = 2, 4, 2, 64, 160, 24
EVICTIONS: list[Optional[tamis.Eviction]] = [
    None, None, tamis.SnapKV(budget=40, window=8), tamis.Streaming(budget=36),
    tamis.Knorm(budget=48, every=0)]
SELECTIONS = [tamis.Full(), tamis.Quest(budget=80), tamis.Window(budget=48)]


class Text:
    """What is known of a sequence, without holding it: its tokens' keys in layer 0 and KV head 1."""

    def __init__(self, sequence: tamis.Sequence, keys: numpy.ndarray) -> None:
        self.sequence = weakref.ref(sequence)
        self.keys = keys
        self.whole = True  # no token has been evicted, and no step at fixed lengths given up


class World:
    """A context with everything that is made from it. Each list holds what a user would hold."""

    def __init__(self, device: str) -> None:
        self.context = tamis.Context(device)
        self.arrays: list[tamis.Array] = []
        self.views: list[tuple[numpy.ndarray, numpy.ndarray]] = []  # with a copy of what they must show
        self.caches: list[tamis.Cache] = []
        self.plans: list[tamis.Plan] = []
        self.sequences: list[tamis.Sequence] = []
        self.steps: list[tamis.Step] = []
        self.prefixes: list[tamis.Prefixes] = []
        self.lists: list[list[Any]] = [self.arrays, self.views, self.caches, self.plans, self.sequences,
                                       self.steps, self.prefixes]
        self.rows = [self.context.empty((MOST_ROWS, heads, DIM))
                     for heads in (KV_HEADS, KV_HEADS, HEADS, HEADS)]


class Life:
    """One life. Each act is a method; what it may answer beside success is FullError and StateError."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.numpy = numpy.random.default_rng(seed)
        self.device = DEVICES[seed % len(DEVICES)]
        self.worlds: list[World] = []
        self.texts: dict[int, Text] = {}
        self.memory: list[Any] = []  # weak, of what was wrapped
        self.contexts: list[Any] = []  # weak
        self.log: list[str] = []
        self.done = self.refused = 0
        self.make_world(None)

    def live(self) -> None:
        acts: list[tuple[int, Callable[[World], Any]]] = [
            (1, self.make_world), (8, self.make_array), (4, self.wrap), (4, self.view), (3, self.make_cache),
            (4, self.make_plan), (10, self.add), (8, self.fork), (24, self.step), (5, self.leave_step_open),
            (6, self.go_on), (4, self.truncate), (5, self.evict), (2, self.find_prefix), (2, self.bounds),
            (6, self.read), (8, self.forget), (3, self.forget_in_a_loop), (2, self.forget_in_a_thread),
            (3, self.close), (2, self.collect), (1, self.close_world), (1, self.forget_world)]
        weights = [weight for weight, _ in acts]
        for _ in range(ACTS):
            act = self.random.choices(acts, weights)[0][1]
            world = self.random.choice(self.worlds)
            self.log.append(act.__name__)
            try:
                # Threads take turns.
                if self.random.random() < 0.1:
                    run_in_a_thread(lambda: act(world))
                else:
                    act(world)
                self.done += 1
            except (tamis.StateError, tamis.FullError) as reason:
                self.log[-1] += f": {reason}"
                self.refused += 1
            del world
            self.check()

    def some(self, things: list[Any]) -> Any:
        if not things:
            raise tamis.StateError("of these there are none")
        return self.random.choice(things)

    def there(self, world: World, cache: Optional[tamis.Cache] = None) -> list[tamis.Sequence]:
        """Sequences that have not been removed."""
        return [one for one in world.sequences if not one.removed and cache in (None, one.cache)]

    # ---- Making ----

    def make_world(self, _: Any) -> None:
        if len(self.worlds) < 3:
            world = World(self.random.choice(DEVICES) if self.worlds else self.device)
            self.worlds.append(world)
            self.contexts.append(weakref.ref(world.context))
            for make in self.make_cache, self.make_plan, self.add, self.add:
                make(world)

    def make_array(self, world: World) -> None:
        shape = self.random.choice([(3,), (5, 64), (MOST_ROWS, HEADS, DIM)])
        dtype = self.random.choice(["f32", "f16", "i32"])
        array = world.context.array(self.numpy.integers(0, 99, shape), dtype)
        world.arrays.append(self.random.choice([array, array[:2], array.reshape(*array.shape, 1)]))

    def wrap(self, world: World) -> None:
        if world.context.device.backend == "cuda":
            return
        source = tamis.empty((6, 64))
        source[...] = self.numpy.integers(0, 99, source.shape)
        self.memory.append(weakref.ref(source.base))
        array = world.context.wrap(source)
        world.arrays.append(array)
        if self.random.random() < 0.5:
            world.views.append((source, source.copy()))

    def view(self, world: World) -> None:
        array = self.some(world.arrays)
        if world.context.device.backend != "cuda":
            view = array.numpy() if self.random.random() < 0.5 else numpy.from_dlpack(array)
            world.views.append((view, view.copy()))

    def make_cache(self, world: World) -> None:
        if len(world.caches) < 3:
            evict = self.random.choice(EVICTIONS)
            cache = tamis.Cache(world.context, n_layers=LAYERS, n_heads=HEADS, n_kv_heads=KV_HEADS,
                                head_dim=DIM, capacity_tokens=CAPACITY, evict=evict,
                                dtype=self.random.choice(["f16", "f32"]))
            cache.evict = evict  # type: ignore[attr-defined]  # for its plans
            world.caches.append(cache)

    def make_plan(self, world: World) -> None:
        cache = self.some(world.caches)
        plan = cache.plan(select=self.random.choice(SELECTIONS), evict=cache.evict, max_context=128,
                          max_sequences=3, max_rows=MOST_ROWS, reads=self.random.random() < 0.3)
        world.plans.append(plan)

    def add(self, world: World) -> None:
        sequence = self.some(world.caches).add()
        self.texts[sequence.handle] = Text(sequence, numpy.zeros((0, DIM), numpy.float32))
        world.sequences.append(sequence)

    def fork(self, world: World) -> None:
        parent = self.some(self.there(world))
        sequence = parent.fork()
        known = self.texts[parent.handle]
        self.texts[sequence.handle] = Text(sequence, known.keys)
        self.texts[sequence.handle].whole = known.whole
        world.sequences.append(sequence)

    # ---- Steps ----

    def begin(self, world: World) -> tuple[tamis.Step, numpy.ndarray]:
        """Opens a step; with the keys of its rows in layer 0 and KV head 1."""
        plan = self.some(world.plans)
        of = self.there(world, plan.cache)
        of = self.random.sample(of, min(len(of), self.random.randint(1, 3)))
        exact = self.random.random() < 0.5
        rows = [self.random.randint(1, MOST_ROWS // 3) if exact else 1 for _ in of]
        if not of:
            raise tamis.StateError("the plan's cache has no sequences")
        step = plan.step(of, rows, exact=exact)
        k = self.numpy.integers(-9, 10, (MOST_ROWS, KV_HEADS, DIM)).astype(numpy.float32) / 8
        world.rows[0].write(k)
        for array in world.rows[1:3]:
            array.write(self.numpy.integers(-9, 10, array.shape) / 8)
        return step, k[:, 1]

    def layers(self, world: World, step: tamis.Step,
               upset: Callable[[int], None] = lambda layer: None) -> None:
        k, v, q, out = world.rows
        for layer in range(LAYERS):
            upset(layer)
            step.write(layer, k, v)
            step.attend(layer, q, out)
        assert numpy.isfinite(out[:step.n_rows].read()).all()

    def ended(self, step: tamis.Step, keys: numpy.ndarray) -> None:
        first = 0
        for sequence, count in zip(step.sequences, step.rows):
            known = self.texts[sequence.handle]
            known.keys = numpy.concatenate([known.keys, keys[first:first + count]])
            first += count

    def given_up(self, step: tamis.Step) -> None:
        if step.plan.evict_by is not None and getattr(step.plan.evict_by, "every", 0) == 1:
            for sequence in step.sequences:  # rows that were written have replaced tokens
                self.texts[sequence.handle].whole = False

    def step(self, world: World) -> None:
        step, keys = self.begin(world)
        upset = self.random.random()

        def upsets(layer: int) -> None:
            if upset < 0.1 and layer == 1:
                raise KeyError("of the caller")
            if 0.1 < upset < 0.15:
                self.close(world)

        try:
            with step:
                self.layers(world, step, upsets)
            self.ended(step, keys)
        except (KeyError, tamis.Error) as reason:
            self.given_up(step)
            if isinstance(reason, tamis.Error):
                raise

    def leave_step_open(self, world: World) -> None:
        step, keys = self.begin(world)
        step.keys = keys  # type: ignore[attr-defined]
        world.steps.append(step)

    def go_on(self, world: World) -> None:
        """With a step that was left open."""
        step = self.some(world.steps)
        world.steps.remove(step)
        how = self.random.random()
        if how < 0.3:
            self.given_up(step)
            step.cancel()
        elif how < 0.8:
            try:
                world.rows[0].write(numpy.repeat(step.keys[:, None], KV_HEADS, axis=1))
                with step:
                    self.layers(world, step)
                self.ended(step, step.keys)
            except tamis.Error:
                self.given_up(step)
                raise

    # ---- Sequences ----

    def truncate(self, world: World) -> None:
        sequence = self.some(self.there(world))
        length = self.random.randint(0, len(sequence))
        sequence.truncate(length)
        self.texts[sequence.handle].keys = self.texts[sequence.handle].keys[:length]

    def evict(self, world: World) -> None:
        plan = self.some([plan for plan in world.plans if plan.evict_by is not None])
        sequence = self.some(self.there(world, plan.cache))
        evicted = plan.evict(sequence)
        assert evicted.tokens_kept == sequence.lane_lengths().sum()
        if evicted.tokens_kept < evicted.tokens_before:
            self.texts[sequence.handle].whole = False

    def find_prefix(self, world: World) -> None:
        if len(world.prefixes) < 2:
            world.prefixes.append(tamis.Prefixes(self.some(world.caches)))
        prefixes = self.some(world.prefixes)
        sequence = self.some(self.there(world, prefixes.cache))
        if len(sequence):
            prefixes.add(sequence, range(len(sequence)))
        found = prefixes.fork(range(100))
        if found:
            assert len(found[0]) == found[1]

    def bounds(self, world: World) -> None:
        self.some(world.caches).bounds = self.random.choice(["minmax", "meanstd", "mean"])

    def read(self, world: World) -> None:
        sequence = self.some(self.there(world))
        known = self.texts[sequence.handle]
        if known.whole:
            assert numpy.array_equal(sequence.read(0, 1)[0], known.keys)

    # ---- Ends ----

    def take(self, world: World) -> Any:
        things = self.some([things for things in world.lists if things])
        return things.pop(self.random.randrange(len(things)))

    def forget(self, world: World) -> None:
        self.take(world)

    def forget_in_a_loop(self, world: World) -> None:
        """Only the collector finds it."""
        loop: list[Any] = [self.take(world) for _ in range(self.random.randint(1, 3))]
        loop.append(loop)

    def forget_in_a_thread(self, world: World) -> None:
        things = [self.take(world)]
        run_in_a_thread(things.clear)

    def close(self, world: World) -> None:
        can_be_closed = world.arrays, world.caches, world.plans, world.sequences, world.prefixes
        things: Any = self.some([things for things in can_be_closed if things])
        thing = self.random.choice(things)
        if self.random.random() < 0.5:
            things.remove(thing)
        (thing.remove if isinstance(thing, tamis.Sequence) else thing.close)()

    def collect(self, world: World) -> None:
        if self.random.random() < 0.3:
            run_in_a_thread(gc.collect)
        else:
            gc.collect()

    def is_not_the_last(self, world: World) -> bool:
        return any(other is not world and not other.context.closed for other in self.worlds)

    def close_world(self, world: World) -> None:
        if self.is_not_the_last(world):
            world.context.close()
            with pytest.raises(tamis.StateError):
                world.context.empty(3)

    def forget_world(self, world: World) -> None:
        if self.is_not_the_last(world):
            self.worlds.remove(world)

    # ---- What must hold ----

    def check(self) -> None:
        for world in self.worlds:
            for view, shown in world.views:
                assert numpy.array_equal(view, shown)
            if world.context.closed:
                continue
            world.context.wait()  # ends what other threads have forgotten
            for cache in world.caches:
                if cache.closed:
                    continue
                of = [one for one in map(lambda text: text.sequence(), list(self.texts.values()))
                      if one is not None and one.cache is cache and not one.removed]
                in_steps = {handle for plan in world.plans if plan.cache is cache and plan._step
                            for handle in (one.handle for one in plan._step.sequences)}
                stats = cache.stats
                assert stats.sequences == len(of), (stats, of)
                assert stats.pages_held <= stats.pages_total
                for one in of:
                    if one.handle not in in_steps and len(one) != len(self.texts[one.handle].keys):
                        assert self.has_lost_step(cache)

    def has_lost_step(self, cache: tamis.Cache) -> bool:
        """Whether a step is open whose plan only the collector, or another object, still holds."""
        plans = [plan for world in self.worlds for plan in world.plans]
        return any(isinstance(thing, tamis.Step) and thing.open and thing.plan.cache is cache
                   and thing.plan not in plans for thing in gc.get_objects())

    def end(self) -> None:
        """First every page comes back, then everything is gone."""
        for world in self.worlds:
            self.free(world)
        self.texts.clear()
        for _ in range(3):
            gc.collect()
        for world in self.worlds:
            self.check_free(world)
        del world
        while self.worlds:
            lists = self.worlds.pop().lists
            self.random.shuffle(lists)
            for things in lists:
                things.clear()
        for _ in range(3):
            gc.collect()
        assert not any(context() for context in self.contexts)
        assert not any(memory() is not None for memory in self.memory)

    def free(self, world: World) -> None:
        for step in [*world.steps, *(plan._step for plan in world.plans)]:
            if step is not None and step.open and not step.plan.cache.closed and not world.context.closed:
                step.cancel()
        world.steps.clear()
        world.sequences.clear()

    def check_free(self, world: World) -> None:
        if not world.context.closed:
            world.context.empty(1)
            for cache in world.caches:
                if not cache.closed:
                    assert (cache.stats.sequences, cache.stats.pages_held) == (0, 0)


def run_in_a_thread(call: Callable[[], Any]) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as reason:  # for who waits
            raised.append(reason)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised.pop()


@pytest.mark.parametrize("seed", range(FIRST, FIRST + LIVES))
def test_a_random_life(seed: int) -> None:
    life = Life(seed)
    collects = seed % 3  # in some lives the collector comes only when it is called
    if not collects:
        gc.disable()
    try:
        life.live()
        life.end()
    except BaseException:
        print(f"seed {seed} on {life.device}, {life.done} acts done, {life.refused} refused:")
        print(*life.log, sep="\n")
        raise
    finally:
        gc.enable()
    assert life.done > ACTS / 5
