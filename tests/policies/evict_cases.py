# SPDX-License-Identifier: Apache-2.0
"""Random cases for check_eviction.py: shapes, evictions and events, each from (seed, number), and
the bytes in which evict_case takes them."""
import struct

import numpy as np

from evict_oracle import (ACROSS_LAYERS, ADAKV, ANCHOR_ALL, ANDPRO, BLEND, BUDGET_BESIDE_KEPT,
                          BUDGET_CHUNKS, CALLER, CRITICAL_ADAKV, CRITICALKV, DEFENSIVEKV, H2O,
                          KNORM, LIFETIME, POOL_AVERAGE, POOL_MAX, PYRAMIDKV, REFERENCE_SCHEDULE,
                          REINDEX, RERANK, SNAPKV, STREAMING, TOVA, Eviction)

MAGIC = 0x54414d43
END, ADD, FORK, REMOVE, STEP, EVICT, BY_SCORES, TO, READ = range(9)
F32, F16, BF16, Q8, K8V4, Q4 = range(6)
BLOCKS = (Q8, K8V4, Q4)  # whose rows have blocks, and whose bounds are q8
Q8_BLOCK = 32
FULL, QUEST = 0, 2
GROUP_MAX, GROUP_MEAN, GROUP_SUM = range(3)
# (group, head dim, page size, dtype): few, because each is a set of kernels to build.
SHAPES = [(1, 64, 8, F32), (4, 128, 16, F16), (20, 112, 8, BF16), (8, 64, 16, F32), (3, 64, 16, Q8),
          (3, 64, 16, K8V4), (3, 64, 16, Q4)]
PER_STEP = (STREAMING, H2O, TOVA, KNORM)
LONGEST = 320


def rounded(x, dtype, value=False):
    """Rows of K, or of V, as the dtype holds them, in f32."""
    x = np.asarray(x, np.float32)
    if dtype == F16:
        return x.astype(np.float16).astype(np.float32)
    if dtype == BF16:
        bits = x.view(np.uint32).astype(np.uint64)
        bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000
        return bits.astype(np.uint32).view(np.float32).reshape(x.shape)
    if dtype == Q4 or (dtype == K8V4 and value):
        return rounded_q4(x)
    if dtype in (Q8, K8V4):
        return rounded_q8(x)
    return x


def q8_blocks(x):
    return np.asarray(x, np.float64).reshape(x.shape[:-1] + (-1, Q8_BLOCK))


def scales(most, steps):
    """The smallest f16 d with steps·d not below `most`."""
    d = np.float16(most / steps)
    d = np.where(steps * d.astype(np.float64) < most, np.nextafter(d, np.float16(np.inf)), d)
    return d.astype(np.float64)


def q8_scales(*arrays):
    """The scales that the blocks of arrays share, by their largest magnitude."""
    return scales(np.max([np.abs(q8_blocks(x)).max(-1, keepdims=True) for x in arrays], 0), 127)


def in_q8(x, d, integer):
    q = integer(np.divide(q8_blocks(x), d, out=np.zeros_like(q8_blocks(x)), where=d > 0))
    return (q * d).astype(np.float32).reshape(x.shape)


def rounded_q8(x):
    return in_q8(x, q8_scales(x), np.rint)


def rounded_q4(x):
    """In 4 bits above the largest f16 that is not above a block's least element."""
    low = q8_blocks(x).min(-1, keepdims=True)
    m = np.float16(low)
    m = np.where(m.astype(np.float64) > low, np.nextafter(m, np.float16(-np.inf)), m)
    m = m.astype(np.float64)
    y = (q8_blocks(x) - m).astype(np.float32).astype(np.float64)
    d = scales(y.max(-1, keepdims=True), 15)
    n = np.rint(np.divide(y, d, out=np.zeros_like(y), where=d > 0))
    return (m + d * n).astype(np.float32).reshape(x.shape)


def stored_bounds(dtype):
    """What a cache makes of the bounds of its pages: q8 rounds them outward."""
    def stored(low, high):
        if dtype not in BLOCKS or not low.size:
            return low, high
        d = q8_scales(low, high)
        return in_q8(low, d, np.floor), in_q8(high, d, np.ceil)
    return stored


def slot_bytes(dim, dtype):
    """Bytes of a row of K and a row of V, and of a page's pair of bounds."""
    if dtype not in BLOCKS:
        size = 4 if dtype == F32 else 2
        return 2 * dim * size, 2 * dim * size
    blocks = dim // Q8_BLOCK
    key = 20 * blocks if dtype == Q4 else dim + 2 * blocks
    value = dim + 2 * blocks if dtype == Q8 else 20 * blocks
    return key + value, 2 * dim + -(-2 * blocks // 16) * 16


class Case:
    """A world and the events in it. Rows follow from the case's own generator. Small ones have few
    heads and short prompts, for a driver that is slow."""

    def __init__(self, seed, number, kind, small=False):
        self.seed, self.number, self.small = seed, number, small
        self.rng = rng = np.random.default_rng([seed, number])
        self.kind = kind
        # Of small lanes that stay at their length only small pages make lists worth the name.
        few = SHAPES[:3:2] if small and kind in PER_STEP else SHAPES
        self.group, self.dim, self.page, self.dtype = few[rng.integers(len(few))]
        self.kv_heads = int(rng.integers(1, 5 if self.group < 5 else 3))
        self.layers = int(rng.integers(2, 6 if kind == PYRAMIDKV else 4))
        if small:
            self.kv_heads = 1 + (self.group == 1 or number // 2 % 2)
            self.layers = 3 if kind == PYRAMIDKV else 2
        self.heads = self.group * self.kv_heads
        self.scale = float(np.float32(rng.choice([0, 0, 0.1])))
        self.cap = float(rng.choice([0, 0, 0, 20]))
        self.ties = str(rng.choice(['', '', '', '', 'repeat', 'zero']))
        self.eviction = make_eviction(rng, kind, 40 if small else 97)
        self.fixed_launches = int(rng.integers(2))
        if kind in (H2O, TOVA) or self.eviction.every > 0:
            self.fixed_launches = 0
        self.select()
        self.extras()
        self.patterns()
        self.lengths, self.events = [], []
        self.held = []  # of kind caller: slots of each lane, [layers, kv_heads]
        self.play()

    def name(self):
        return '%d:%d %s %s' % (self.seed, self.number, self.ties, vars(self.eviction))

    def select(self):
        """Of some cases decode steps read the pages with the best bounds: (kind, budget, sinks,
        recent, dense layers, group rule)."""
        rng, page = self.rng, self.page
        sinks, recent = int(rng.choice([0, 3])), int(rng.choice([0, 1, 5, 12]))
        pages = -(-sinks // page) + (recent and (recent + page - 2) // page + 1)
        budget = (pages + int(rng.integers(1, 3))) * page
        if self.eviction.every == 1:  # the page of the row's token and the lane's last one
            budget = max(budget, (-(-sinks // page) + 2) * page)
        quest = rng.random() < 0.35 and not self.eviction.has(REINDEX)
        self.selection = (QUEST, budget, sinks, recent, int(rng.integers(2)),
                          int(rng.integers(3))) if quest else (FULL, 0, 0, 0, 0, 0)

    def extras(self):
        """What is not a number."""
        rng, ev = self.rng, self.eviction
        self.output = self.rotation = self.budgets = None
        if self.kind in (CRITICALKV, CRITICAL_ADAKV, DEFENSIVEKV):
            self.output_dtype = int(rng.integers(3))
            rows = int(rng.integers(40, 110))
            w = rng.standard_normal((self.layers, rows, self.heads * self.dim)) / 8
            self.output = rounded(w, self.output_dtype)
        if ev.has(REINDEX):
            n_rot = self.dim // int(rng.integers(1, 3))
            self.rotation = (int(rng.integers(2)),
                             10000.0 ** (-np.arange(0, n_rot, 2) / n_rot))
        if self.kind in (SNAPKV, CRITICALKV, CALLER) and rng.random() < 0.3:
            least = ev.sinks + ev.window + 1
            self.budgets = rng.integers(least, 2 * ev.budget, (self.layers, self.kv_heads))

    def patterns(self):
        """A direction of each KV head that heavy keys and queries have in common; of cases of
        repeated tokens, what they repeat."""
        rng, shape = self.rng, (self.layers, 1, self.kv_heads, self.dim)
        self.common = rng.standard_normal(shape)
        self.gain = rng.uniform(0.5, 2.0)
        few = rng.standard_normal((2, self.layers, 3, self.kv_heads, self.dim))
        self.few = rounded(few[0], self.dtype), rounded(few[1], self.dtype, value=True)

    def rows(self, n):
        """K, V and Q of n tokens: [layers, n, heads, dim]."""
        rng = self.rng
        shape = (self.layers, n, self.kv_heads, self.dim)
        heavy = rng.pareto(1.5, shape[:3] + (1,)).clip(0, 4) * (rng.random(shape[:3] + (1,)) < 0.2)
        k = rng.standard_normal(shape) + 0.5 * heavy * self.common
        v = rng.standard_normal(shape) * rng.lognormal(0, 0.7, shape[:3] + (1,)).clip(0, 8)
        q = self.gain * rng.standard_normal((self.layers, n, self.kv_heads, self.group, self.dim))
        q += 0.3 * self.common[:, :, :, None]
        k, v = rounded(k, self.dtype), rounded(v, self.dtype, value=True)
        if self.ties == 'repeat':
            pick = rng.integers(3, size=n)
            k, v = self.few[0][:, pick], self.few[1][:, pick]
        if self.ties == 'zero':
            q *= 0
        q = np.float32(q).reshape(self.layers, n, self.heads, self.dim)
        return [np.ascontiguousarray(x) for x in (k, v, q)]

    # ---- Events ----

    def add(self, kind, **more):
        self.events.append({'type': kind, **more})

    def step(self, who, exact):
        """A step of sequences, each with its number of rows."""
        self.add(STEP, who=who, exact=exact, rows=self.rows(sum(n for _, n in who)))
        for i, n in who:
            self.lengths[i] += n
            self.held[i] = self.held[i] + n

    def prefill(self, goals, least=1):
        """Exact steps of random chunks until each sequence has its length. The first chunk of each
        has `least` rows or more."""
        rng = self.rng
        first = set(goals)
        while True:
            left = [i for i, n in goals.items() if self.lengths[i] < n]
            if not left:
                return
            who = [i for i in left if rng.random() < 0.7] or left[:1]
            self.step([(i, int(min(goals[i] - self.lengths[i],
                                   max(rng.integers(1, 65), least if i in first else 1))))
                       for i in who], 1)
            first -= set(who)

    def decode(self, steps, who):
        for _ in range(steps):
            some = [i for i in who if self.rng.random() < 0.8] or who[:1]
            self.step([(i, 1) for i in some], 0)

    def evict(self, i):
        if self.kind != CALLER:
            self.add(EVICT, sequence=i)
        elif self.rng.random() < 0.6:
            self.evict_by_scores(i)
        else:
            self.evict_to(i)

    def evict_by_scores(self, i):
        rng, held = self.rng, self.held[i]
        shape = held.shape + (int(held.max() + rng.integers(3)),)
        scores = rng.integers(-3, 4, shape) if self.ties else rng.standard_normal(shape)
        odd = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], shape)
        scores = np.where(rng.random(shape) < 0.2, odd, scores)
        self.add(BY_SCORES, sequence=i, scores=np.float32(scores))
        most = self.eviction.budget if self.budgets is None else self.budgets
        self.held[i] = np.minimum(held, most)

    def evict_to(self, i):
        """Some of the slots of each lane, at least one; those that evictions by scores protect stay,
        else such a one would be refused later."""
        ev = self.eviction
        rng, held = self.rng, self.held[i]
        counts, slots = np.zeros_like(held), np.zeros(held.shape + (int(held.max()),), int)
        for lane in np.ndindex(held.shape):
            some = rng.random(held[lane]) < rng.random()
            some[:ev.sinks] = some[max(held[lane] - max(ev.window, 1), 0):] = True
            counts[lane] = some.sum()
            slots[lane][:counts[lane]] = np.flatnonzero(some)
        self.add(TO, sequence=i, slots=slots, counts=counts)
        self.held[i] = counts

    def play(self):
        """A prompt or several, evictions, decoding, a second turn."""
        rng, budget = self.rng, self.eviction.budget
        n = int(rng.integers(1, 3 if self.small else 4))
        goals = {}
        for i in range(n):
            self.add(ADD)
            self.lengths.append(0)
            self.held.append(np.zeros((self.layers, self.kv_heads), int))
            short = rng.random() < 0.15
            goals[i] = int(rng.integers(1, budget + 1) if short else
                           rng.integers(budget + 1, 80 if self.small else min(4 * budget, 200)))
        self.prefill(goals)
        live = list(goals)
        if rng.random() < 0.3:
            self.add(FORK, parent=0)
            self.lengths.append(self.lengths[0])
            self.held.append(self.held[0])
        for i in rng.permutation(live):
            self.evict(int(i))
        if rng.random() < 0.5:
            self.add(READ, sequence=0)
        some = self.kind in PER_STEP and self.eviction.every == 1
        steps = rng.integers(4, 30) if some else rng.integers(0, 6)
        self.decode(int(steps), live)
        if len(self.lengths) > n:
            self.evict_and_decode_fork(n, some)
        if rng.random() < 0.5:
            more = 20 if self.small else 40
            least = 2 if some else 1  # a single row would be a decode row
            self.prefill({i: self.lengths[i] + max(least, int(rng.integers(1, more)))
                          for i in live}, least)
        if rng.random() < 0.7:
            for i in live:
                self.evict(i)
            self.decode(3, live)
        self.add(READ, sequence=int(rng.choice(live)))
        if n > 1:
            self.add(REMOVE, sequence=n - 1)

    def evict_and_decode_fork(self, i, first):
        if first or self.rng.random() < 0.4:
            self.evict(i)
        self.decode(2, [i])
        if self.rng.random() < 0.5:
            self.evict(i)

    # ---- Bytes ----

    def tape(self):
        """What evict_case reads."""
        ev = self.eviction
        words = [MAGIC, self.layers, self.heads, self.kv_heads, self.dim, self.page, self.dtype,
                 2 * sum(self.lengths) + 16 * self.page * len(self.lengths)]
        words += [len(self.lengths), 64 * len(self.lengths), LONGEST, self.fixed_launches]
        out = struct.pack('<%dI' % len(words), *words) + struct.pack('<2f', self.scale, self.cap)
        out += struct.pack('<6I', *self.selection)
        out += struct.pack('<8I2f2I', ev.kind, ev.budget, ev.sinks, ev.recent, ev.window, ev.kernel,
                           ev.pooling, ev.chunk, ev.floor, ev.beta, ev.every, ev.options)
        out += self.tape_extras()
        return out + b''.join(map(event_bytes, self.events)) + struct.pack('<I', END)

    def tape_extras(self):
        out = struct.pack('<I', 0 if self.output is None else self.output.shape[1])
        if self.output is not None:
            out += struct.pack('<I', self.output_dtype) + packed(self.output, self.output_dtype)
        out += struct.pack('<I', 0 if self.rotation is None else 2 * len(self.rotation[1]))
        if self.rotation is not None:
            out += struct.pack('<I', self.rotation[0]) + self.rotation[1].astype('<f8').tobytes()
        out += struct.pack('<I', self.budgets is not None)
        return out + (b'' if self.budgets is None else self.budgets.astype('<u4').tobytes())


def packed(x, dtype):
    """The bytes of f32 values that the dtype holds exactly."""
    if dtype == F16:
        return x.astype('<f2').tobytes()
    if dtype == BF16:
        return (x.view(np.uint32) >> 16).astype('<u2').tobytes()
    return x.astype('<f4').tobytes()


def event_bytes(event):
    """An event of a case as evict_case reads it."""
    kind = event['type']
    out = struct.pack('<I', kind)
    if kind == FORK:
        out += struct.pack('<I', event['parent'])
    if kind in (REMOVE, EVICT, READ, BY_SCORES, TO):
        out += struct.pack('<I', event['sequence'])
    if kind == STEP:
        out += struct.pack('<2I', event['exact'], len(event['who']))
        out += b''.join(struct.pack('<2I', *pair) for pair in event['who'])
        out += b''.join(x[layer].tobytes() for layer in range(len(event['rows'][0]))
                        for x in event['rows'])
    if kind == BY_SCORES:
        out += struct.pack('<I', event['scores'].shape[-1]) + event['scores'].tobytes()
    if kind == TO:
        out += struct.pack('<I', event['slots'].shape[-1])
        out += event['slots'].astype('<u4').tobytes() + event['counts'].astype('<u4').tobytes()
    return out


def make_eviction(rng, kind, most):
    """Numbers and options for a kind."""
    ev = Eviction(kind, int(rng.integers(28, most)), sinks=int(rng.choice([0, 0, 0, 1, 3, 6])))
    ev.kernel = 0
    floor = float(np.float32(rng.choice([0, 0, -1, 0.25, 0.7, 0.35])))

    def pick(*options):
        return int(rng.choice(options))

    if kind in PER_STEP:
        ev.every = pick(1, 1, 0)
        ev.budget = int(rng.integers(16, max(most * 2 // 3, 50)))
    if kind == STREAMING:
        ev.sinks = pick(1, 4, 7)
        ev.options = pick(0, REINDEX)
    elif kind == H2O:
        ev.options = pick(0, RERANK) | pick(0, LIFETIME)
        ev.recent = pick(0, 3, (ev.budget - ev.sinks) // 2, ev.budget - ev.sinks - 1)
    elif kind == KNORM:
        ev.recent = pick(0, 0, 1, 4, ev.budget - ev.sinks - 1)
    elif kind == CALLER:
        ev.window = pick(0, 5, 16)
    elif kind not in PER_STEP:
        ev.window = int(rng.integers(8, 17))
        ev.kernel = pick(0, 1, 3, 7, 11)
        ev.every = pick(0, 8, 8)
    if kind in (SNAPKV, PYRAMIDKV, ADAKV, CRITICALKV, CRITICAL_ADAKV):
        ev.pooling = pick(POOL_MAX, POOL_AVERAGE)
    if kind in (ADAKV, CRITICAL_ADAKV, ANDPRO, DEFENSIVEKV):
        ev.floor = floor
    if kind == PYRAMIDKV:
        ev.beta = float(pick(0, 1, 2, 8, 20))
        ev.options = pick(0, REFERENCE_SCHEDULE)
    elif kind == ADAKV:
        ev.options = pick(0, BLEND)
    elif kind == ANDPRO:
        ev.chunk = pick(0, 2, 4, 8)
        ev.window = 8 * pick(1, 2)
        ev.budget = max(ev.budget, ev.window + ev.sinks + 3 * (ev.chunk or 4))
        ev.options = pick(0, ANCHOR_ALL) | pick(0, 0, BUDGET_BESIDE_KEPT, BUDGET_CHUNKS)
        if ev.has(BUDGET_CHUNKS):  # as few chunks as a budget of tokens has, but what always stays
            size = ev.chunk or 4
            always = -(-max(ev.sinks, size) // size) + ev.window // size + 1
            ev.budget = ev.window + max(ev.budget // size, always, ev.sinks + 1)
    elif kind == DEFENSIVEKV:
        ev.pooling = POOL_AVERAGE
        ev.options = pick(0, ACROSS_LAYERS)
    return ev
