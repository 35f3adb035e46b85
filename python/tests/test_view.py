# SPDX-License-Identifier: Apache-2.0
"""Views: an engine keeps K and V in NumPy's memory, and plans read them there: beside softmax in NumPy, and
beside a cache of the library's that holds the same tokens."""
import dataclasses

import numpy
import pytest

import tamis

LAYERS, HEADS, KV, DIM, PAGE, PAGES = 2, 4, 2, 64, 16, 24


class Engine:
    """Keeps K and V of its sequences in pages, which it hands out in an order of no kind.

    lay: "apart": an array for K and one for V of each layer; "pairs": K and V of a page are neighbours in
    one array; "turned": V and K are."""

    def __init__(self, context, layout="nhd", lay="apart", dtype=numpy.float32, page=PAGE):
        self.context, self.layout, self.page = context, layout, page
        shape = (PAGES, page, KV, DIM) if layout == "nhd" else (PAGES, KV, page, DIM)
        self.host, self.layers = [], []  # (k, v) as NumPy arrays, and as the view has them
        for _ in range(LAYERS):
            if lay == "apart":
                host = tuple(tamis.empty(shape, dtype) for _ in range(2))
                arrays = tuple(context.wrap(array) for array in host)
            else:
                memory = tamis.empty((PAGES, 2, *shape[1:]), dtype)
                host, width = (memory[:, 0], memory[:, 1]), page * KV * DIM
                pages = context.wrap(memory).reshape(PAGES, 2 * width)
                arrays = pages[:, :width].reshape(*shape), pages[:, width:].reshape(*shape)
                if lay == "turned":
                    host, arrays = host[::-1], arrays[::-1]
            for array in host:
                array[...] = numpy.nan
            self.host.append(host)
            self.layers.append(arrays)
        self.free = list(numpy.random.default_rng(1).permutation(PAGES))
        self.tables, self.lengths = [], []

    def view(self, **params):
        return tamis.View(self.context, self.layers, n_heads=HEADS, layout=self.layout, **params)

    def add(self):
        self.tables.append([])
        self.lengths.append(0)

    def grow(self, sequence, rows):
        self.lengths[sequence] += rows
        while len(self.tables[sequence]) * self.page < self.lengths[sequence]:
            self.tables[sequence].append(int(self.free.pop()))

    def write(self, layer, sequence, k, v):
        """The last rows of a sequence, [rows][KV][DIM]."""
        self.context.wait()
        for i in range(len(k)):
            at = self.lengths[sequence] - len(k) + i
            page, slot = self.tables[sequence][at // self.page], at % self.page
            place = (page, slot) if self.layout == "nhd" else (page, slice(None), slot)
            self.host[layer][0][place], self.host[layer][1][place] = k[i], v[i]

    def attend(self, layer, sequence, q):
        """Softmax over all that the rows q of the sequence's end see, float64."""
        k, v = (numpy.stack([array[page] for page in self.tables[sequence]]).astype(float)
                for array in self.host[layer])
        if self.layout == "hnd":
            k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
        k, v = (array.reshape(-1, KV, DIM)[:self.lengths[sequence]] for array in (k, v))
        out = numpy.empty(q.shape)
        for row in range(len(q)):
            sees = self.lengths[sequence] - len(q) + row + 1
            for head in range(HEADS):
                logits = k[:sees, head * KV // HEADS] @ q[row, head].astype(float) / DIM ** 0.5
                weights = numpy.exp(logits - logits.max())
                out[row, head] = weights @ v[:sees, head * KV // HEADS] / weights.sum()
        return out


def draw(random, rows):
    return (random.standard_normal((rows, KV, DIM)).astype("f4"),
            random.standard_normal((rows, KV, DIM)).astype("f4"),
            random.standard_normal((rows, HEADS, DIM)).astype("f4"))


@pytest.mark.parametrize("dtype, bound", [(numpy.float32, 1e-5), (numpy.float16, 1e-5)])
@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("lay", ["apart", "pairs", "turned"])
def test_full_attention_beside_softmax(layout, lay, dtype, bound):
    context, random = tamis.Context("reference"), numpy.random.default_rng(2)
    engine = Engine(context, layout, lay, dtype)
    view = engine.view()
    assert (view.n_layers, view.n_kv_heads, view.head_dim, view.page_size, view.n_pages) == (
        LAYERS, KV, DIM, PAGE, PAGES)
    plan = view.plan(max_context=128, max_sequences=2, max_rows=64)
    for _ in range(2):
        engine.add()
    for rows, exact in (([37, 20], True), ([1, 1], False), ([1, 1], False)):
        for sequence in range(2):
            engine.grow(sequence, rows[sequence])
        with view.step(plan, engine.tables, engine.lengths, rows, exact=exact) as step:
            assert step.n_rows == sum(rows) and step.sequences == []
            for layer in range(LAYERS):
                drawn = [draw(random, n) for n in rows]
                for sequence, (k, v, _) in enumerate(drawn):
                    engine.write(layer, sequence, k, v)
                out = context.empty((sum(rows), HEADS, DIM))
                step.attend(layer, context.array(numpy.concatenate([q for _, _, q in drawn])), out)
                expected = numpy.concatenate([engine.attend(layer, sequence, q)
                                              for sequence, (_, _, q) in enumerate(drawn)])
                assert abs(out.read() - expected).max() < bound


def beside_a_cache(context, engine, csr=False, page=PAGE):
    """Steps under quest over a view, and over a cache that holds the same: the outputs and pages of each."""
    view, random = engine.view(), numpy.random.default_rng(3)
    cache = tamis.Cache(context, n_layers=LAYERS, n_heads=HEADS, n_kv_heads=KV, head_dim=DIM, dtype="f32",
                        capacity_tokens=PAGES * page, page_size=page)
    select = tamis.Quest(budget=3 * page, sinks=page, recent=1)
    plan, own = (of.plan(select=select, max_context=PAGES * page, max_sequences=2, max_rows=256, reads=True)
                 for of in (view, cache))
    sequences = [cache.add() for _ in range(2)]
    for _ in sequences:
        engine.add()
    for rows, exact in (([7 * page + 3, 5 * page], True), *[([1, 1], False)] * 4):
        for sequence in range(2):
            engine.grow(sequence, rows[sequence])
        if csr:
            indptr = numpy.cumsum([0, *map(len, engine.tables)])
            last = [(length - 1) % page + 1 for length in engine.lengths]
            step = view.step_csr(plan, indptr, sum(engine.tables, []), last, rows, exact=exact)
        else:
            step = view.step(plan, engine.tables, engine.lengths, rows, exact=exact)
        with step, own.step(sequences, rows, exact=exact) as other:
            for layer in range(LAYERS):
                drawn = [draw(random, n) for n in rows]
                k, v, q = (context.array(numpy.concatenate(parts)) for parts in zip(*drawn))
                for sequence in range(2):
                    engine.write(layer, sequence, *drawn[sequence][:2])
                other.write(layer, k, v)
                outs = [context.empty(q.shape) for _ in range(2)]
                step.attend(layer, q, outs[0])
                other.attend(layer, q, outs[1])
                yield outs[0].read(), outs[1].read()
        if not exact:
            assert numpy.array_equal(plan.read(), own.read())
            assert 0 < plan.read().sum() < LAYERS * KV * sum(map(len, engine.tables))
    # A page of a view is one of all KV heads.
    counters = dataclasses.replace(plan.counters, pages_bounded=KV * plan.counters.pages_bounded)
    assert counters == own.counters
    assert counters.rows_selected == 2 * 4 * LAYERS and counters.pages_bounded > 0


@pytest.mark.parametrize("csr", [False, True])
@pytest.mark.parametrize("layout, lay", [("nhd", "apart"), ("hnd", "pairs")])
def test_quest_reads_what_it_reads_of_a_cache(layout, lay, csr):
    context = tamis.Context("reference")
    for out, own in beside_a_cache(context, Engine(context, layout, lay), csr):
        assert numpy.array_equal(out, own)


def test_a_view_on_opencl():
    context = tamis.Context("opencl")
    for out, own in beside_a_cache(context, Engine(context)):
        assert abs(out - own).max() < 1e-5


def test_pages_that_the_engine_has_loaded():
    """Bounds of pages that no step has filled are computed when they are asked for."""
    context, random = tamis.Context("reference"), numpy.random.default_rng(4)
    engine = Engine(context)
    view = engine.view()
    plan = view.plan(select=tamis.Quest(budget=2 * PAGE, sinks=0, recent=1), max_context=256, reads=True)
    engine.add()
    engine.grow(0, 6 * PAGE)
    k, v, _ = draw(random, 6 * PAGE)
    k[4 * PAGE:5 * PAGE] *= 100
    for layer in range(LAYERS):
        engine.write(layer, 0, k, v)
    view.bound_pages(engine.tables[0])
    engine.grow(0, 1)
    k, v, q = draw(random, 1)
    with view.step(plan, numpy.array(engine.tables, numpy.int32), engine.lengths) as step:
        for layer in range(LAYERS):
            engine.write(layer, 0, k, v)
            step.attend(layer, context.array(q), context.empty(q.shape))
    assert plan.read(0)[:, :, 4].all() and plan.read(0).sum() == LAYERS * KV * 2
    with pytest.raises(tamis.ArgumentError, match=str(PAGES)):
        view.bound_pages([0, PAGES])


def test_a_step_is_given_up():
    context = tamis.Context("reference")
    engine = Engine(context)
    view = engine.view()
    plan = view.plan(max_context=64)
    with pytest.raises(ZeroDivisionError):
        with view.step(plan, [[0]], [1]) as step:
            with pytest.raises(tamis.StateError, match="open"):
                view.bound_pages([1])
            with pytest.raises(tamis.UnsupportedError):
                step.write(0, *(context.empty((1, KV, DIM)) for _ in range(2)))
            1 / 0
    assert not step.open
    view.bound_pages([1])


@pytest.mark.parametrize("begin, says", [
    (lambda view, plan: view.step(plan, [[0, PAGES]], [20]), rf"sequence 0.*{PAGES}"),
    (lambda view, plan: view.step(plan, [[0, 1], [2]], [20, 20]), "sequence 1.*-1"),
    (lambda view, plan: view.step(plan, [[0]], [17]), "17"),
    (lambda view, plan: view.step(plan, [[0, 1]], [1], 2), "sequence 0"),
    (lambda view, plan: view.step(plan, [[0], [1]], [1]), "1 lengths for 2 lists"),
    (lambda view, plan: view.step(plan, [[0], [1]], [1, 1], [1]), "1 numbers of rows for 2"),
    (lambda view, plan: view.step(plan, [[0]], [-1]), "lengths: entry 0 is -1"),
    (lambda view, plan: view.step(plan, [[0.5]], [1]), "pages of sequence 0.*float64"),
    (lambda view, plan: view.step_csr(plan, [0, 2], [1], [1]), "indptr from 0 to 2 with 1 indices"),
    (lambda view, plan: view.step_csr(plan, [0], [1], [1]), "indptr of 1 entries for 1"),
    (lambda view, plan: view.step_csr(plan, [0, 1], [1], [PAGE + 1]), "sequence 0.*17"),
    (lambda view, plan: view.step(Engine(view.context).view().plan(max_context=64), [[0]], [1]),
     "no plan over this view"),
])
def test_steps_that_are_none(begin, says):
    view = Engine(tamis.Context("reference")).view()
    plan = view.plan(max_context=64, max_sequences=2)
    with pytest.raises(tamis.ArgumentError, match=says):
        begin(view, plan)
    with view.step(plan, [[0]], [1]) as step:  # no step is open
        step.cancel()


def test_views_that_are_none():
    context = tamis.Context("reference")
    k = context.empty((PAGES, PAGE, KV, DIM))
    for layers, says in (([], "without layers"), ([(k, numpy.zeros(k.shape))], "v of layer 0 is a ndarray"),
                         ([(k, k), (k, context.empty((PAGES, PAGE, KV, 32)))], r"v of layer 1 is .*32"),
                         ([(k, context.empty(k.shape, "f16"))], "of f16"),
                         ([(context.empty(k.shape, "i32"),) * 2], "i32"),
                         ([(context.empty((PAGES, PAGE, DIM)),) * 2], "4 dimensions")):
        with pytest.raises(tamis.ArgumentError, match=says):
            tamis.View(context, layers, n_heads=HEADS)
    with pytest.raises(tamis.UnsupportedError, match="layer 0.*12"):
        tamis.View(context, [(context.empty((PAGES, 12, KV, DIM)),) * 2], n_heads=HEADS)
    with pytest.raises(tamis.ArgumentError, match="layout 'dnh'"):
        tamis.View(context, [(k, k)], n_heads=HEADS, layout="dnh")
    view = Engine(context).view()
    with pytest.raises(tamis.UnsupportedError, match="view"):
        view.add()
    with pytest.raises(tamis.UnsupportedError):
        view.plan(max_context=64, evict=tamis.Streaming())


def test_a_view_keeps_its_arrays_alive():
    context = tamis.Context("reference")
    engine = Engine(context)
    plan, host = engine.view().plan(max_context=64), engine.host
    view = plan.cache
    del engine
    for k, v in host:
        k[3, 0], v[3, 0] = 1, 2
    q, out = context.array(numpy.ones((1, HEADS, DIM), "f4")), context.empty((1, HEADS, DIM))
    with view.step(plan, [[3]], [1]) as step:
        for layer in range(LAYERS):
            step.attend(layer, q, out)
            assert (out.read() == 2).all()
