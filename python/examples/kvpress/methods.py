# SPDX-License-Identifier: Apache-2.0
"""The methods that kvpress and tamis both have, with their parameters made equal, and what must follow from
the differences that are left."""
from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional

import kvpress
import numpy
import tamis
from sides import Lanes, Pressed, Tamis, Text, press_text

WINDOW, KERNEL = 32, 5
ALPHA = 0.2  # AdaKV's share of the budget that a head has for itself
BETA = 2  # PyramidKV's; the last layer has 1/BETA of the mean


@dataclasses.dataclass(frozen=True)
class Case:
    """A text of n tokens of which a lane keeps `budget` (on average where lanes share it)."""

    text: Text
    tamis: Tamis
    budget: int

    @property
    def n(self) -> int:
        """Tokens of the text."""
        return int(self.text.tokens.shape[1])

    @property
    def ratio(self) -> float:
        """kvpress's compression ratio. It keeps int(n * (1 - ratio)) tokens; without the small addend the
        product falls below the budget by rounding, and a token is lost."""
        return 1 - (self.budget + 1e-3) / self.n

    @property
    def safe(self) -> int:
        """The tokens that kvpress's AdaKV leaves to every head, those of the window included."""
        return int(self.budget * ALPHA)

    @property
    def floor(self) -> Optional[float]:
        """The same as the share that tamis takes, of the budget without the window."""
        own = self.safe - WINDOW
        return (own + 0.5) / (self.budget - WINDOW) if own > 0 else None

    @property
    def beta(self) -> float:
        """tamis draws PyramidKV's line over the budget without the window, kvpress over all of it. This beta
        makes the lines equal."""
        return (self.budget - WINDOW) / (self.budget / BETA - WINDOW)

    def snap(self) -> kvpress.SnapKVPress:
        """kvpress's SnapKV."""
        return kvpress.SnapKVPress(self.ratio, WINDOW, KERNEL)

    def less(self) -> Case:
        """With one token less."""
        return dataclasses.replace(self, budget=self.budget - 1)


SNAP: dict[str, Any] = {"window": WINDOW, "kernel": KERNEL, "pooling": "average"}


# ---- What must follow: for each lane whether it is as predicted -----------------------------------


def equal(a: Lanes, b: Lanes) -> numpy.ndarray:
    """For each lane whether both keep the same tokens."""
    return numpy.array([[numpy.array_equal(x, y) for x, y in zip(*layers)] for layers in zip(a, b)])


def same(case: Case, theirs: Lanes, ours: Lanes) -> numpy.ndarray:
    """Both keep the same."""
    return equal(theirs, ours)


def with_last(lanes: Lanes, less: Lanes, last: int) -> Lanes:
    """`lanes` where they hold the last token, else those of one token less, and the last."""
    return [[lane if last in lane else numpy.append(other, last) for lane, other in zip(*layers)]
            for layers in zip(lanes, less)]


def they_force_last(case: Case, theirs: Lanes, ours: Lanes) -> numpy.ndarray:
    """kvpress gives the last token the largest score. So its set is tamis's where that holds the last token,
    else tamis's of one token less, and the last."""
    less = case.tamis.kept(tamis.TOVA(case.budget - 1, every=0))
    return equal(theirs, with_last(ours, less, case.n - 1))


def we_force_last(case: Case, theirs: Lanes, ours: Lanes) -> numpy.ndarray:
    """tamis always keeps the last token. So its set is kvpress's where that holds the last token, else
    kvpress's of one token less, and the last."""
    less = press_text(kvpress.ObservedAttentionPress(case.less().ratio), case.text, eager=True).lanes
    return equal(ours, with_last(theirs, less, case.n - 1))


def nested(case: Case, theirs: Lanes, ours: Lanes) -> numpy.ndarray:
    """Budgets may differ by a token by rounding; the smaller set then lies in the larger one."""
    return numpy.array([[len(set(a) ^ set(b)) == abs(len(a) - len(b)) <= 1 for a, b in zip(*layers)]
                        for layers in zip(theirs, ours)])


def safe_in_first_half(case: Case, theirs: Lanes, ours: Lanes) -> numpy.ndarray:
    """kvpress takes the larger of AdaKV's safe tokens and half of a head's budget by unweighted scores, tamis
    always half: lanes of at least twice the safe tokens are equal, the others equally long."""
    long = numpy.array([[len(lane) >= 2 * case.safe for lane in layer] for layer in theirs])
    lengths = numpy.array([[len(a) == len(b) for a, b in zip(*layers)] for layers in zip(theirs, ours)])
    return numpy.where(long, equal(theirs, ours), lengths)


# ---- Scores of tamis: [n_layers][tokens], the mean over KV heads ----------------------------------


def snap_scores(case: Case) -> numpy.ndarray:
    """SnapKV's of the tokens before the window, pooled with zeros beyond the ends."""
    weights = case.tamis.weights(WINDOW)[:, :-WINDOW]
    box = numpy.full(KERNEL, 1 / KERNEL)
    return numpy.stack([numpy.convolve(layer, box, "same") for layer in weights])


def newest_scores(case: Case) -> numpy.ndarray:
    """TOVA's of all tokens but the last."""
    return case.tamis.weights(1)[:, :-1]


def lifetime_scores(case: Case) -> numpy.ndarray:
    """The sums of all rows' weights, divided by the number of rows that see the token."""
    return case.tamis.weights(case.n) * case.n / numpy.arange(case.n, 0, -1)


# ---- The methods ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Method:
    """A method on both sides. `why`: what differs, or how it was made equal. `predicted` None: nothing is."""

    theirs: str
    ours: str
    press: Callable[[Case], kvpress.BasePress]
    evict: Callable[[Case], tamis.Eviction]
    why: str
    predicted: Optional[Callable[[Case, Lanes, Lanes], numpy.ndarray]] = same
    scores: Optional[Callable[[Case], numpy.ndarray]] = None
    eager: bool = False
    by_their_scores: bool = False


METHODS = [
    Method("SnapKV", "snapkv", Case.snap, lambda c: tamis.SnapKV(c.budget, **SNAP),
           "pooling is set to average, as kvpress has no other", scores=snap_scores),
    Method("SnapKV, defaults", "snapkv, defaults", lambda c: kvpress.SnapKVPress(c.ratio),
           lambda c: tamis.SnapKV(c.budget), "window 64 and average of 5; window 32 and maximum of 7", None),
    Method(f"PyramidKV, beta {BETA}", "pyramidkv",
           lambda c: kvpress.PyramidKVPress(c.ratio, WINDOW, KERNEL, BETA),
           lambda c: tamis.PyramidKV(c.budget, beta=c.beta, **SNAP),
           "kvpress's line counts the window, tamis's does not: beta is set so that both are equal. kvpress "
           "rounds each layer, tamis to the exact total, so that budgets may differ by a token", nested),
    Method("PyramidKV, beta 20", "snapkv", lambda c: kvpress.PyramidKVPress(c.ratio, WINDOW, KERNEL),
           lambda c: tamis.SnapKV(c.budget, **SNAP),
           "where budget / beta is below the window, kvpress gives every layer the same"),
    Method("AdaKV(SnapKV)", "adakv", lambda c: kvpress.AdaKVPress(c.snap(), ALPHA),
           lambda c: tamis.AdaKV(c.budget, floor=c.floor, **SNAP),
           "kvpress's safe tokens count the window, tamis's floor does not: floor is set to match"),
    Method("CriticalKV(SnapKV)", "criticalkv", lambda c: kvpress.CriticalKVPress(c.snap()),
           lambda c: tamis.CriticalKV(c.budget, **SNAP),
           "the same epsilon and norm; both count the window in the first half"),
    Method("CriticalAdaKV(SnapKV), alpha 0", "critical-adakv, no floor",
           lambda c: kvpress.CriticalAdaKVPress(c.snap(), 0),
           lambda c: tamis.CriticalAdaKV(c.budget, floor=None, **SNAP), ""),
    Method("CriticalAdaKV(SnapKV)", "critical-adakv", lambda c: kvpress.CriticalAdaKVPress(c.snap(), ALPHA),
           lambda c: tamis.CriticalAdaKV(c.budget, floor=c.floor, **SNAP),
           "kvpress takes all safe tokens by unweighted scores, tamis half of a head's budget: only lanes "
           "below twice the safe tokens may differ", safe_in_first_half),
    Method("TOVA", "tova", lambda c: kvpress.TOVAPress(c.ratio), lambda c: tamis.TOVA(c.budget, every=0),
           "kvpress always keeps the last token; in the paper and tamis it competes", they_force_last,
           newest_scores),
    Method("StreamingLLM", "streaming", lambda c: kvpress.StreamingLLMPress(c.ratio),
           lambda c: tamis.Streaming(c.budget, every=0), "4 sinks"),
    Method("Knorm", "knorm", lambda c: kvpress.KnormPress(c.ratio), lambda c: tamis.Knorm(c.budget, every=0),
           "a token that occurs twice has keys of equal norm in the first layer"),
    Method("ObservedAttention", "h2o, lifetime, recent 1", lambda c: kvpress.ObservedAttentionPress(c.ratio),
           lambda c: tamis.H2O(c.budget, recent=1, lifetime=True, every=0),
           "kvpress has no recent tokens, tamis at least one", we_force_last, lifetime_scores, eager=True),
    Method("ExpectedAttention", "caller", lambda c: kvpress.ExpectedAttentionPress(c.ratio),
           lambda c: tamis.Kept(c.budget), "tamis has it not, but evicts by the scores of any press",
           by_their_scores=True),
]


@dataclasses.dataclass
class Result:
    """What came out for a method, over all budgets and lanes."""

    theirs: str
    ours: str
    why: str
    lanes: int = 0
    equal: int = 0
    tied: int = 0
    tied_layers: list[int] = dataclasses.field(default_factory=list)
    as_predicted: Optional[int] = None
    common: float = 0  # share of kept tokens that both keep
    scores: Optional[float] = None  # largest difference, as a part of a layer's largest score


def compare(method: Method, cases: list[Case]) -> Result:
    """Runs a method on both sides at each budget."""
    out = Result(method.theirs, method.ours, method.why)
    kept = both = 0
    for case in cases:
        pressed = press_text(method.press(case), case.text, eager=method.eager)
        lanes = case.tamis.kept(method.evict(case), pressed.scores if method.by_their_scores else None)
        alike, ties = equal(pressed.lanes, lanes), tied(pressed, lanes)
        out.lanes += alike.size
        out.equal += int(alike.sum())
        out.tied += int(ties.sum())
        out.tied_layers = sorted({*out.tied_layers, *numpy.nonzero(ties)[0].tolist()})
        if method.predicted:
            predicted = method.predicted(case, pressed.lanes, lanes) | ties
            out.as_predicted = (out.as_predicted or 0) + int(predicted.sum())
        for a, b in zip(sum(pressed.lanes, []), sum(lanes, [])):
            kept, both = kept + max(len(a), len(b)), both + len(numpy.intersect1d(a, b))
        if method.scores and out.scores is None and pressed.scores is not None:
            own = method.scores(case)
            differ = abs(own - pressed.scores.mean(1)[:, :own.shape[1]])
            out.scores = float((differ.max(1) / own.max(1)).max())
    out.common = both / kept
    return out


def tied(theirs: Pressed, ours: Lanes) -> numpy.ndarray:
    """For each lane whether both keep as many tokens, and those in which they differ have equal scores but
    for rounding: which of them stays is then nobody's rule."""
    out = numpy.zeros((len(ours), len(ours[0])), bool)
    for at in numpy.ndindex(out.shape):
        a, b = theirs.lanes[at[0]][at[1]], ours[at[0]][at[1]]
        differ = numpy.setxor1d(a, b)
        if theirs.scores is not None and len(a) == len(b) and len(differ):
            found = theirs.scores[at][differ]
            out[at] = numpy.ptp(found) <= 1e-5 * abs(found).max()
    return out


# ---- Found on the way -----------------------------------------------------------------------------


@dataclasses.dataclass
class Findings:
    """Where kvpress does not do what its parameters say."""

    kept_of_1000_at_ratio_0_9: int
    kept_otherwise_in_a_batch: dict[str, float]  # share of a text's tokens

    @property
    def lines(self) -> list[str]:
        """As sentences."""
        batch = ", ".join(f"{name} {100 * share:.3g} %"
                          for name, share in self.kept_otherwise_in_a_batch.items())
        return [f"At a compression ratio of 0.9 kvpress keeps {self.kept_of_1000_at_ratio_0_9} of 1,000 "
                "tokens: it truncates 1000 * (1 - 0.9), which is 99.99999999999997.",
                "Of the tokens that kvpress keeps of a text alone, it evicts, where the text is twice in a "
                f"batch: {batch}."]


def findings(case: Case) -> Findings:
    """Runs the presses that share budgets over the text alone, and over a batch of it twice."""
    twice = dataclasses.replace(case.text, tokens=case.text.tokens.repeat(2, 1))
    shares = {}
    for name, kind in (("AdaKV", kvpress.AdaKVPress), ("CriticalAdaKV", kvpress.CriticalAdaKVPress)):
        alone, batch = (sum(press_text(kind(case.snap(), ALPHA), text).lanes, [])
                        for text in (case.text, twice))
        both = sum(len(numpy.intersect1d(a, b)) for a, b in zip(alone, batch))
        shares[name] = 1 - both / sum(len(lane) for lane in alone)
    return Findings(kvpress.utils.compute_n_kept(1000, 0.9), shares)
