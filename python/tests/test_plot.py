# SPDX-License-Identifier: Apache-2.0
"""Pictures of what was read and kept: their axes say what was given."""
import numpy
import pytest

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")

import tamis  # noqa: E402
import tamis.plot  # noqa: E402


def drawn(ax):
    return numpy.asarray(ax.images[0].get_array())


def test_reads():
    read = numpy.zeros((2, 3, 8), bool)
    read[1, 2, 5] = True
    ax = tamis.plot.reads(read, page_size=16)
    picture = drawn(ax)
    assert picture.shape == (6, 8) and picture.sum() == 1 and picture[5, 5] == 1
    assert ax.get_xlabel() == "token" and ax.get_xlim() == (0, 128) and "2%" in ax.get_title()
    several = numpy.stack([read, numpy.zeros_like(read)])
    assert drawn(tamis.plot.reads(several)).max() == 0.5
    for wrong in (numpy.zeros((2, 3)), numpy.zeros((0, 2, 3))):
        with pytest.raises(tamis.ArgumentError, match="reads of shape"):
            tamis.plot.reads(wrong)


def test_kept():
    context = tamis.Context("reference")
    keeps = tamis.Kept(budget=8)
    cache = tamis.Cache(context, n_layers=1, n_heads=2, n_kv_heads=2, head_dim=64, capacity_tokens=64,
                        evict=keeps)
    plan = cache.plan(evict=keeps, max_context=64)
    sequence = cache.add()
    rows = context.array(numpy.ones((20, 128), numpy.float32))
    out = context.empty((20, 128))
    with pytest.raises(tamis.ArgumentError, match="empty"):
        tamis.plot.kept(sequence)
    with plan.step(sequence, 20, exact=True) as step:
        step.write(0, rows, rows)
        step.attend(0, rows, out)
    plan.evict_to(sequence, [[[0, 1, 19], [5, 6, 7, 8, 19]]])
    picture = drawn(tamis.plot.kept(sequence, bins=20))
    assert [list(numpy.flatnonzero(lane)) for lane in picture] == [[0, 1, 19], [5, 6, 7, 8, 19]]
    assert drawn(tamis.plot.kept(sequence, bins=3)).max() <= 1
