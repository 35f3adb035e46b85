# SPDX-License-Identifier: Apache-2.0
"""Blends, by a model's runner and by an engine in Python: what computes all rows is a prefill, stored chunks
are loaded, and what an engine raises ends the prompt. And trials of blends."""
import gc
import weakref

import numpy
import pytest

import tamis
import tiny

TEXT = numpy.random.default_rng(7).integers(0, tiny.TOKENS, 80).astype(numpy.int32)
CHUNKS = TEXT[10:40], TEXT[40:70]
PROMPT = [tamis.Part(TEXT[:10]), tamis.Part(CHUNKS[0], "chunk"), tamis.Part(CHUNKS[1], "chunk"),
          tamis.Part(TEXT[70:])]


def same(a, b):
    """Both sequences hold the same bits."""
    assert len(a) == len(b)
    for layer in range(a.cache.n_layers):
        for head in range(a.cache.n_kv_heads):
            for x, y in zip(a.read(layer, head), b.read(layer, head)):
                assert numpy.array_equal(x, y)


# ---- By a model's runner --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    return tiny.Model(tamis.Context("reference"))


class Rig:
    """A runner, a store that has both chunks, and a sequence after a prefill of the prompt."""

    def __init__(self, model, **flags):
        self.cache = model.cache(dtype="f32")
        self.runner = tiny.Runner(model, self.cache, **flags)
        self.store = tamis.Store(memory_bytes=1 << 24)
        for chunk in CHUNKS:
            tamis.record(self.runner, self.store, chunk)
        self.whole = self.cache.add()
        self.next = self.runner.prefill(self.whole, TEXT)

    def run(self, parts=PROMPT, **params):
        """A blend that has run the prompt, and its sequence."""
        blend, sequence = tamis.Blend(self.runner, self.store, **params), self.cache.add()
        self.answer = blend.run(sequence, parts)
        return blend, sequence


@pytest.fixture(scope="module")
def rig(model):
    return Rig(model)


@pytest.mark.parametrize("params", [{"selector": "all"}, {"share": 1}, {"share": 1, "thread": False}])
def test_what_computes_all_rows_is_a_prefill(rig, params):
    blend, sequence = rig.run(**params)
    same(sequence, rig.whole)
    assert rig.answer == rig.next
    assert blend.stats.tokens_fresh == len(TEXT) and blend.stats.bytes_read == 0


@pytest.mark.parametrize("thread", [True, False])
def test_hits_are_loaded(rig, thread):
    blend, sequence = rig.run(selector="none", check_layer=None, thread=thread)
    stats = blend.stats
    assert (stats.prompts, stats.parts_found, stats.parts_missed) == (1, 2, 0)
    assert (stats.tokens_hit, stats.tokens_fresh, stats.tokens_selected) == (60, 20, 0)
    id = tamis.record_id(rig.runner.model, CHUNKS[0], cache_dtype="f32")
    with rig.store.get(id) as chunk:
        for layer in range(2):
            assert numpy.array_equal(sequence.read(layer, 0, 10, 30)[1], chunk.read(layer)[1][:, 0])
    assert not numpy.array_equal(sequence.read(1, 0)[1], rig.whole.read(1, 0)[1])
    layers = [blend.layer_stats(layer) for layer in range(2)]
    assert [layer.rows_computed for layer in layers] == [20, 20]
    assert sum(layer.bytes_read for layer in layers) == stats.bytes_read > 0
    with pytest.raises(tamis.ArgumentError, match="2"):
        blend.layer_stats(2)


def test_a_share_of_the_hits_is_computed(rig):
    blend, _ = rig.run(share=0.2, schedule="flat", check_layer=1, timing=True)
    assert blend.stats.tokens_selected == 12
    assert [blend.layer_stats(layer).rows_attended for layer in range(2)] == [80, 32]
    blend, _ = rig.run(shares=[0.5])
    assert blend.stats.tokens_selected == 30
    blend, _ = rig.run(share=0.2, schedule="flat", most=5)
    assert blend.stats.tokens_selected == 5
    blend, _ = rig.run(selector="list", rows=[11, 12, 50], check_layer=None)
    assert blend.stats.tokens_selected == 3
    blend, _ = rig.run(selector="first", first=4, check_layer=None)
    assert blend.stats.tokens_selected == 8
    costs = blend.costs()
    assert (costs.hits, costs.fresh, costs.exact) == (60, 20, 0) and costs.compute_us > 0
    assert 0.15 <= tamis.share_of(costs) <= 1


def test_the_gate_computes_all(rig):
    blend, sequence = rig.run(share=0.1, bound=1e-6)
    assert blend.stats.gated == 1 and blend.stats.left > 1e-6
    same(sequence, rig.whole)


def test_the_question_selects(model):
    rig = Rig(model, row_masses=True)
    blend, _ = rig.run(selector="question", share=0.1, schedule="flat")
    assert blend.stats.asked == 1 and blend.stats.tokens_selected == 6


def test_other_records_are_missed(rig):
    for params in ({"salt": b"another's secret"}, {"fingerprint": bytes(16)}, {"dtype": "bf16"},
                   {"sink": [1]}):
        blend, sequence = rig.run(selector="none", **params)
        assert blend.stats.parts_missed == 2
        same(sequence, rig.whole)


def test_a_prefix_is_exact(rig):
    tamis.record_prefix(rig.runner, rig.store, TEXT[:50], 16)
    blend, sequence = rig.run([tamis.Part(TEXT, "prefix")], page_tokens=16)
    assert blend.stats.tokens_exact == 48
    same(sequence, rig.whole)
    assert rig.answer == rig.next


def test_a_chunk_that_is_damaged_is_computed(model, tmp_path):
    cache = model.cache(dtype="f32")
    runner = tiny.Runner(model, cache)
    with tamis.Store(folder=tmp_path) as store:
        tamis.record(runner, store, CHUNKS[0])
        file, = tmp_path.glob("*.kv")
        content = bytearray(file.read_bytes())
        content[-5000] ^= 1
        file.write_bytes(content)
        blend = tamis.Blend(runner, store, selector="none", check_layer=None)
        sequence, whole = cache.add(), cache.add()
        blend.run(sequence, PROMPT)
        runner.prefill(whole, TEXT)
        stats = blend.stats
        assert (stats.parts_found, stats.parts_damaged, stats.parts_missed, stats.restarts) == (1, 1, 1, 1)
        same(sequence, whole)


def test_a_blend_keeps_what_it_needs(model):
    rig = Rig(model)
    blend, cache, whole = tamis.Blend(rig.runner, rig.store, selector="all"), rig.cache, rig.whole
    del rig
    gc.collect()
    sequence = cache.add()
    blend.run(sequence, PROMPT)
    same(sequence, whole)
    blend.store.close()
    with pytest.raises(tamis.StateError):
        blend.run(cache.add(), PROMPT)
    blend.close()
    with pytest.raises(tamis.StateError, match="closed"):
        blend.stats


def test_blends_that_are_none(rig):
    for params, says in (({"selector": "best"}, "selector is 'best': known are hkvd"),
                         ({"schedule": "rising"}, "schedule is 'rising'"), ({"share": 0}, "share is 0"),
                         ({"share": 1.5}, "1.5"), ({"check_layer": 0}, "check_layer is 0"),
                         ({"check_layer": -1}, "check_layer is -1"), ({"check_layer": 2}, "check_layer is 2"),
                         ({"check_layer": None}, "hkvd"), ({"dtype": "f16"}, "f16|load_dtypes"),
                         ({"dtype": "q8"}, "'q8'"), ({"selector": "question"}, "ROW_MASSES|row masses"),
                         ({"salt": b"short"}, "salt is b'short'"), ({"rows": [-1]}, "rows: entry 0 is -1"),
                         ({"shares": [0.1, 0.05]}, "n_shares is 2"),
                         ({"page_tokens": -1}, "page_tokens is -1"),
                         ({"eps": 1e-5}, "eps"), ({"k_norms": []}, "0 k_norms for 2 layers")):
        with pytest.raises(tamis.ArgumentError, match=says):
            tamis.Blend(rig.runner, rig.store, **params)


def test_prompts_that_are_none(rig):
    blend, sequence = tamis.Blend(rig.runner, rig.store), rig.cache.add()
    for parts, says in (([], "tokens"), ([tamis.Part([1, 5000])], "5000"), ([tamis.Part([1.5])], "float64"),
                        ([tamis.Part([1], "found")], "stored is 'found'"),
                        ([tamis.Part([1]), tamis.Part(TEXT, "prefix")], "prefix"),
                        ([tamis.Part([1] * 257)], "257")):
        with pytest.raises(tamis.ArgumentError, match=says):
            blend.run(sequence, parts)
    with pytest.raises(tamis.StateError, match="no prompt"):
        blend.costs()
    with pytest.raises(tamis.StateError, match="no prompt"):
        blend.step
    with pytest.raises(tamis.ArgumentError, match="takes no engine"):
        blend.run(sequence, PROMPT, object())
    assert len(sequence) == 0


def test_a_blend_on_opencl():
    model = tiny.Model(tamis.Context("opencl"))
    rig = Rig(model)
    _, sequence = rig.run(selector="all")
    same(sequence, rig.whole)
    blend, _ = rig.run(selector="none", check_layer=None)
    assert blend.stats.tokens_hit == 60


# ---- By an engine in Python -----------------------------------------------------------------------

LAYERS, HEADS, KV, DIM, WIDTH = 2, 4, 2, 64, 48
MODEL = b"an engine's own "


class Engine:
    """A model of two layers in NumPy, whose K, V and attention are a plan's."""

    def __init__(self, context):
        random = numpy.random.default_rng(11)
        draw = lambda *shape: random.standard_normal(shape).astype("f4") / shape[-1] ** 0.5
        self.context = context
        self.embeddings = draw(tiny.TOKENS, WIDTH) * 4
        self.weights = [[draw(n * DIM, WIDTH) for n in (HEADS, KV, KV)] + [draw(WIDTH, HEADS * DIM)]
                        for _ in range(LAYERS)]
        self.rotation = tamis.Rotation.of_base(context, 10000, DIM)
        self.calls = []

    def begin(self, tokens, first=0):
        self.tokens, self.first = numpy.asarray(tokens), first

    def _array(self, rows):
        return self.context.array(numpy.ascontiguousarray(rows.reshape(len(rows), -1, DIM)))

    def project(self, layer, rows):
        self.calls.append(("project", layer, len(rows)))
        if layer == 0:
            self.hidden = self.embeddings[self.tokens[rows]]
        self.rows = rows
        # Row by row, so that a row's bits do not depend on the others.
        products = [numpy.stack([w @ row for row in self.hidden]) for w in self.weights[layer][:3]]
        self.q, self.k, self.v = map(self._array, products)
        return self.v

    def write(self, layer):
        positions = self.context.array((self.first + self.rows).astype(numpy.int32))
        self.step.write_rotated(layer, self.q, self.k, self.v, self.rotation, positions)

    def keep(self, layer, rows, places):
        self.calls.append(("keep", layer, len(rows)))
        if places is not None:
            assert numpy.array_equal(self.rows[places], rows)
            self.q = self.context.array(self.q.read()[places])
            self.hidden = self.hidden[places]
        return self.q

    def finish(self, layer, n):
        out = self.context.empty((n, HEADS, DIM))
        self.step.attend(layer, self.q, out)
        added = [self.weights[layer][3] @ row for row in out.read().reshape(n, -1)]
        self.hidden = numpy.tanh(self.hidden + numpy.stack(added))

    @property
    def step(self):
        return self.own if self.own is not None else self.blend.step

    own = None

    def prefill(self, plan, sequence, tokens):
        """Without a blend; answers K before its rotation, and V, by layer."""
        self.begin(tokens)
        planes = [], []
        with plan.step(sequence, len(tokens), exact=True) as self.own:
            for layer in range(LAYERS):
                self.project(layer, numpy.arange(len(tokens)))
                for plane, array in zip(planes, (self.k, self.v)):
                    plane.append(array.read())
                self.write(layer)
                self.finish(layer, len(tokens))
        self.own = None
        return planes


class EngineRig:
    """A plan, an engine, and a store that has both chunks; the prompt after a prefill."""

    def __init__(self):
        self.context = tamis.Context("reference")
        self.cache = tamis.Cache(self.context, n_layers=LAYERS, n_heads=HEADS, n_kv_heads=KV, head_dim=DIM,
                                 capacity_tokens=2048, dtype="f32")
        self.plan = self.cache.plan(max_context=256, max_rows=256, load_dtypes=["f32"], row_masses=True)
        self.engine, self.store = Engine(self.context), tamis.Store(memory_bytes=1 << 24)
        for chunk in CHUNKS:
            id = tamis.ChunkId(chunk, MODEL, tamis.ChunkShape.of(self.cache))
            self.store.put(id, *self.engine.prefill(self.plan, self.cache.add(), chunk))
        self.whole = self.cache.add()
        self.engine.prefill(self.plan, self.whole, TEXT)
        self.hidden = self.engine.hidden
        self.engine.calls.clear()

    def blend(self, **params):
        blend = tamis.Blend(self.plan, self.store, fingerprint=MODEL, rotation=self.engine.rotation, **params)
        self.engine.blend = blend
        self.engine.begin(TEXT)
        return blend


@pytest.fixture()
def own():
    return EngineRig()


def test_an_engine_that_computes_all_is_a_prefill(own):
    sequence = own.cache.add()
    blend = own.blend(selector="all")
    assert blend.run(sequence, PROMPT, own.engine) is None
    same(sequence, own.whole)
    assert numpy.array_equal(own.engine.hidden, own.hidden)
    assert own.engine.calls == [(name, layer, 80) for layer in range(LAYERS) for name in ("project", "keep")]


def test_an_engine_computes_the_rows_that_it_is_told(own):
    blend = own.blend(share=0.5, schedule="flat")
    blend.run(own.cache.add(), PROMPT, own.engine)
    assert blend.stats.tokens_selected == 30
    assert own.engine.calls == [("project", 0, 80), ("keep", 0, 80), ("project", 1, 80), ("keep", 1, 50)]
    # The last layer is the check layer, in which K and V of all rows are computed.
    assert numpy.array_equal(own.engine.hidden[-10:], own.hidden[-10:])
    own.engine.calls.clear()
    blend = own.blend(selector="first", first=3, check_layer=None)
    blend.run(own.cache.add(), PROMPT, own.engine)
    assert own.engine.calls == [(name, layer, 26) for layer in range(LAYERS) for name in ("project", "keep")]
    apart = abs(own.engine.hidden[-10:] - own.hidden[-10:]).max()
    assert 0 < apart < 0.5


def test_an_engine_loads_what_is_exact(own):
    parts = [tamis.Part(CHUNKS[0], "chunk"), tamis.Part(TEXT[70:])]
    tokens, sequence, whole = numpy.concatenate([CHUNKS[0], TEXT[70:]]), own.cache.add(), own.cache.add()
    own.engine.prefill(own.plan, whole, tokens)
    hidden = own.engine.hidden[-10:]
    blend = own.blend(selector="none")
    own.engine.begin(tokens)
    own.engine.calls.clear()
    blend.run(sequence, parts, own.engine)
    assert blend.stats.tokens_exact == 30 and own.engine.calls[0] == ("project", 0, 10)
    same(sequence, whole)
    assert numpy.array_equal(own.engine.hidden, hidden)


def test_an_engine_is_asked(own):
    blend = own.blend(selector="question", share=0.1, schedule="flat")
    blend.run(own.cache.add(), PROMPT, own.engine)
    assert blend.stats.asked == 1 and blend.stats.tokens_selected == 6
    assert [call for call in own.engine.calls if call[:2] == ("project", 0)] == [("project", 0, 20),
                                                                                  ("project", 0, 80)]


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("name", ["project", "write", "keep", "finish"])
def test_what_an_engine_raises_travels(own, name, layer):
    blend, sequence = own.blend(selector="all"), own.cache.add()

    class Reason(Exception):
        pass

    call = getattr(own.engine, name)

    def fails(at, *rest):
        if at == layer:
            raise Reason(name)
        return call(at, *rest)

    setattr(own.engine, name, fails)
    with pytest.raises(Reason, match=name):
        blend.run(sequence, PROMPT, own.engine)
    assert len(sequence) == 0
    with pytest.raises(tamis.StateError, match="no prompt"):
        blend.step
    setattr(own.engine, name, call)
    blend.run(sequence, PROMPT, own.engine)
    same(sequence, own.whole)


def test_an_engine_that_answers_no_array(own):
    blend, sequence = own.blend(), own.cache.add()
    own.engine.project = lambda layer, rows: numpy.zeros((len(rows), KV, DIM), "f4")
    with pytest.raises(tamis.ArgumentError, match="ndarray is no array of tamis"):
        blend.run(sequence, PROMPT, own.engine)
    own.engine.project = lambda layer, rows: own.context.empty((len(rows), KV, DIM), "f16")
    with pytest.raises(tamis.ArgumentError, match="f16|dtype"):
        blend.run(sequence, PROMPT, own.engine)
    del own.engine.project
    with pytest.raises(tamis.ArgumentError, match="takes one"):
        blend.run(sequence, PROMPT)


def test_an_engine_may_not_run_its_blend(own):
    blend, sequence, call = own.blend(selector="all"), own.cache.add(), own.engine.finish

    def again(layer, n):
        with pytest.raises(tamis.StateError):
            blend.run(own.cache.add(), PROMPT, own.engine)
        with pytest.raises(tamis.StateError, match="inside a callback"):
            blend.close()
        call(layer, n)

    own.engine.finish = again
    blend.run(sequence, PROMPT, own.engine)
    same(sequence, own.whole)


def test_what_an_engine_forgets_is_freed_while_the_prompt_runs(own):
    blend, call, left = own.blend(selector="all"), own.engine.finish, []

    def finish(layer, n):
        memory = tamis.empty((n, DIM))
        left.append(weakref.ref(memory.base.base if memory.base.base is not None else memory.base))
        array = own.context.wrap(memory)
        del memory, array
        call(layer, n)
        own.context.empty(1)
        assert left[-1]() is None

    own.engine.finish = finish
    blend.run(own.cache.add(), PROMPT, own.engine)
    assert len(left) == LAYERS


def test_a_plan_needs_a_fingerprint(own):
    with pytest.raises(tamis.ArgumentError, match="fingerprint"):
        tamis.Blend(own.plan, own.store)


# ---- The controller -------------------------------------------------------------------------------


def test_shares():
    assert tamis.share_of(tamis.BlendCosts(3, 10)) == 0.3
    assert tamis.share_of(tamis.BlendCosts(1, 10)) == 0.15
    assert tamis.share_of(tamis.BlendCosts(1, 10, least=0.05)) == 0.1
    assert tamis.share_of(tamis.BlendCosts(30, 10)) == 1
    assert tamis.share_of(tamis.BlendCosts(6, 10, hits=100, fresh=20)) == pytest.approx(0.4)
    with pytest.raises(tamis.ArgumentError, match="compute_us"):
        tamis.share_of(tamis.BlendCosts(1, 0))
    with pytest.raises(tamis.ArgumentError, match="hits is -1"):
        tamis.share_of(tamis.BlendCosts(1, 1, hits=-1))


def test_the_cheapest_tier_whose_loading_is_hidden():
    tiers = [tamis.BlendTier(1, 10), tamis.BlendTier(3, 5), tamis.BlendTier(9, 1)]
    costs = tamis.BlendCosts(0, 10)
    assert tamis.choose_tier(costs, 0.3, tiers) == (1, True)
    assert tamis.choose_tier(costs, 1, tiers) == (2, True)
    assert tamis.choose_tier(costs, 0.05, tiers) == (0, False)
    with pytest.raises(tamis.ArgumentError, match="tiers"):
        tamis.choose_tier(costs, 0.3, [])


# ---- Trials ---------------------------------------------------------------------------------------


def trial(fingerprint, passed=(False, True, True), **fields):
    figures = tuple(tamis.TrialFigures(share, 0.25, 0.5, 0.125, 0.01, 0.1, 0.9, 0.2, ok)
                    for share, ok in zip((0.05, 0.15, 0.5), passed))
    values = dict(fingerprint=fingerprint, model="tiny, of é", selector="hkvd", schedule="falling",
                  check_layer=1, cache_dtype="f32", dtype="f32", n_sink=0, prompts=8, chunks=6,
                  chunk_tokens=512, answer_tokens=16, seed=2 ** 64 - 1, max_kl=0.05, min_agreement=0.9,
                  figures=figures)
    return tamis.Trial(**{**values, **fields})


def test_trials_are_written_and_read(tmp_path):
    path = tmp_path / "deep" / "blend.trials"
    assert tamis.read_trials(path) == []
    written = [trial(MODEL), trial(MODEL, check_layer=None, selector="random", figures=())]
    for each in written:
        tamis.write_trial(each, path)
    assert tamis.read_trials(path) == written
    assert [each.share for each in written] == [0.15, 0]
    assert trial(MODEL, (True, False, True)).share == 0.5
    tamis.write_trial(trial(MODEL, (True,) * 3), path)
    assert [each.share for each in tamis.read_trials(path)] == [0.05, 0]
    path.write_bytes(path.read_bytes().replace(b"0.05", b"0.06", 1))
    with pytest.raises(tamis.DamagedError, match="blend.trials"):
        tamis.read_trials(path)


def test_trials_that_are_none(tmp_path):
    path = tmp_path / "blend.trials"
    for fields, says in (({"selector": "first"}, "first"), ({"selector": "best"}, "'best'"),
                         ({"model": "é" * 64}, "128 bytes, and 127"), ({"check_layer": 0}, "check_layer"),
                         ({"prompts": -1}, "prompts is -1"), ({"fingerprint": b""}, "fingerprint"),
                         ({"figures": trial(MODEL).figures * 6}, "18 figures: an entry holds 16")):
        with pytest.raises(tamis.ArgumentError, match=says):
            tamis.write_trial(trial(**{"fingerprint": MODEL, **fields}), path)
    assert not path.exists()
    path.write_text("no trials\n")
    with pytest.raises(tamis.FormatError, match="blend.trials"):
        tamis.read_trials(path)


def test_the_gate_of_trials(rig, own, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert tamis.trial_path() == tmp_path / "tamis" / "blend.trials"
    blend = own.blend(share=0.15)
    with pytest.raises(tamis.StateError, match=f"no entry for model {MODEL.hex()}"):
        tamis.trial_passed(blend)
    tamis.write_trial(trial(MODEL))
    assert tamis.trial_passed(blend) == trial(MODEL)
    with pytest.raises(tamis.StateError, match="0.1"):
        tamis.trial_passed(own.blend(share=0.1))
    with pytest.raises(tamis.StateError):
        tamis.trial_passed(tamis.Blend(rig.runner, rig.store))  # another model
    assert tamis.trial_passed(own.blend(share=1)) is None
    with pytest.raises(tamis.UnsupportedError, match="none"):
        tamis.trial_passed(own.blend(selector="none"))
