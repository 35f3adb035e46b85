# SPDX-License-Identifier: Apache-2.0
"""What each eviction keeps, by its formulas in double precision. Every score comes with a bound of
what fp32 may make of it, put together from the tolerances that host/ops/ states for the ops. One
rule decides from scores, be they these or those of a library."""
import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

(NONE, STREAMING, H2O, TOVA, SNAPKV, PYRAMIDKV, ADAKV, CRITICALKV, CRITICAL_ADAKV, ANDPRO,
 DEFENSIVEKV, CALLER, KNORM) = range(13)
NAMES = ['none', 'streaming', 'h2o', 'tova', 'snapkv', 'pyramidkv', 'adakv', 'criticalkv',
         'critical-adakv', 'andpro', 'defensivekv', 'caller', 'knorm']
REINDEX, RERANK, LIFETIME, REFERENCE_SCHEDULE, BLEND = 1, 2, 4, 8, 16
ANCHOR_ALL, BUDGET_BESIDE_KEPT, BUDGET_CHUNKS, ACROSS_LAYERS = 32, 64, 128, 256
POOL_MAX, POOL_AVERAGE = 0, 1
MASS = float(np.float32(0.9))  # of a lane's attention that defensivekv keeps for certain


@dataclass
class Eviction:
    kind: int
    budget: int
    sinks: int = 0
    recent: int = 0
    window: int = 0
    kernel: int = 1
    pooling: int = POOL_MAX
    chunk: int = 0
    floor: float = 0.0  # as fp32 holds it
    beta: float = 0.0
    every: int = 0
    options: int = 0

    def has(self, option):
        return bool(self.options & option)

    def filled(self):
        """Zeros become the kind's defaults, as far as the cases leave zeros."""
        floors = {ADAKV: 0.2, CRITICAL_ADAKV: 0.2}
        pooling = POOL_AVERAGE if self.kind == DEFENSIVEKV else POOL_MAX
        return Eviction(**{**vars(self), 'recent': self.recent or
                           (self.budget // 2 if self.kind == H2O else 0),
                           'kernel': self.kernel or (5 if self.kind == DEFENSIVEKV else 7),
                           'pooling': self.pooling if self.kernel or self.pooling else pooling,
                           'chunk': self.chunk or 4, 'beta': self.beta or 20.0,
                           'floor': self.floor or float(np.float32(floors.get(self.kind, 0.0)))})


@dataclass
class World:
    layers: int
    heads: int
    kv_heads: int
    dim: int
    scale: float
    cap: float
    eviction: Eviction  # filled
    output: list = None  # [layers] of [n_out, heads * dim]
    budgets: np.ndarray = None  # [layers, kv_heads] in place of the eviction's
    tolerance: float = 1.0  # how much of what the contract allows is taken for right

    @property
    def group(self):
        return self.heads // self.kv_heads


@dataclass
class Lane:
    """What a lane holds, slot by slot: positions, and the plane of scores with its error."""
    positions: np.ndarray
    score: np.ndarray
    error: np.ndarray

    @staticmethod
    def empty():
        return Lane(np.zeros(0, int), np.zeros(0), np.zeros(0))

    def take(self, slots):
        return Lane(self.positions[slots], self.score[slots], self.error[slots])


# ---- Keys ---------------------------------------------------------------------------------------


def norms(k):
    """What knorm ranks keys [n, d] by, and score_rows' error."""
    length = np.sqrt((k.astype(float) ** 2).sum(-1))
    return -length, 2e-6 * length


# ---- Weights ------------------------------------------------------------------------------------


def logits(world, q, k):
    """Logits [t, g, n] of q [t, g, d] with k [n, d], and the sums of their absolute terms."""
    x = world.scale * np.einsum('tgd,nd->tgn', q, k)
    terms = abs(world.scale) * np.einsum('tgd,nd->tgn', np.abs(q), np.abs(k))
    return (world.cap * np.tanh(x / world.cap) if world.cap > 0 else x), terms


def weights(world, q, k, visible, read=True):
    """The weights [t, g, n] of rows that see the first visible[t] slots, as far as those are read,
    and their error: observe's on top of the errors of attend's lse and logits."""
    x, terms = logits(world, q, k)
    seen = (np.arange(len(k)) < np.asarray(visible)[:, None, None]) & read
    top = np.where(seen, np.abs(x), 0).max(-1, keepdims=True)
    most = np.where(seen, terms, 0).max(-1, keepdims=True)
    high = np.where(seen, x, -np.inf).max(-1, keepdims=True)
    lse = high + np.log(np.where(seen, np.exp(x - high), 0).sum(-1, keepdims=True))
    p = np.where(seen, np.exp(x - lse), 0)
    share = 4e-6 * (1 + top) + 2e-6 * most  # observe
    share = share + 2e-6 * (1 + np.abs(lse) + top) + 5e-7 * most + 1e-6 * most  # lse, logits
    return p, np.where(seen, p * share + 1e-37, 0)


def added(x, e, axes):
    """A sum, and its error: that of the terms, and the rounding of adding them."""
    terms = math.prod(x.shape[a] for a in axes)
    total = x.sum(axes)
    return total, e.sum(axes) + 3e-7 * (1 + math.log2(terms)) * np.abs(total)


# ---- Pooling, values ----------------------------------------------------------------------------


def windows(x, kernel, fill):
    side = kernel // 2
    wide = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(side, side)], constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(wide, kernel, -1)


def pooled(x, e, kernel, pooling):
    if x.shape[-1] == 0 or kernel == 1:
        return x, e
    if pooling == POOL_MAX:
        return windows(x, kernel, -np.inf).max(-1), windows(e, kernel, 0).max(-1)
    mean = windows(x, kernel, 0).sum(-1) / kernel
    return mean, windows(e, kernel, 0).sum(-1) / kernel + 1e-6 * np.abs(mean)


def projected_norms(world, layer, head, v):
    """Mean over the group of the L1 norms of v·W_O, and their error."""
    w = world.output[layer].reshape(-1, world.heads, world.dim)
    w = w[:, head * world.group:(head + 1) * world.group]
    x = np.abs(np.einsum('ogd,nd->ngo', w, v)).sum(-1).mean(-1)
    terms = np.einsum('ogd,nd->n', np.abs(w), np.abs(v)) / world.group
    return x, 3e-6 * (1 + math.log2(w.shape[0] * world.dim)) * terms


def times(x, e, y, f):
    """A product of what is not negative, with its error."""
    return x * y, e * (y + f) + x * f + 1e-6 * x * y


# ---- Scores of a layer --------------------------------------------------------------------------


@dataclass
class Held:
    """What a lane holds at an eviction: keys, values, and the last queries with what they see."""
    n: int
    k: np.ndarray
    v: np.ndarray
    q: np.ndarray = None  # [t, g, d]
    visible: np.ndarray = None
    lane: Lane = None
    length: int = 0  # of the sequence


def snapkv(world, held):
    ev = world.eviction
    p, e = weights(world, held.q, held.k, held.visible)
    s, e = added(p, e, (0, 1))
    free = held.n - ev.window
    return pooled(s[:free] / world.group, e[:free] / world.group, ev.kernel, ev.pooling)


def critical(world, layer, head, held):
    """(mean over the rows + 1e-4)·norm, here and in the library times the number of rows."""
    s, e = snapkv(world, held)
    x, f = projected_norms(world, layer, head, held.v[:len(s)])
    s = s + 1e-4 * world.eviction.window
    return times(s, e + 1e-6 * s, x, f)


def chunks(n, size):
    return -(-n // size)


def andpro(world, held):
    """Scores of a lane's chunks."""
    ev, n = world.eviction, held.n
    size = ev.chunk
    p, e = weights(world, held.q, held.k, held.visible)
    a, e = pooled(p, e, ev.kernel, ev.pooling)
    a, e = a.reshape(-1, n), e.reshape(-1, n)
    first, end = (0, n) if ev.has(ANCHOR_ALL) else \
        (size, size * (max(n - ev.window, 0) // size))
    mask = (np.arange(n) >= first) & (np.arange(n) < end)
    v, sizes = held.v, np.abs(held.v)
    anchor = (a * mask) @ v
    s = (a * (anchor @ v.T)).sum(0)
    moved = ((e * mask) @ sizes) @ sizes.T
    error = (e * np.abs(anchor @ v.T) + a * moved + e * moved).sum(0)
    error += 4e-6 * (a * (((a * mask) @ sizes) @ sizes.T)).sum(0)
    pad = chunks(n, size) * size - n
    error += 1e-6 * np.abs(s)
    return [np.pad(x, (0, pad)).reshape(-1, size).sum(-1) for x in (s, error)]


def defensive(world, layer, lanes):
    """For each head of the layer its mean weights, and the score that the layer is cut by."""
    ev, means, worst, norms = world.eviction, [], [], []
    for head, held in enumerate(lanes):
        free = max(held.n - ev.window, 0)
        p, e = weights(world, held.q, held.k, held.visible)
        lists = p.shape[0] * p.shape[1]
        s, f = added(p, e, (0, 1))
        means.append((s / lists, f / lists + 1e-6 * s / lists))
        p, e = p[..., :free], e[..., :free]
        a, f = pooled(p, e, ev.kernel, POOL_AVERAGE)
        full, smooth = p.sum(-1, keepdims=True), a.sum(-1, keepdims=True)
        with np.errstate(all='ignore'):
            share = np.where(smooth > 0, full / smooth, 1)
            off = e.sum(-1, keepdims=True) / full + f.sum(-1, keepdims=True) / smooth
        f = (f + a * np.where(np.isfinite(off), off, 0)) * share + 3e-6 * a * share
        m, f = (a * share).max((0, 1)), f.max((0, 1))
        if free:
            mean, off = m.mean(), f.mean() + 1e-6 * m.mean()
            m, f = np.maximum(m, mean), np.maximum(f, off)
        worst.append((m, f))
        norms.append(projected_norms(world, layer, head, held.v))
    # Once anything has gone, the same slot is no longer the same token: then no share of the heads,
    # but for a head that is alone, whose share is 1.
    whole = len(lanes) == 1 or all(held.n == held.length for held in lanes)
    total, off = sum(x for x, _ in norms) if whole else 1, sum(f for _, f in norms) if whole else 0
    scores = []
    for (m, e), (x, f) in zip(worst, norms):
        with np.errstate(all='ignore'):
            share = np.where(total > 0, x / total, 0)
            f = np.where(total > 0, (f + share * off) / total, 0) + 1e-6 * share
        scores.append(times(m, e, share[:len(m)], f[:len(m)]))
    return means, scores


def layer_scores(world, layer, lanes):
    """Stage by stage what a layer's selects rank by: of each head (scores, errors), one for every
    slot or chunk that may go."""
    return [[(s, e * world.tolerance) for s, e in stage]
            for stage in contract_scores(world, layer, lanes)]


def contract_scores(world, layer, lanes):
    ev = world.eviction
    kind = ev.kind
    if kind == H2O:
        def score(held):
            age = held.length - held.lane.positions if ev.has(LIFETIME) else 1
            s = held.lane.score / age
            return s, held.lane.error / age + 1e-6 * s * ev.has(LIFETIME)

        return [[score(held) for held in lanes]]
    if kind in (TOVA, KNORM):
        return [[(held.lane.score, held.lane.error) for held in lanes]]
    if kind == ANDPRO:
        return [[andpro(world, held) for held in lanes]]
    if kind == DEFENSIVEKV:
        return list(defensive(world, layer, lanes))

    first = [snapkv(world, held) for held in lanes]
    if kind in (SNAPKV, PYRAMIDKV):
        return [first]
    if kind == ADAKV:
        return [first] * (2 if ev.has(BLEND) else 1)
    second = [critical(world, layer, h, held) for h, held in enumerate(lanes)]
    return [first, second] if kind == CRITICALKV else [first, first, second]


# ---- Selects ------------------------------------------------------------------------------------


NEWER = -1  # of equals the newer is first; the self test turns it round


def ranked(scores, candidates):
    """Indices of the candidates, best first: score, then the newer; NaN last."""
    at = np.flatnonzero(candidates)
    s = scores[at].astype(float)
    bad = np.isnan(s)
    return at[np.lexsort((NEWER * at, -np.where(bad, 0, s), bad))]


@dataclass
class Select:
    """A select over lanes: what was protected, what was taken in all, and by what rule."""
    stage: int
    lanes: list  # (layer, head)
    protected: list  # bool a lane
    taken: list
    floor: int = 0
    row: bool = False  # the lanes compete
    mass: float = 0.0
    full: list = field(default_factory=list)  # a lane's k stopped it, not the mass


def select_lane(stage, scores, protected, k, mass, key):
    """One lane's best up to k; with a mass only until that is reached, in 32-bit fractions."""
    taken = protected.copy()
    left = k - int(taken.sum())
    if left > 0 and not taken.all():
        order = ranked(scores, ~taken)
        if mass > 0:
            held = sum(parts(x) for x in scores[protected])
            for i in order[:left]:
                if held >= Fraction(mass):
                    break
                taken[i] = True
                held += parts(scores[i])
        else:
            taken[order[:left]] = True
    full = int(taken.sum()) >= min(k, len(taken))
    return Select(stage, [key], [protected], [taken], mass=mass, full=[full])


def parts(x):
    """A score as an exact sum takes it."""
    x = float(x)
    return Fraction(0) if math.isnan(x) or x < 0 else \
        Fraction(math.floor(Fraction(min(x, 1024.0)) * 2**32), 2**32)


def select_row(stage, lanes, scores, protected, floor, total):
    """Of each lane the best `floor`, then the best of all lanes up to `total`."""
    taken = [p.copy() for p in protected]
    for s, t in zip(scores, taken):
        if floor > 0:
            t[ranked(s, ~t)[:floor]] = True
    left = total - sum(int(t.sum()) for t in taken)
    rest = []
    for h, (s, t) in enumerate(zip(scores, taken)):
        for i in np.flatnonzero(~t):
            bad = math.isnan(s[i])
            rest.append((bad, 0.0 if bad else -float(s[i]), NEWER * int(i), h))
    for _, _, i, h in sorted(rest)[:max(left, 0)]:
        taken[h][NEWER * i] = True
    return Select(stage, lanes, protected, taken, floor=floor, row=True)


def bounds_of(select, scores, errors):
    """Pairs (lowest of what was taken by score, highest of what was left against it), as (score,
    error) each; where a pair is apart, no other scores within their errors decide otherwise."""
    pairs, all_left = [], []
    for s, e, t in zip(scores, errors, select.taken):
        all_left += [(s[i], e[i]) for i in np.flatnonzero(~t)]
    for s, e, p, t in zip(scores, errors, select.protected, select.taken):
        kept = [(s[i], e[i]) for i in np.flatnonzero(t & ~p)]
        own = [(s[i], e[i]) for i in np.flatnonzero(~t)]
        pairs.append((kept, all_left if select.row and len(kept) > select.floor else own))
    return [(kept, left) for kept, left in pairs if kept and left]


def explained(select, scores, errors):
    """None, or why no scores within the errors give what was taken."""
    for kept, left in bounds_of(select, scores, errors):
        low, high = min(s + e for s, e in kept), max(s - e for s, e in left)
        if low < high:
            return 'keeps a score of at most %.9g and leaves one of at least %.9g' % (low, high)
    if select.mass > 0:
        for i, t in enumerate(select.taken):
            total, off = scores[i][t].sum(), errors[i][t].sum() + 1e-8
            if not select.full[i] and total + off < select.mass:
                return 'stops at a mass of %.9g' % total
            more = np.flatnonzero(t & ~select.protected[i])
            if len(more) and total - scores[i][more].min() - off - errors[i][more].max() \
                    > select.mass:
                return 'goes on to a mass of %.9g' % total
    return None


def apart(kept, left, ties):
    """Whether all that was taken lies above all that was left, whatever the errors. With `ties`
    equal scores have equal errors, so that the order of places decides between them."""
    if min(s - e for s, e in kept) > max(s + e for s, e in left):
        return True
    edge = min(s for s, _ in kept)
    if not ties or edge != max(s for s, _ in left):
        return False
    off = max(e for s, e in kept + left if s == edge)
    return min((s - e for s, e in kept if s > edge), default=np.inf) > edge + off and \
        max((s + e for s, e in left if s < edge), default=-np.inf) < edge - off


def certain(select, scores, errors, ties):
    """Whether all scores within the errors give what was taken."""
    if not all(apart(kept, left, ties) for kept, left in bounds_of(select, scores, errors)):
        return False
    for i, t in enumerate(select.taken if select.mass > 0 else []):
        total, off = scores[i][t].sum(), errors[i][t].sum() + 1e-8
        last = np.flatnonzero(t & ~select.protected[i])
        if not select.full[i] and abs(total - select.mass) <= off:
            return False
        if len(last) and abs(total - scores[i][last].min() - select.mass) <= off:
            return False
    return True


def page_scores(q, k, page, rule, stored=lambda low, high: (low, high)):
    """What the bounds of the full pages of keys [n, d] promise queries [g, d], and its error.
    Rules: largest, mean, sum over g. `stored`: the bounds as the cache holds them."""
    full = k[:len(k) // page * page].reshape(-1, page, k.shape[-1])
    low, high = stored(full.min(1), full.max(1))
    terms = np.maximum(q[:, None] * low, q[:, None] * high)
    join = [np.max, np.mean, np.sum][rule]
    return join(terms.sum(-1), 0), join(1e-6 * np.abs(terms).sum(-1), 0)


def read_always(positions, page, k, sinks, recent, by_position):
    """Which pages of a lane its newest row reads whatever their scores, k at most."""
    n = len(positions)
    entries = -(-n // page)
    if not by_position:
        newest = max(n - max(recent, 1), 0) // page  # at least the row's own page
        return protect(entries, -(-sinks // page), 0) | (np.arange(entries) >= newest)
    wide = np.pad(positions, (0, entries * page - n), constant_values=-1).reshape(-1, page)
    own = positions.max()
    first = (np.where(wide < 0, sinks, wide) < sinks).any(-1) | (wide == own).any(-1)
    first[n // page:] = True
    newest = wide.max(-1)
    late = (newest > own - recent) & ~first
    order = list(np.flatnonzero(first)[::-1]) + sorted(np.flatnonzero(late),
                                                       key=lambda i: -newest[i])
    return np.isin(np.arange(entries), order[:k])


# ---- Decisions ----------------------------------------------------------------------------------


def guaranteed(share, tokens):
    """The floor of the product in fp32."""
    return math.floor(np.float32(share) * np.float32(tokens)) if share > 0 else 0


def own(ev):
    """What every lane has for itself of a shared budget, beside what is always kept."""
    return min(guaranteed(ev.floor, ev.budget - ev.window), ev.budget - ev.window - ev.sinks)


def blended(best, ev):
    """Ada-KV's budget beside the window of a head with `best` of the layer's best slots, as a
    tensor of fp32 gives it: round(best·(1 - a) + int(a·base)), a as the decimal that fp32 holds."""
    a = max(float(np.format_float_positional(np.float32(ev.floor))), 0.0)
    part = np.float32(best) * np.float32(1 - a)
    return int(np.rint(part + np.float32(int(a * (ev.budget - ev.window)))))


def pyramid_budgets(ev, layers, length, longest):
    """Slots of each layer's lanes, of a sequence's length whose longest lane holds `longest`."""
    w, base = ev.window, ev.budget - ev.window
    if length < 2 * base or longest <= ev.budget:
        return [ev.budget] * layers
    beta = Fraction(ev.beta)
    reference = ev.has(REFERENCE_SCHEDULE)
    low = max(Fraction(math.floor(base / beta)) if reference else base / beta, ev.sinks + 1)
    high = 2 * base - low
    if high >= longest - w:
        high = Fraction(longest - w)
        low = 2 * base - high
    if layers == 1:
        return [ev.budget]
    if reference:
        step = (high - low) // (layers - 1)
        return [int(high - i * step) + w for i in range(layers)]
    exact = [high - i * (high - low) / (layers - 1) for i in range(layers)]
    whole = [math.floor(x) for x in exact]
    order = sorted(range(layers), key=lambda i: (whole[i] - exact[i], i))
    for i in order[:layers * base - sum(whole)]:
        whole[i] += 1
    return [x + w for x in whole]


def protect(n, sinks, recent):
    at = np.arange(n)
    return (at < sinks) | (at >= n - recent)


class Decision:
    """Which slots stay, given positions[layer][head] and scores(layer, stage, head), which is asked
    only where something has to go."""

    def __init__(self, world, positions, length, scores):
        self.world, self.scores, self.length = world, scores, length
        self.positions = positions
        self.n = [[len(p) for p in layer] for layer in positions]
        self.selects, self.keep = [], [[np.ones(n, bool) for n in layer] for layer in self.n]
        ev = world.eviction
        self.budgets = world.budgets
        if self.budgets is None:
            longest = max(max(layer) for layer in self.n)
            rows = [ev.budget] * world.layers
            if ev.kind == PYRAMIDKV:
                rows = pyramid_budgets(ev, world.layers, length, longest)
            self.budgets = np.repeat(np.array(rows)[:, None], world.kv_heads, 1)
        self.exceeds = False  # whether any scores are asked for
        if ev.kind == DEFENSIVEKV and ev.has(ACROSS_LAYERS):
            self.across()
            return
        for layer in range(world.layers):
            self.decide(layer)

    def get(self, layer, stage, n):
        """A layer's scores, filled up to n entries for what is protected anyway."""
        self.exceeds = True
        out = []
        for h in range(self.world.kv_heads):
            s = np.zeros(n[h])
            given = np.asarray(self.scores(layer, stage, h))[:n[h]]
            s[:len(given)] = given
            out.append(s)
        return out

    def lanes(self, layer):
        return [(layer, h) for h in range(self.world.kv_heads)]

    def window(self, layer):
        """What always stays of each lane."""
        ev = self.world.eviction
        if ev.kind in (STREAMING, H2O, TOVA, KNORM):  # slots need not be in the order of tokens
            recent = ev.budget - ev.sinks if ev.kind == STREAMING else ev.recent
            return [(p < ev.sinks) | (p >= self.length - recent) for p in self.positions[layer]]
        return [protect(n, ev.sinks, ev.window) for n in self.n[layer]]

    def one_by_one(self, layer, stage, k, forced=None, mass=0.0):
        """A select of each lane of the layer for itself."""
        if not mass and all(n <= b for n, b in zip(self.n[layer], k)):
            return [np.ones(n, bool) for n in self.n[layer]]
        s, taken = self.get(layer, stage, self.n[layer]), []
        for h, p in enumerate(self.window(layer)):
            p = p if forced is None else p | forced[h]
            made = select_lane(stage, s[h], p, k[h], mass, (layer, h))
            self.selects.append(made)
            taken += made.taken
        return taken

    def decide(self, layer):
        ev, heads, n = self.world.eviction, self.world.kv_heads, self.n[layer]
        k = [int(b) for b in self.budgets[layer]]
        if ev.kind == STREAMING:
            self.keep[layer] = self.window(layer)
        elif ev.kind in (ADAKV, CRITICAL_ADAKV, ANDPRO, DEFENSIVEKV):
            if self.shared_exceed(n, heads):
                self.keep[layer] = self.shared(layer)
        elif any(a > b for a, b in zip(n, k)):
            self.keep[layer] = self.twice(layer, k, 0) if ev.kind == CRITICALKV else \
                self.one_by_one(layer, 0, k)

    def shared_exceed(self, n, heads):
        """Whether something goes of lanes that share: by tokens, or by andpro's chunks."""
        ev = self.world.eviction
        if ev.kind == ANDPRO and ev.has(BUDGET_BESIDE_KEPT | BUDGET_CHUNKS):
            return sum(chunks(m, ev.chunk) for m in n) > self.total_chunks(n)
        return sum(n) > heads * ev.budget

    def protected_chunks(self, n):
        ev, size = self.world.eviction, self.world.eviction.chunk
        front = chunks(max(ev.sinks, size), size)
        return [protect(chunks(m, size), front, chunks(m, size) - max(m - ev.window, 0) // size)
                for m in n]

    def total_chunks(self, n):
        """Chunks that lanes of n slots keep in all. Published are H·B/C and H·(B - w), everything
        always kept included."""
        ev = self.world.eviction
        heads, base = len(n), ev.budget - ev.window
        if ev.has(BUDGET_CHUNKS):
            return heads * base
        if ev.has(BUDGET_BESIDE_KEPT):
            return heads * base // ev.chunk + sum(int(p.sum()) for p in self.protected_chunks(n))
        return heads * ev.budget // ev.chunk

    def twice(self, layer, k, stage):
        """Half of each budget by the weights alone, the rest by the values, too."""
        half = self.one_by_one(layer, stage, [b // 2 for b in k])
        return self.one_by_one(layer, stage + 1, k, half)

    def shared(self, layer):
        ev, n = self.world.eviction, self.n[layer]
        heads = len(n)
        if ev.kind == ANDPRO:
            return self.chunked(layer)
        if ev.kind == DEFENSIVEKV:
            forced = self.one_by_one(layer, 0, [ev.budget - own(ev)] * heads, mass=MASS)
            return self.row([layer], 1, forced)
        blend = ev.kind == ADAKV and ev.has(BLEND)
        made = select_row(0, self.lanes(layer), self.get(layer, 0, n), self.window(layer),
                          0 if blend else own(ev), heads * ev.budget)
        self.selects.append(made)
        counts = [int(t.sum()) for t in made.taken]
        if blend:
            counts = [blended(c - ev.window, ev) + ev.window for c in counts]
            return self.one_by_one(layer, 1, counts)
        if ev.kind == ADAKV:
            return made.taken
        return self.twice(layer, counts, 1)

    def row(self, layers, stage, forced):
        """The lanes of the layers share their budgets; `forced` stay."""
        ev = self.world.eviction
        lanes, scores, protected = [], [], []
        for layer in layers:
            lanes += self.lanes(layer)
            scores += self.get(layer, stage, self.n[layer])
            protected += self.window(layer)
        protected = [p | f for p, f in zip(protected, forced)]
        made = select_row(stage, lanes, scores, protected,
                          own(ev), len(lanes) * ev.budget)
        self.selects.append(made)
        return made.taken

    def across(self):
        ev, world = self.world.eviction, self.world
        if sum(map(sum, self.n)) <= world.layers * world.kv_heads * ev.budget:
            return
        forced = []
        for layer in range(world.layers):
            forced += self.one_by_one(layer, 0, [ev.budget - own(ev)] * world.kv_heads, mass=MASS)
        taken = self.row(range(world.layers), 1, forced)
        self.keep = [taken[i:i + world.kv_heads] for i in range(0, len(taken), world.kv_heads)]

    def chunked(self, layer):
        ev, n = self.world.eviction, self.n[layer]
        size, count = ev.chunk, [chunks(m, ev.chunk) for m in n]
        front = chunks(max(ev.sinks, size), size)
        most = ev.budget // size
        floor = guaranteed(ev.floor, ev.budget) // size
        if ev.has(BUDGET_CHUNKS):
            most = ev.budget - ev.window
            floor = guaranteed(ev.floor, most)
        floor = min(floor, most - front - ev.window // size - 1)
        made = select_row(0, self.lanes(layer), self.get(layer, 0, count),
                          self.protected_chunks(n), floor, self.total_chunks(n))
        self.selects.append(made)
        return [np.repeat(t, size)[:m] for t, m in zip(made.taken, n)]
