# SPDX-License-Identifier: Apache-2.0
"""The store: what is put is found as it was, in all tiers, by any thread; what is damaged is not; and chunks
that a model's runner records."""
import itertools
import threading

import numpy
import pytest

import tamis
import tiny

SHAPE = tamis.ChunkShape(n_layers=2, n_kv_heads=2, head_dim=8, dtype="f32", cache_dtype="f16")
MODEL = b"a model of tests"
DTYPES = {"f32": numpy.float32, "f16": numpy.float16, "bf16": numpy.uint16}


def planes(id, seed=0):
    """K and V by layer, which follow from a seed."""
    random = numpy.random.default_rng(seed)
    shape = len(id.tokens), id.shape.n_kv_heads, id.shape.head_dim
    draw = lambda: (1000 * random.random(shape)).astype(DTYPES[id.shape.dtype])
    return [[draw() for _ in range(id.shape.n_layers)] for _ in range(2)]


def chunk_id(tokens=(3, 1, 4), shape=SHAPE, **fields):
    return tamis.ChunkId(tokens, MODEL, shape, **fields)


def same(chunk, k, v):
    for layer in range(len(k)):
        found = chunk.read(layer)
        assert numpy.array_equal(found[0], k[layer]) and numpy.array_equal(found[1], v[layer])
        assert found[0].dtype == k[layer].dtype


# ---- Ids ------------------------------------------------------------------------------------------


def test_an_id_is_what_it_holds():
    a = chunk_id(numpy.int32([3, 1, 4]))
    assert a == chunk_id([3, 1, 4]) and hash(a) == hash(chunk_id([3, 1, 4]))
    assert a.tokens == (3, 1, 4) and len(a.key) == 16
    others = [chunk_id([3, 1]), chunk_id(salt=b"another's secret"), chunk_id(parent=bytes(15) + b"p"),
              chunk_id(shape=tamis.ChunkShape(2, 2, 8, "f32", "bf16")),
              chunk_id(shape=tamis.ChunkShape(2, 2, 8, "f16", "f16"))]
    assert len({id.key for id in [a, *others]}) == 6


@pytest.mark.parametrize("make, says", [
    (lambda: chunk_id([1, 2 ** 31]), "entry 1 is 2147483648"),
    (lambda: chunk_id([1.5, 2]), "float64"),
    (lambda: chunk_id([[1, 2]]), r"\(1, 2\)"),
    (lambda: chunk_id([]).key, "0 tokens"),
    (lambda: chunk_id(salt=b"short").key, "salt is b'short'"),
    (lambda: tamis.ChunkId([1], bytes(15), SHAPE).key, "fingerprint"),
    (lambda: chunk_id(shape=tamis.ChunkShape(2, 2, 8, "f64", "f16")).key, "f64"),
    (lambda: chunk_id(shape=tamis.ChunkShape(-1, 2, 8, "f32", "f16")).key, "n_layers is -1"),
    (lambda: chunk_id(shape=tamis.ChunkShape(0, 2, 8, "f32", "f16")).key, "n_layers"),
    (lambda: chunk_id().prefix_keys(0), "pages of 0 tokens"),
    (lambda: chunk_id().prefix_keys(-1), "page_tokens is -1"),
])
def test_ids_that_are_none(make, says):
    with pytest.raises(tamis.ArgumentError, match=says):
        make()


def test_bytes_of_a_shape():
    assert SHAPE.plane_bytes(3) == 3 * 2 * 8 * 4
    assert SHAPE.record_bytes(3) > 4 * SHAPE.plane_bytes(3)
    assert tamis.ChunkShape(0, 2, 8, "f32", "f16").record_bytes(3) == 0


def test_a_sink_makes_another_fingerprint():
    assert tamis.fingerprint_extend(MODEL, []) == MODEL
    assert len({tamis.fingerprint_extend(MODEL, sink) for sink in ([], [1], [2], [1, 2])}) == 4


# ---- Putting and finding --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_put_is_found(tmp_path, dtype):
    id = chunk_id(range(5), tamis.ChunkShape(2, 2, 8, dtype, "f16"))
    k, v = planes(id)
    with tamis.Store(memory_bytes=1 << 20, folder=tmp_path / "chunks") as store:
        assert store.get(id) is None
        store.put(id, k, v)
        with store.get(id) as chunk:
            same(chunk, k, v)
            info = chunk.info
        assert chunk.closed
        assert (info.tokens, info.shape, info.key, info.fingerprint) == (id.tokens, id.shape, id.key, MODEL)
        assert info.tiers == ("memory",) and not info.damaged
        assert info.record_bytes == id.shape.record_bytes(5)
        assert store.stats.tiers.keys() == {"memory", "disk"}
    with tamis.Store(folder=tmp_path / "chunks") as store:  # another process would find it as well
        with store.get(id) as chunk:
            same(chunk, k, v)
            assert chunk.info.tiers == ("disk",)
        stats = store.stats
        assert (stats.hits, stats.misses, stats.tiers["disk"].records) == (1, 0, 1)
        assert stats.tiers["disk"].limit is None


def test_a_list_and_removing():
    store, ids = tamis.Store(memory_bytes=1 << 20), [chunk_id([i]) for i in range(5)]
    for id in ids:
        store.put(id, *planes(id))
    held = store.get(ids[0])
    listed = {info.key: info for info in store.list()}
    assert listed.keys() == {id.key for id in ids}
    assert listed[ids[0].key].pins == 1 and listed[ids[1].key].pins == 0
    assert listed[ids[0].key].tokens is None and listed[ids[0].key].last_used > 1e18
    assert store.remove(ids[0]) and not store.remove(ids[0])
    assert store.remove(ids[1].key) and store.get(ids[1]) is None
    same(held, *planes(ids[0]))  # who holds it goes on
    held.close()
    assert len(store.list()) == 3
    with pytest.raises(tamis.ArgumentError, match="key is b'12'"):
        store.remove(b"12")


def test_tiers_are_named(tmp_path):
    id = chunk_id()
    with tamis.Store(memory_bytes=1 << 20, folder=tmp_path) as store:
        store.put(id, *planes(id), tiers=["memory"])
        assert not list(tmp_path.glob("*.kv"))
        store.put(id, *planes(id), tiers=["disk"])
        assert len(list(tmp_path.glob("*.kv"))) == 1
        with pytest.raises(tamis.ArgumentError, match="'tape': known are memory, disk"):
            store.put(id, *planes(id), tiers=["tape"])
        with pytest.raises(tamis.ArgumentError, match="redis"):
            store.put(id, *planes(id), tiers=["redis"])


def test_a_full_store():
    id = chunk_id(range(100))
    with tamis.Store(memory_bytes=id.shape.record_bytes(100) - 1) as store:
        with pytest.raises(tamis.FullError, match="record"):
            store.put(id, *planes(id))
        small = chunk_id([1])
        store.put(small, *planes(small))
        assert len(store.list()) == 1


def test_the_least_recently_used_goes():
    ids = [chunk_id([i]) for i in range(3)]
    with tamis.Store(memory_bytes=2 * SHAPE.record_bytes(1)) as store:
        for id in ids[:2]:
            store.put(id, *planes(id))
        store.get(ids[0]).close()
        store.put(ids[2], *planes(ids[2]))
        assert [store.get(id) is not None for id in ids] == [True, False, True]
        assert store.stats.tiers["memory"].evicted == 1


@pytest.mark.parametrize("change, says", [
    (lambda k, v: (k[:1], v), "k of 1 layers for a chunk of 2"),
    (lambda k, v: (k, [v[0], v[1].astype("f8")]), "v of layer 1 is of float64"),
    (lambda k, v: (k, [v[0], v[1].tolist()]), "v of layer 1 is of list"),
    (lambda k, v: ([k[0][:2], k[1]], v),
     r"k of layer 0 has the shape \(2, 2, 8\): the chunk has \(3, 2, 8\)"),
    (lambda k, v: (k, [v[0].repeat(2, 0)[::2], v[1]]), "v of layer 0 has strides"),
])
def test_planes_that_do_not_fit(change, says):
    id = chunk_id()
    with tamis.Store(memory_bytes=1 << 20) as store:
        with pytest.raises(tamis.ArgumentError, match=says):
            store.put(id, *change(*planes(id)))
        assert store.list() == []


def test_stores_that_are_none(tmp_path):
    for make, says in ((lambda: tamis.Store(), "without a tier"),
                       (lambda: tamis.Store(1 << 20, disk_bytes=5), "disk"),
                       (lambda: tamis.Store(memory_bytes=-1), "memory_bytes is -1"),
                       (lambda: tamis.Store(redis="no port:x"), "redis")):
        with pytest.raises(tamis.ArgumentError, match=says):
            make()
    with pytest.raises(tamis.FileError, match="none"):
        tamis.Store(folder=tmp_path / "none" / "deep")


def test_a_server_that_is_not_there_is_passed_over():
    id = chunk_id()
    with tamis.Store(memory_bytes=1 << 20, redis="127.0.0.1:1", redis_timeout_ms=200) as store:
        store.put(id, *planes(id))
        assert store.get(chunk_id([9])) is None
        with store.get(id) as chunk:
            same(chunk, *planes(id))
        assert store.stats.tiers["redis"].failed > 0


# ---- Prefixes -------------------------------------------------------------------------------------


def test_the_longest_prefix():
    whole = chunk_id(range(11))
    pages = whole.pages(4)
    assert [page.tokens for page in pages] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [page.key for page in pages] == whole.prefix_keys(4)
    assert pages[0].parent == bytes(16) and pages[1].parent == pages[0].key
    with tamis.Store(memory_bytes=1 << 20) as store:
        assert store.get_prefix(whole, 4) == []
        for page in pages:
            store.put(page, *planes(page, page.tokens[0]))
        found = store.get_prefix(whole, 4)
        for chunk, page in zip(found, pages):
            same(chunk, *planes(page, page.tokens[0]))
            chunk.close()
        assert len(found) == 2 and len(store.get_prefix(whole, 4, capacity=1)) == 1
        assert store.get_prefix(whole, 12) == []
        store.remove(pages[0])
        assert store.get_prefix(whole, 4) == []
        with pytest.raises(tamis.ArgumentError, match="pages of 0 tokens"):
            store.get_prefix(whole, 0)


# ---- Damage ---------------------------------------------------------------------------------------


def one_file(tmp_path):
    file, = tmp_path.glob("*.kv")
    return file


def test_a_damaged_plane_is_never_given_out(tmp_path):
    id = chunk_id()
    with tamis.Store(folder=tmp_path) as store:
        store.put(id, *planes(id))
        content = bytearray(one_file(tmp_path).read_bytes())
        content[3 * 4096 + 5] ^= 1  # header, K and V of layer 0 take 4096 bytes each: K of layer 1
        one_file(tmp_path).write_bytes(content)
        with store.get(id) as chunk:
            chunk.read(0)
            assert not chunk.info.damaged
            with pytest.raises(tamis.DamagedError):
                chunk.read(1)
            assert chunk.info.damaged
        assert store.get(id) is None and store.list() == []
        assert store.stats.tiers["disk"].damaged == 1


def test_a_damaged_header_is_a_miss(tmp_path):
    id = chunk_id()
    with tamis.Store(folder=tmp_path) as store:
        store.put(id, *planes(id))
        content = bytearray(one_file(tmp_path).read_bytes())
        content[40] ^= 1
        one_file(tmp_path).write_bytes(content)
        assert store.get(id) is None
        store.put(id, *planes(id))
        with store.get(id) as chunk:
            same(chunk, *planes(id))


def test_verify_reads_all_and_gc_cleans(tmp_path):
    ids = [chunk_id([i]) for i in range(3)]
    with tamis.Store(folder=tmp_path) as store:
        for id in ids:
            store.put(id, *planes(id))
        assert store.verify() == tamis.StoreFound(3, 3 * SHAPE.record_bytes(1), 0, 0, 0, 0)
        file = tmp_path / f"{ids[1].key.hex()}.kv"
        content = bytearray(file.read_bytes())
        content[-4096] ^= 1
        file.write_bytes(content)
        found = store.verify()
        assert (found.records, found.damaged) == (2, 1) and not file.exists()
        assert store.gc().records == 2


# ---- Threads, and the end -------------------------------------------------------------------------


def test_two_threads_use_one_store(tmp_path):
    store = tamis.Store(memory_bytes=4 * SHAPE.record_bytes(1), folder=tmp_path)
    failed = []

    def work(seed):
        random = numpy.random.default_rng(seed)
        try:
            for _ in range(60):
                id = chunk_id([int(random.integers(8))])
                expected = planes(id, id.tokens[0])
                chunk = store.get(id)
                if chunk is None:
                    store.put(id, *expected)
                    continue
                with chunk:
                    same(chunk, *expected)
        except BaseException as reason:
            failed.append(reason)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    stats = store.stats
    assert stats.hits + stats.misses == 120 and stats.hits > 60


def test_closing_waits_for_the_calls_of_other_threads(tmp_path):
    store, begun, ended = tamis.Store(folder=tmp_path), threading.Event(), []

    def put():
        try:
            for i in itertools.count():
                store.put(chunk_id([i]), *planes(chunk_id([i])))
                begun.set()
        except tamis.StateError as reason:
            ended.append((i, reason))

    thread = threading.Thread(target=put)
    thread.start()
    begun.wait()
    store.close()
    thread.join()
    (count, reason), = ended
    assert "closed" in str(reason)
    with tamis.Store(folder=tmp_path) as again:
        assert again.verify().records == count


def test_a_call_that_runs_is_waited_for():
    store = tamis.Store(memory_bytes=1 << 20)
    closing = threading.Thread(target=store.close)
    with store._used():
        closing.start()
        closing.join(0.1)
        assert closing.is_alive() and not store.closed
    closing.join()
    assert store.closed


def test_a_chunk_outlives_its_store():
    id, store = chunk_id(), tamis.Store(memory_bytes=1 << 20)
    store.put(id, *planes(id))
    chunk = store.get(id)
    del store
    same(chunk, *planes(id))  # the chunk keeps it
    store = tamis.Store(memory_bytes=1 << 20)
    store.put(id, *planes(id))
    chunk = store.get(id)
    store.close()
    with pytest.raises(tamis.StateError):
        chunk.read(0)
    with pytest.raises(tamis.StateError, match="closed"):
        store.get(id)
    chunk.close()
    with pytest.raises(tamis.StateError, match="closed"):
        chunk.read(0)


# ---- Recorded by a model --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    return tiny.Model(tamis.Context("reference"))


def test_a_runner_records_a_chunk(model):
    cache = model.cache(dtype="f32")
    runner, tokens = tiny.Runner(model, cache), numpy.arange(20, dtype=numpy.int32)
    with tamis.Store(memory_bytes=1 << 20) as store:
        tamis.record(runner, store, tokens)
        tamis.record(runner, store, tokens, sink=[7], dtype="bf16", salt=b"another's secret")
        plain = tamis.record_id(model, tokens, cache_dtype="f32")
        behind = tamis.record_id(model, tokens, cache_dtype="f32", sink=[7], dtype="bf16",
                                 salt=b"another's secret")
        assert plain.shape == tamis.ChunkShape.of(cache)
        assert behind.shape == tamis.ChunkShape.of(cache, "bf16", sink=1)
        assert behind.fingerprint == tamis.fingerprint_extend(plain.fingerprint, [7])
        sequence = cache.add()
        runner.prefill(sequence, tokens)
        with store.get(plain) as chunk, store.get(behind) as other:
            for layer in range(cache.n_layers):
                assert numpy.array_equal(chunk.read(layer)[1][:, 0], sequence.read(layer, 0)[1])
            v, near = chunk.read(0)[1], tamis.from_bf16(other.read(0)[1])
            assert numpy.allclose(v, near, rtol=1 / 128)  # layer 0 knows nothing of what stands before
            assert not numpy.allclose(chunk.read(1)[1], tamis.from_bf16(other.read(1)[1]), rtol=1 / 128)
        assert store.get(tamis.record_id(model, tokens, cache_dtype="f16")) is None
        assert len(cache._sequences) == 1 and len(sequence) == 20


def test_a_runner_records_what_a_sequence_holds(model):
    cache = model.cache(dtype="f32")
    runner, tokens = tiny.Runner(model, cache), list(range(20))
    sequence = cache.add()
    runner.prefill(sequence, tokens)
    with tamis.Store(memory_bytes=1 << 20) as store:
        tamis.record_sequence(runner, store, sequence, tokens[2:], sink=tokens[:2])
        id = tamis.record_id(model, tokens[2:], cache_dtype="f32", sink=tokens[:2])
        with store.get(id) as chunk:
            assert numpy.array_equal(chunk.read(1)[1][:, 0], sequence.read(1, 0, 2)[1])
        with pytest.raises(tamis.ArgumentError):
            tamis.record_sequence(runner, store, sequence, tokens + [1])


def test_a_runner_records_a_prefix(model):
    runner, tokens = tiny.Runner(model, model.cache(dtype="f32")), list(range(20))
    with tamis.Store(memory_bytes=1 << 20) as store:
        assert tamis.record_prefix(runner, store, tokens[:9], 4) == 2
        assert tamis.record_prefix(runner, store, tokens, 4) == 3
        assert tamis.record_prefix(runner, store, tokens, 4) == 0
        whole = tamis.record_id(model, tokens, cache_dtype="f32")
        assert len(store.get_prefix(whole, 4)) == 5


def test_what_cannot_be_recorded(model):
    cache = model.cache(dtype="f32")
    runner = tiny.Runner(model, cache)
    with tamis.Store(memory_bytes=1 << 14) as store:
        with pytest.raises(tamis.ArgumentError, match="5000"):
            tamis.record(runner, store, [1, 5000])
        with pytest.raises(tamis.ArgumentError, match="q8"):
            tamis.record(runner, store, [1], dtype="q8")
        with pytest.raises(tamis.FullError):
            tamis.record(runner, store, range(90))
        assert store.list() == [] and cache.stats.pages_held == 0
