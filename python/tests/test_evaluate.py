# SPDX-License-Identifier: Apache-2.0
"""Evaluations: their columns, and perplexity beside the logits of one pass over the whole text."""
import numpy
import pytest

import tamis
import tamis.evaluate

TEXT = "It was the best of times, it was the worst of times.\n" * 8
COLUMNS = {"select", "budget", "evict", "kept", "read", "ms"}


@pytest.fixture(scope="module")
def needle(data):
    with tamis.Context("reference") as context, tamis.Model(context, data / "needle.gguf") as model:
        yield model


def test_perplexity(needle):
    text = TEXT[:240]
    full, quest = tamis.evaluate.perplexity(needle, text, tokens=40, select=("full", tamis.Quest(budget=64)),
                                            dtype="f32")
    assert set(full) == COLUMNS | {"perplexity", "prompt", "tokens"}
    assert (full["select"], full["read"], full["kept"], full["tokens"]) == ("full", 1, 1, 40)
    assert (quest["select"], quest["budget"]) == ("quest", 64) and 0.3 < quest["read"] < 0.9
    ids = needle.vocab.encode(text, bos=True)[:full["prompt"] + 40]
    cache = needle.cache(256, dtype="f32")
    runner = needle.runner(cache, max_context=256, max_selected_rows=64)
    runner.step([tamis.Run(cache.add(), ids, outputs=len(ids[:-1]) + 1 - full["prompt"] + 1, exact=True)])
    losses = []
    for row, token in enumerate(ids[full["prompt"]:]):
        logits = runner.logits(row).astype(numpy.float64)
        losses.append(-(logits - numpy.logaddexp.reduce(logits))[token])
    assert full["perplexity"] == pytest.approx(numpy.exp(numpy.mean(losses)), rel=1e-5)
    with pytest.raises(tamis.ArgumentError, match="leaves 0 to be measured"):
        tamis.evaluate.perplexity(needle, text, prompt=1)


def test_keys(needle):
    table = tamis.evaluate.keys(needle, TEXT[:100], n_keys=2, select=("full", tamis.Window(budget=48)),
                                evict=(None, tamis.SnapKV(budget=64)), max_new=2, max_context=1024)
    assert [(row["select"], row["evict"]) for row in table] == [
        ("full", "none"), ("full", "snapkv 64"), ("window", "none"), ("window", "snapkv 64")]
    for row in table:
        assert set(row) == COLUMNS | {"asked", "found", "tokens"}
        assert row["asked"] == 2 and row["ms"] > 0 and (row["kept"] < 1) == (row["evict"] != "none")
    planted, keys = tamis.evaluate.plant(TEXT, 3, seed=5)
    assert [planted.index(key) for key in keys.values()] == sorted(planted.index(key) for key in keys.values())
    assert planted.count("Remember it.") == 3 and tamis.evaluate.plant(TEXT, 3, seed=5)[0] == planted
    with pytest.raises(tamis.ArgumentError, match="11 keys"):
        tamis.evaluate.plant(TEXT, 11)
    with pytest.raises(tamis.ArgumentError, match="has a pass key already"):
        tamis.evaluate.plant(planted, 1)
