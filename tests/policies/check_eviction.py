#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what evictions keep against formulas in double precision. Random cases are played by
evict_case on a device; of every event these must hold:
  1. the fp32 scores that a select ranked by give, by the written order, exactly what stays;
  2. those scores agree with the formulas within a fifth of the tolerances of host/ops/, added up
     (the reference within a twentieth);
  3. the slots that stay are those of the formulas where none of their scores is within that of the
     threshold; else only such slots differ;
  4. of decode steps at fixed lengths: the one token that goes is within it of the lowest;
  5. the attention's output is that over the slots that are held, or of pages that are read, within
     attend's tolerance; those pages are the ones with the best bounds;
  6. where nothing was near, the reference keeps the same slots.

Usage: check_eviction.py EVICT_CASE [--device D] [--cases N] [--seed S] [--first I] [--only KIND]
                         [--against D] [--small] [--self-test]
"""
import argparse
import copy
import struct
import subprocess
import sys
import threading

try:
    import numpy as np
except ImportError:
    print('no NumPy for %s; Debian has it as python3-numpy' % sys.executable)
    sys.exit(77)

sys.dont_write_bytecode = True  # beside the sources
import evict_cases as cases
import evict_oracle as oracle
from evict_cases import ADD, BY_SCORES, EVICT, FORK, PER_STEP, READ, REMOVE, STEP, TO
from evict_oracle import H2O, KNORM, LIFETIME, REINDEX, RERANK, STREAMING, TOVA, Held, Lane

KINDS = list(range(1, len(oracle.NAMES)))
E_STATE = -6
# Of the tolerances, which are for the longest rows and sums. The reference computes in fp64 and
# rounds what it stores.
PRECISE, SHORT = 0.05, 0.2


# ---- The driver ---------------------------------------------------------------------------------


class Driver:
    """evict_case on a device; cases go in by a thread, so that neither side waits for the other."""

    def __init__(self, program, device):
        self.device = device
        self.process = subprocess.Popen([program, '--device', device], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    def feed(self, tape):
        try:
            self.process.stdin.write(tape)
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the reader will see the end

    def take(self, form, shape=None):
        """Numbers of a struct format; with a shape an array of one type."""
        size = struct.calcsize('<' + form) * (1 if shape is None else int(np.prod(shape)))
        data = self.process.stdout.read(size) if size else b''
        if len(data) < size:
            raise EOFError
        if shape is None:
            return struct.unpack('<' + form, data)
        return np.frombuffer(data, '<' + {'f': 'f4', 'i': 'i4'}[form]).reshape(shape)

    def play(self, case):
        """The results of a case, event by event."""
        feeder = threading.Thread(target=self.feed, args=(case.tape(),))
        feeder.start()
        results = [self.result(case, event) for event in case.events]
        feeder.join()
        return results

    def result(self, case, event):
        kind, status, length = self.take('IiI')
        assert kind == event['type'], 'event %d for %d' % (kind, event['type'])
        text = ''.join(x.decode() for x in self.take('%ds' % length)) if length else ''
        result = {'status': status, 'text': text}
        if kind == STEP:
            rows = len(event['rows'][0][0])
            result['out'], result['read'] = [], []
            listed = case.selection[0] == cases.QUEST and not event['exact']
            for _ in range(case.layers):
                result['out'].append(self.take('f', (rows, case.heads, case.dim)))
                result['read'].append([[self.take('i', self.take('I')) for _ in
                                        range(case.kv_heads)] for _ in range(rows * listed)])
        elif kind in (EVICT, BY_SCORES, TO):
            result['numbers'] = self.take('4Q')
            result['traces'] = {}
            for _ in range(self.take('I')[0]):
                layer, stage, _, heads, n = self.take('5I')
                trace = self.take('f', (heads, n))
                for i in range(heads // case.kv_heads):  # of several layers where those compete
                    result['traces'][layer + i, stage] = \
                        trace[i * case.kv_heads:(i + 1) * case.kv_heads]
        elif kind == READ:
            result['kv'] = [[self.take('f', (2, self.take('I')[0], case.dim))
                             for _ in range(case.kv_heads)] for _ in range(case.layers)]
        result['positions'] = {}
        for _ in range(self.take('I')[0]):
            i = self.take('I')[0]
            result['positions'][i] = [[self.take('i', (self.take('I')[0],)).astype(int)
                                       for _ in range(case.kv_heads)] for _ in range(case.layers)]
        return result

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait()


# ---- What the library holds, beside the formulas -------------------------------------------------


class Sequence:
    """Its tokens, what its lanes hold, and the rows [first, end) whose queries the plan knows."""

    def __init__(self, case, parent=None):
        self.parent, self.shared, self.removed = parent, parent is not None, False
        self.length, self.known = 0, (0, 0)
        self.rows = [np.zeros((case.layers, 0, h, case.dim))
                     for h in (case.kv_heads, case.kv_heads, case.heads)]
        self.lanes = [[Lane.empty() for _ in range(case.kv_heads)] for _ in range(case.layers)]
        if parent:
            parent.shared = True
            self.length = self.forked_at = parent.length
            self.rows, self.lanes = copy.deepcopy((parent.rows, parent.lanes))

    def knowledge(self, window):
        """A fork that the plan has not seen has what is known of its parent's rows."""
        if not self.parent:
            return self.known
        if self.parent.removed:
            return 0, 0
        first, end = self.parent.knowledge(window)
        return max(first, end - window), min(end, self.forked_at)

    def inherit(self, window):
        self.known, self.parent = self.knowledge(window), None

    def append(self, rows, known, window):
        first = self.length
        self.rows = [np.concatenate([a, b], 1) for a, b in zip(self.rows, rows)]
        self.length += rows[0].shape[1]
        self.inherit(window)
        if known:
            self.known = self.known[0] if self.known[1] == first else first, self.length

    def knows(self, window):
        self.inherit(window)
        return self.known[0] <= self.length - window and self.known[1] == self.length

    def kv(self, layer, head):
        at = self.lanes[layer][head].positions
        return self.rows[0][layer, at, head], self.rows[1][layer, at, head]

    def queries(self, case, layer, head, first):
        """[t, g, d] from a position on."""
        return self.rows[2][layer, first:, head * case.group:(head + 1) * case.group]


def rotated(x, angles, adjacent):
    """Rows [t, g, d] turned by angles [t, n_rot / 2]."""
    n = angles.shape[-1]
    a, b = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if adjacent else \
        (slice(0, n), slice(n, 2 * n))
    c, s, y = np.cos(angles)[:, None], np.sin(angles)[:, None], x.copy()
    y[..., a], y[..., b] = x[..., a] * c - x[..., b] * s, x[..., a] * s + x[..., b] * c
    return y


def difference(got, wanted):
    more, less = np.setdiff1d(got, wanted), np.setdiff1d(wanted, got)
    if len(more) or len(less):
        return 'holds positions %s in place of %s' % (list(more), list(less))
    return 'holds the right positions in other slots: %s for %s' % (list(got), list(wanted))


class Mirror:
    """Follows a case event by event: holds what the library holds, says where that is wrong."""

    def __init__(self, case, device):
        self.case = case
        self.world = oracle.World(case.layers, case.heads, case.kv_heads, case.dim,
                                  case.scale or case.dim ** -0.5, case.cap,
                                  case.eviction.filled(), case.output, case.budgets,
                                  PRECISE if device.startswith('reference') else SHORT)
        self.out_tolerance = PRECISE if device.startswith('reference') else 1.0
        self.sequences, self.failures = {}, []
        self.sure, self.sure_until = True, 0  # no near tie so far; events until the first one
        self.counts = {'decisions': 0, 'sure': 0, 'steps': 0, 'victims': 0, 'lists': 0,
                       'refused': 0}

    def fail(self, form, *values):
        self.failures.append('event %d: ' % self.at + form % values)

    def run(self, results):
        for self.at, (event, result) in enumerate(zip(self.case.events, results)):
            {ADD: self.add, FORK: self.fork, REMOVE: self.remove, STEP: self.step, READ: self.read,
             EVICT: self.evict, BY_SCORES: self.evict, TO: self.evict}[event['type']](event, result)
            self.unmoved(result['positions'])
            if self.failures:
                return  # what follows would follow from it
            self.sure_until += self.sure

    def add(self, _event, _result):
        self.sequences[len(self.sequences)] = Sequence(self.case)

    def fork(self, event, _result):
        self.sequences[len(self.sequences)] = Sequence(self.case, self.sequences[event['parent']])

    def remove(self, event, _result):
        self.sequences[event['sequence']].removed = True

    def lanes(self):
        return np.ndindex(self.case.layers, self.case.kv_heads)

    def unmoved(self, positions):
        """Every lane holds what the checks of the event took for right."""
        live = [i for i, s in self.sequences.items() if not s.removed]
        if sorted(positions) != live:
            self.fail('sequences %s, wanted %s', sorted(positions), live)
            return
        for i in live:
            for layer, head in self.lanes():
                got, lane = positions[i][layer][head], self.sequences[i].lanes[layer][head]
                if not np.array_equal(got, lane.positions):
                    self.fail('sequence %d, layer %d, KV head %d %s', i, layer, head,
                              difference(got, lane.positions))

    def read(self, event, result):
        sequence = self.sequences[event['sequence']]
        for layer, head in self.lanes():
            wanted = np.stack(sequence.kv(layer, head))
            if not np.array_equal(result['kv'][layer][head], wanted):
                self.fail('sequence %d, layer %d, KV head %d: K or V of other tokens',
                          event['sequence'], layer, head)

    # ---- Steps ----

    def step(self, event, result):
        first = 0
        for i, n in event['who']:
            sequence = self.sequences[i]
            sequence.append([x[:, first:first + n] for x in event['rows']],
                            event['exact'] or not self.case.fixed_launches,
                            self.world.eviction.window)
            for layer in range(self.case.layers):
                got = result['positions'][i][layer]
                for head, lane in enumerate(sequence.lanes[layer]):
                    sequence.lanes[layer][head] = self.grown(lane, sequence.length, n,
                                                             event['exact'], got[head], (i, head))
                if any(len(x.positions) != len(y) for x, y in zip(sequence.lanes[layer], got)):
                    self.fail('layer %d: lanes of other lengths', layer)
                    return
                lists = result['read'][layer][first:first + n]
                read = self.listed(sequence, layer, lists[0]) if lists else \
                    [True] * self.case.kv_heads
                self.feed(sequence, layer, n, read)
                out = result['out'][layer][first:first + n]
                for head in range(self.case.kv_heads):
                    self.attended(sequence, layer, head, n, out, read[head])
            first += n
        self.counts['steps'] += 1

    def grown(self, lane, length, n, exact, got, who):
        """The lane with the step's n rows in it; which one went follows the library."""
        ev = self.world.eviction
        full = len(lane.positions) >= ev.budget and ev.every == 1 and not exact
        if not full:
            new = np.arange(length - n, length)
            return Lane(np.append(lane.positions, new), np.append(lane.score, np.zeros(n)),
                        np.append(lane.error, np.zeros(n)))
        gone = np.setdiff1d(lane.positions, got)
        if len(gone) != 1 or len(got) != len(lane.positions):
            self.fail('sequence %d, KV head %d: %s left for a row at position %d', *who, gone,
                      length - 1)
            return lane
        victim = int(np.flatnonzero(lane.positions == gone[0])[0])
        self.check_victim(lane, victim, length - 1)
        return self.replaced(lane, victim, length - 1)

    @staticmethod
    def replaced(lane, victim, position):
        """The row takes the victim's slot."""
        lane = lane.take(np.arange(len(lane.positions)))
        lane.positions[victim], lane.score[victim], lane.error[victim] = position, 0, 0
        return lane

    def check_victim(self, lane, victim, position):
        world, ev, at = self.world, self.world.eviction, lane.positions
        may = at >= ev.sinks
        if ev.kind == STREAMING:
            if at[victim] != at[may].min():
                self.fail('position %d left, %d is the oldest', at[victim], at[may].min())
            return
        if ev.kind == H2O:
            newest = np.sort(at)[-ev.recent:]
            may &= (at < newest[0]) | (ev.has(RERANK) & (at == newest[0]))
        if ev.kind == KNORM and ev.recent > 0:
            may &= at <= position - ev.recent
        age = position - at if ev.has(LIFETIME) else 1
        score, error = lane.score / age, world.tolerance * lane.error / age
        low = np.where(may, score + error, np.inf).min()
        self.counts['victims'] += 1
        if not may[victim] or score[victim] - error[victim] > low:
            self.fail('position %d left with a score of %.9g ± %.2g; another has at most %.9g',
                      at[victim], score[victim], error[victim], low)
        others = may & (np.arange(len(at)) != victim)
        near = others & (score - error <= score[victim] + error[victim])
        self.sure &= not near.any()

    def listed(self, sequence, layer, lists):
        """Of each KV head the slots of the pages that its row read, after a look at those."""
        _, budget, sinks, recent, dense, rule = self.case.selection
        ev, page, masks = self.world.eviction, self.case.page, []
        for head, got in enumerate(lists):
            at = sequence.lanes[layer][head].positions
            taken = np.isin(np.arange(-(-len(at) // page)), got)
            masks.append(np.repeat(taken, page)[:len(at)])
            k = budget // page
            if layer < dense or len(taken) <= k:
                always = taken | True
            else:
                always = oracle.read_always(at, page, k, sinks, recent,
                                            ev.kind in PER_STEP and ev.every == 1)
            if taken.sum() != len(got) or (always & ~taken).any() or \
                    len(got) != max(k, always.sum()) and not always.all():
                self.fail('layer %d, KV head %d reads pages %s, wanted %d and of these %s', layer,
                          head, list(got), k, list(np.flatnonzero(always)))
                continue
            q = sequence.queries(self.case, layer, head, sequence.length - 1)[0]
            s, e = oracle.page_scores(q, sequence.kv(layer, head)[0], page, rule,
                                      cases.stored_bounds(self.case.dtype))
            select = oracle.Select(0, [(layer, head)], [always], [taken])
            pair = [[x] for x in self.filled((s, e), len(taken))]
            why = oracle.explained(select, *pair)
            if why:
                self.fail('layer %d, KV head %d reads pages %s: %s', layer, head, list(got), why)
            self.counts['lists'] += not always.all()
            self.sure &= oracle.certain(select, *pair, False)
        return masks

    def feed(self, sequence, layer, n, read):
        """What the step's rows add to the plane of scores."""
        kind, lanes = self.world.eviction.kind, sequence.lanes[layer]
        if kind == KNORM:
            for head, lane in enumerate(lanes):
                lane.score, lane.error = oracle.norms(sequence.kv(layer, head)[0])
        if kind not in (H2O, TOVA):
            return
        shares, first = [], sequence.length - (n if kind == H2O else 1)
        for head, lane in enumerate(lanes):
            k, _ = sequence.kv(layer, head)
            visible = len(k) - np.arange(sequence.length - first)[::-1]
            p, e = oracle.weights(self.world, sequence.queries(self.case, layer, head, first), k,
                                  visible, read[head])
            shares.append(oracle.added(p, e, (0, 1)))
        if kind == TOVA:
            s = sum(s for s, _ in shares) / self.case.heads
            e = sum(e for _, e in shares) / self.case.heads + 2e-6 * s
            shares = [(s, e)] * len(lanes)
        for lane, (s, e) in zip(lanes, shares):
            lane.score = lane.score * (kind == H2O) + s
            lane.error = lane.error * (kind == H2O) + e + 1.2e-7 * lane.score

    def attended(self, sequence, layer, head, n, got, read):
        """The output of the group's heads for the sequence's last n rows, [n, heads, dim]."""
        world, case, ev = self.world, self.case, self.world.eviction
        k, v = sequence.kv(layer, head)
        q = sequence.queries(case, layer, head, sequence.length - n)
        visible = len(k) - np.arange(n)[::-1]
        x, terms = oracle.logits(world, q, k)
        more = 0
        if ev.has(REINDEX):
            sinks = sequence.lanes[layer][head].positions < ev.sinks
            back = np.arange(sequence.length - n, sequence.length) - (visible - 1)
            turned = rotated(q, -back[:, None] * case.rotation[1], case.rotation[0])
            y, others = oracle.logits(world, turned, k)
            x, terms = np.where(sinks, y, x), np.where(sinks, others, terms)
            more = 2e-6
        seen = (np.arange(len(k)) < visible[:, None, None]) & read
        x, terms = np.where(seen, x, -np.inf), np.where(seen, terms, 0).max(-1, keepdims=True)
        top = np.abs(np.where(seen, x, 0)).max(-1, keepdims=True)
        p = np.exp(x - x.max(-1, keepdims=True))
        wanted = np.einsum('tgn,nd->tgd', p / p.sum(-1, keepdims=True), v)
        most = np.where(seen[:, 0], np.abs(v).max(-1), 0).max(-1)[:, None, None]
        allowed = most * (self.out_tolerance * (2e-6 * (1 + top) + 1e-6 * terms) + 1e-7)
        allowed += most * more * (1 + terms)  # turned queries, merged states
        off = np.abs(got[:, head * case.group:(head + 1) * case.group] - wanted)
        if not (off <= allowed).all():
            self.fail('layer %d, KV head %d: out is off by %.3g of %.3g', layer, head,
                      (off / allowed).max() * allowed.max(), allowed.max())

    # ---- Evictions ----

    def evict(self, event, result):
        i = event['sequence']
        sequence, got = self.sequences[i], result['positions'].get(i)
        positions = [[lane.positions for lane in layer] for layer in sequence.lanes]
        if event['type'] == EVICT and self.refused(sequence, positions, result):
            return
        if result['status'] != 0:
            self.fail('sequence %d: status %d, %s', i, result['status'], result['text'])
            return
        keep = self.kept(event, result, sequence, positions)
        if keep is None:
            return
        before = sum(len(p) for layer in positions for p in layer)
        for layer, head in self.lanes():
            mask, lane = keep[layer][head], sequence.lanes[layer][head]
            if not np.array_equal(got[layer][head], lane.positions[mask]):
                self.fail('sequence %d, layer %d, KV head %d %s', i, layer, head,
                          difference(got[layer][head], lane.positions[mask]))
            sequence.lanes[layer][head] = lane.take(np.flatnonzero(mask))
        self.check_numbers(result['numbers'], before, positions, keep, sequence)

    def refused(self, sequence, positions, result):
        """Where something has to go, the plan must have kept the last queries; else nothing
        happens."""
        window = self.world.eviction.window
        needed = oracle.Decision(self.world, positions, sequence.length, lambda *_: ()).exceeds
        if window == 0 or not needed or sequence.knows(window):
            return False
        self.counts['refused'] += 1
        if result['status'] != E_STATE or 'are not all kept by this plan' not in result['text']:
            self.fail('status %d, %s; the queries of the window are not known', result['status'],
                      result['text'])
        return True

    def check_numbers(self, numbers, before, positions, keep, sequence):
        case, ev = self.case, self.world.eviction
        after = sum(int(mask.sum()) for layer in keep for mask in layer)
        if numbers[:2] != (before, after):
            self.fail('tells of %d of %d tokens kept, wanted %d of %d', numbers[1], numbers[0],
                      after, before)
        pages = sum(-(-len(p) // case.page) + -int(mask.sum()) // case.page
                    for x, y in zip(positions, keep) for p, mask in zip(x, y))
        slot, pair = cases.slot_bytes(case.dim, case.dtype)
        size = case.page * slot + pair
        size += 4 * case.page * (2 if ev.kind in (H2O, TOVA, KNORM) else 1)
        if not sequence.shared and numbers[2:] != (pages, pages * size):
            self.fail('tells of %d pages, %d bytes returned, wanted %d, %d', *numbers[2:], pages,
                      pages * size)

    def kept(self, event, result, sequence, positions):
        """What stays by the scores that the library ranked by, after a look at those."""
        world, length = self.world, sequence.length
        self.counts['decisions'] += 1
        if event['type'] == TO:
            self.counts['sure'] += 1
            keep = [[np.zeros(len(p), bool) for p in layer] for layer in positions]
            for lane in self.lanes():
                keep[lane[0]][lane[1]][event['slots'][lane][:event['counts'][lane]]] = True
            return keep
        if event['type'] == BY_SCORES:
            self.counts['sure'] += 1
            given = event['scores']
            return oracle.Decision(world, positions, length,
                                   lambda layer, stage, head: given[layer, head]).keep
        traces = result['traces']
        try:
            by_traces = oracle.Decision(world, positions, length,
                                        lambda layer, stage, head: traces[layer, stage][head])
        except KeyError as missing:
            self.fail('no scores of (layer, stage) %s', missing)
            return None
        if by_traces.selects:
            self.by_formulas(sequence, positions, by_traces, traces)
        else:
            self.counts['sure'] += 1
        return by_traces.keep

    def by_formulas(self, sequence, positions, by_traces, traces):
        """The scores, and what stays by them, against the formulas."""
        world = self.world
        scores = [oracle.layer_scores(world, layer, self.held(sequence, layer))
                  for layer in range(world.layers)]
        for (layer, stage), trace in traces.items():
            for head, (s, e) in enumerate(scores[layer][stage]):
                off = np.abs(trace[head][:len(s)] - s)
                if not (off <= e).all():
                    worst = int(np.argmax(np.where(np.isnan(off), np.inf, off - e)))
                    self.fail('layer %d, stage %d, KV head %d: score %.9g of entry %d, wanted '
                              '%.9g ± %.2g', layer, stage, head, trace[head][worst], worst,
                              s[worst], e[worst])
        wanted = oracle.Decision(world, positions, sequence.length,
                                 lambda layer, stage, head: scores[layer][stage][head][0])
        ties = not self.case.ties
        if all(oracle.certain(x, *self.of(x, scores), ties) for x in wanted.selects):
            self.counts['sure'] += 1
            same = all(np.array_equal(a, b) for x, y in zip(wanted.keep, by_traces.keep)
                       for a, b in zip(x, y))
            if not same:
                self.fail('not what the formulas keep, and no score is near another')
            return
        self.sure = False
        for select in by_traces.selects:
            why = oracle.explained(select, *self.of(select, scores))
            if why:
                self.fail('layers and heads %s, stage %d: %s', select.lanes, select.stage, why)

    def held(self, sequence, layer):
        lanes, window = [], self.world.eviction.window
        first = max(sequence.length - window, 0)
        for head, lane in enumerate(sequence.lanes[layer]):
            k, v = sequence.kv(layer, head)
            at = np.arange(first, sequence.length)
            visible = (lane.positions <= at[:, None]).sum(-1)
            lanes.append(Held(len(k), k, v, sequence.queries(self.case, layer, head, first),
                              visible, lane, sequence.length))
        return lanes

    def of(self, select, scores):
        """The scores of a select's lanes, and their errors."""
        pairs = [self.filled(scores[layer][select.stage][head], len(taken))
                 for (layer, head), taken in zip(select.lanes, select.taken)]
        return [s for s, _ in pairs], [e for _, e in pairs]

    @staticmethod
    def filled(pair, n):
        return [np.pad(x, (0, n - len(x))) for x in pair]


# ---- Runs ---------------------------------------------------------------------------------------


def make_case(options, number):
    kind = KINDS[number % len(KINDS)] if options.only is None else options.only
    return cases.Case(options.seed, number, kind, options.small)


def differing(case, mine, others, until):
    """The first event after which two devices hold different slots, up to where both were sure."""
    for at in range(until):
        a, b = mine[at]['positions'], others[at]['positions']
        for i in a:
            for layer, head in np.ndindex(case.layers, case.kv_heads):
                if sorted(a[i][layer][head]) != sorted(b[i][layer][head]):
                    return at
    return None


def run_cases(options):
    devices = [options.device] + ([options.against] if options.against else [])
    drivers = [Driver(options.program, device) for device in devices]
    failed, totals = 0, {'cases': 0, 'compared': 0}
    for number in range(options.first, options.first + options.cases):
        case = make_case(options, number)
        try:
            results = [driver.play(case) for driver in drivers]
        except EOFError:
            codes = [driver.close() for driver in drivers]
            if codes[0] == 77 and totals['cases'] == 0:
                return 77
            print('%s: the driver ended with %s' % (case.name(), codes))
            return 1
        mirror = Mirror(case, options.device)
        mirror.run(results[0])
        if len(results) > 1 and not mirror.failures:
            at = differing(case, *results, mirror.sure_until)
            totals['compared'] += mirror.sure_until
            if at is not None:
                mirror.failures.append('event %d: %s keeps other slots' % (at, devices[1]))
        for failure in mirror.failures[:5]:
            print('%s %s: %s' % (oracle.NAMES[case.kind], case.name(), failure))
        failed += bool(mirror.failures)
        totals['cases'] += 1
        for name, n in mirror.counts.items():
            totals[name] = totals.get(name, 0) + n
    for driver in drivers:
        failed += driver.close() != 0
    print('%s: %s, %d failed' % (options.device, ', '.join('%d %s' % (n, name) for name, n in
                                                           totals.items()), failed))
    return 1 if failed else 0


# ---- Whether the checks can fail ----------------------------------------------------------------


def evictions_that_took(case, results):
    """Of lanes that lost something: the layer's positions afterwards, the KV head, what went."""
    for at, event in enumerate(case.events):
        if event['type'] in (EVICT, BY_SCORES, TO):
            i = event['sequence']
            for layer, head in np.ndindex(case.layers, case.kv_heads):
                after = results[at]['positions'][i][layer]
                gone = np.setdiff1d(results[at - 1]['positions'][i][layer][head], after[head])
                if len(gone):
                    yield after, head, gone


def swap_kept(case, results, _mirror):
    for after, head, gone in evictions_that_took(case, results):
        after[head][len(after[head]) // 2] = gone[-1]
        after[head].sort()
        return True
    return False


def drop_kept(case, results, _mirror):
    for after, head, _ in evictions_that_took(case, results):
        after[head] = after[head][:-1]
        return True
    return False


def other_victim(case, results, _mirror):
    for at, event in enumerate(case.events):
        if event['type'] == STEP and not event['exact']:
            i = event['who'][0][0]
            before, after = (results[x]['positions'][i][0][0] for x in (at - 1, at))
            gone = np.setdiff1d(before, after)
            if len(gone) and len(after) > 2:
                other = int(np.argsort(after)[-2])  # of the newest none is ever a victim of h2o
                after[other] = gone[0]
                return True
    return False


def scale_scores(_case, results, _mirror):
    for result in results:
        for key, trace in result.get('traces', {}).items():
            if trace.any() and np.isfinite(trace).all():
                result['traces'][key] = trace * np.float32(1.001)
                return True
    return False


def scale_output(_case, results, _mirror):
    for result in results:
        if 'out' in result:
            result['out'] = [x * np.float32(1.001) for x in result['out']]
            return True
    return False


def turn_values(_case, results, _mirror):
    for result in results:
        for layer in result.get('kv', []):
            for head, kv in enumerate(layer):
                if kv.shape[1] > 1 and (kv[1, 0] != kv[1, -1]).any():
                    layer[head] = np.stack([kv[0], np.roll(kv[1], 1, 0)])
                    return True
    return False


def other_page(_case, results, _mirror):
    for result in results:
        for layer in result.get('read', []):
            for row in layer:
                for head, pages in enumerate(row):
                    gaps = np.setdiff1d(np.arange(pages.max() + 1), pages)
                    if len(gaps):
                        row[head] = np.append(pages[1:], gaps[-1])
                        return True
    return False


def change_eviction(**more):
    def change(_case, _results, mirror):
        ev = mirror.world.eviction
        for name, by in more.items():
            setattr(ev, name, getattr(ev, name) + by)
        return ev.kind not in PER_STEP and ev.kind != oracle.CALLER
    return change


def older_first(_case, _results, _mirror):
    oracle.NEWER = 1
    return True


# What is broken, how, and whether every case in which that can be done must show it.
BROKEN = [('a token kept for another', swap_kept, True), ('a token less kept', drop_kept, True),
          ('another victim', other_victim, False), ('scores off by 0.1 %', scale_scores, True),
          ('an output off by 0.1 %', scale_output, True), ('values moved', turn_values, True),
          ('another page read', other_page, True),
          ('a window one longer', change_eviction(window=1), False),
          ('a wider pooling', change_eviction(kernel=2), False),
          ('a larger budget', change_eviction(budget=1), False),
          ('the older of equals', older_first, False)]


def selects_fail():
    """Whether a select is taken for what it is: by scores that err within their errors, then with a
    slot that is too low for those."""
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(100):
        s = [rng.random(30), rng.random(30)]
        e = [np.full(30, 0.01)] * 2
        moved = [x + rng.uniform(-0.01, 0.01, 30) for x in s]
        free = [np.arange(30) > 25] * 2
        right = oracle.select_row(0, [(0, 0), (0, 1)], moved, free, 3, 30)
        sure = oracle.select_row(0, right.lanes, s, free, 3, 30)
        wrong += oracle.explained(right, s, e) is not None
        wrong += oracle.certain(sure, s, e, True) and \
            any((a != b).any() for a, b in zip(right.taken, sure.taken))
        taken = right.taken[0]
        lowest = min(np.flatnonzero(~taken), key=lambda i: s[0][i])
        highest = max(np.flatnonzero(taken[:26]), key=lambda i: s[0][i])
        taken[[lowest, highest]] = True, False
        wrong += oracle.explained(right, s, e) is None
    print('selects: %d of 100 taken for what they are not' % wrong)
    return wrong > 0


def self_test(options):
    driver, failed = Driver(options.program, options.device), selects_fail()
    seen = {name: [0, 0] for name, _, _ in BROKEN}
    for number in range(options.first, options.first + options.cases):
        case = make_case(options, number)
        results = driver.play(case)
        for name, broken, _ in BROKEN:
            copied, mirror = copy.deepcopy(results), Mirror(case, options.device)
            if broken(case, copied, mirror):
                mirror.run(copied)
                seen[name][0] += 1
                seen[name][1] += bool(mirror.failures)
            oracle.NEWER = -1
    for name, _, always in BROKEN:
        done, found = seen[name]
        missed = found < done if always else found == 0
        failed += missed or done == 0
        print('%s: seen in %d of %d cases%s' % (name, found, done, ', MISSED' if missed else ''))
    return 1 if driver.close() != 0 or failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('program')
    parser.add_argument('--device', default='reference')
    parser.add_argument('--cases', type=int, default=96)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--first', type=int, default=0)
    parser.add_argument('--only', type=oracle.NAMES.index)
    parser.add_argument('--against')
    parser.add_argument('--small', action='store_true')
    parser.add_argument('--self-test', action='store_true')
    options = parser.parse_args()
    return self_test(options) if options.self_test else run_cases(options)


if __name__ == '__main__':
    sys.exit(main())
