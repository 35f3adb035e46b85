# SPDX-License-Identifier: Apache-2.0
"""Policies (tamis/policy.h): a selection says which pages a query reads, an eviction which tokens a lane
keeps. Each kind is a dataclass with the fields that it has and the library's defaults.

Budgets, sinks, recent and window count tokens of a lane (a KV head of a layer of a sequence). A field that
must not be 0 raises ArgumentError where it is."""
from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Optional, TypeVar, Union

from ._c import ffi
from ._core import check, error, lib
from .errors import ArgumentError

GROUPS = {"max": 0, "mean": 1, "sum": 2}
POOLINGS = {"max": 0, "average": 1}


def _choice(owner: Any, name: str, value: str, known: dict[str, int]) -> int:
    if value not in known:
        raise ArgumentError(f"{type(owner).__name__}.{name} is {value!r}: known are {', '.join(known)}")
    return known[value]


_Kind = TypeVar("_Kind", bound="_Policy")


class _Policy:
    kind: ClassVar[str]
    _struct_name: ClassVar[str]
    _may_be_zero: ClassVar[frozenset[str]] = frozenset()
    _options: ClassVar[dict[str, int]] = {}
    _code: ClassVar[int]

    def _struct(self) -> Any:
        """The library's struct of this policy."""
        out = ffi.new(self._struct_name + " *")
        out.kind = self._code
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.name in self._options:
                out.options |= self._options[field.name] if value else 0
            elif field.name == "group":
                out.group = _choice(self, "group", value, GROUPS)
            elif field.name == "pooling":
                out.pooling = _choice(self, "pooling", value, POOLINGS)
            else:
                if field.name == "floor":
                    value = value or -1  # 0 means the default there
                elif not value and field.name not in self._may_be_zero:
                    raise ArgumentError(f"{type(self).__name__}.{field.name} is {value}")
                try:
                    setattr(out, field.name, value)
                except (OverflowError, TypeError) as reason:
                    raise ArgumentError(f"{type(self).__name__}.{field.name} is {value!r}: {reason}") \
                        from None
        return out


# ---- Selections -----------------------------------------------------------------------------------


class Selection(_Policy):
    """Base of selections. The page that holds a row's own token is always read, but under Lists. There is
    one list of pages for each (row, KV head)."""

    _struct_name = "tamis_selection"
    _may_be_zero = frozenset({"sinks", "recent", "dense_layers", "seed"})


@dataclasses.dataclass(frozen=True)
class Full(Selection):
    """Every page is read."""

    kind = "full"
    _code = lib.TAMIS_SELECT_FULL


@dataclasses.dataclass(frozen=True)
class Window(Selection):
    """The sinks' pages and the newest ones (StreamingLLM's reading pattern, arXiv 2309.17453)."""

    kind = "window"
    _code = lib.TAMIS_SELECT_WINDOW
    budget: int = 2048
    sinks: int = 4
    recent: int = 0
    dense_layers: int = 0


@dataclasses.dataclass(frozen=True)
class Quest(Selection):
    """Sinks, recent, and the pages with the best bounds (Quest, arXiv 2406.10774, section 3).

    Attributes:
        budget: tokens read in a lane, those that are always read included; whole pages are read.
        sinks, recent: first and last tokens that are always read; `recent` 0 means 1.
        dense_layers: the first layers, which read everything.
        group: how the scores of the query heads of a KV head are joined: "max", "mean" or "sum".
    """

    kind = "quest"
    _code = lib.TAMIS_SELECT_QUEST
    budget: int = 2048
    sinks: int = 4
    recent: int = 16
    dense_layers: int = 0
    group: str = "max"

    @classmethod
    def paper(cls, budget: int = 2048) -> Quest:
        """As its paper runs it: no sinks, only the newest page is always read, two layers read all."""
        return cls(budget=budget, sinks=0, recent=0, dense_layers=2)


@dataclasses.dataclass(frozen=True)
class Oracle(Selection):
    """The pages with the largest true attention mass: what page selection can reach. Not fast."""

    kind = "oracle"
    _code = lib.TAMIS_SELECT_ORACLE
    budget: int = 2048
    sinks: int = 4
    recent: int = 16
    dense_layers: int = 0
    group: str = "max"


@dataclasses.dataclass(frozen=True)
class Random(Selection):
    """Random pages: the floor. They follow from `seed`, layer, position and KV head on every device."""

    kind = "random"
    _code = lib.TAMIS_SELECT_RANDOM
    budget: int = 2048
    sinks: int = 4
    recent: int = 16
    dense_layers: int = 0
    group: str = "max"
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Lists(Selection):
    """The pages or tokens of lists that the caller makes (`Step.attend`); `budget` is the longest list."""

    kind = "caller"
    _code = lib.TAMIS_SELECT_CALLER
    budget: int = 2048
    dense_layers: int = 0


# ---- Evictions ------------------------------------------------------------------------------------


class Eviction(_Policy):
    """Base of evictions. A lane of at most `budget` tokens keeps all; what others lose goes back to the
    cache's pool.

    `every`: 0: at a prompt's end alone; 1: in every decode step, too, at fixed lane lengths; n: a model's
    runner evicts again every n decode steps."""

    _struct_name = "tamis_eviction"
    _may_be_zero = frozenset({"sinks", "recent", "every"})

    @property
    def planes(self) -> tuple[str, ...]:
        """What a cache must keep beside each slot: of "positions" and "scores"."""
        bits = lib.tamis_eviction_planes(self._struct())
        return tuple(name for name, bit in PLANES.items() if bits & bit)


PLANES = {"positions": lib.TAMIS_PLANE_POSITIONS, "scores": lib.TAMIS_PLANE_SCORES}


@dataclasses.dataclass(frozen=True)
class Streaming(Eviction):
    """Sinks and the newest tokens (StreamingLLM, arXiv 2309.17453). `reindex`: sinks are read as if they
    stood right before the recent tokens; needs `Plan.bind_rotation`."""

    kind = "streaming"
    _code = lib.TAMIS_EVICT_STREAMING
    _options = {"reindex": lib.TAMIS_EVICT_REINDEX}
    budget: int = 2048
    sinks: int = 4
    every: int = 1
    reindex: bool = False


@dataclasses.dataclass(frozen=True)
class H2O(Eviction):
    """Recent tokens and those with the largest attention so far (H2O, arXiv 2306.14048).

    `recent` 0 means half of the budget. `rerank`: the oldest recent token competes with the others;
    `lifetime`: sums are divided by the number of queries that could see the token."""

    kind = "h2o"
    _code = lib.TAMIS_EVICT_H2O
    _options = {"rerank": lib.TAMIS_EVICT_RERANK, "lifetime": lib.TAMIS_EVICT_LIFETIME}
    budget: int = 2048
    sinks: int = 0
    recent: int = 0
    every: int = 1
    rerank: bool = False
    lifetime: bool = False


@dataclasses.dataclass(frozen=True)
class TOVA(Eviction):
    """The tokens that the newest query weighs most, one set for all heads of a layer (arXiv 2401.06104)."""

    kind = "tova"
    _code = lib.TAMIS_EVICT_TOVA
    budget: int = 2048
    sinks: int = 0
    every: int = 1


@dataclasses.dataclass(frozen=True)
class SnapKV(Eviction):
    """Those that the last `window` queries weigh most, weights pooled over `kernel` neighbours (SnapKV,
    arXiv 2404.14469). The window's own tokens are always kept. `kernel` 1 means no pooling."""

    kind = "snapkv"
    _code = lib.TAMIS_EVICT_SNAPKV
    budget: int = 2048
    sinks: int = 0
    window: int = 32
    kernel: int = 7
    pooling: str = "max"
    every: int = 0


@dataclasses.dataclass(frozen=True)
class PyramidKV(Eviction):
    """As SnapKV, with budgets that fall from layer to layer (PyramidKV, arXiv 2406.02069): the last layer
    has 1/`beta` of the mean. `reference_schedule`: the published integer schedule, which holds more."""

    kind = "pyramidkv"
    _code = lib.TAMIS_EVICT_PYRAMIDKV
    _options = {"reference_schedule": lib.TAMIS_EVICT_REFERENCE_SCHEDULE}
    budget: int = 2048
    sinks: int = 0
    window: int = 32
    kernel: int = 7
    pooling: str = "max"
    beta: float = 20
    every: int = 0
    reference_schedule: bool = False


@dataclasses.dataclass(frozen=True)
class AdaKV(Eviction):
    """As SnapKV; the heads of a layer share its budget, of which each has the share `floor` for itself
    (Ada-KV, arXiv 2407.11550). `blend`: the published blend of budgets in place of guaranteed floors."""

    kind = "adakv"
    _code = lib.TAMIS_EVICT_ADAKV
    _options = {"blend": lib.TAMIS_EVICT_BLEND}
    budget: int = 2048
    sinks: int = 0
    window: int = 32
    kernel: int = 7
    pooling: str = "max"
    floor: Optional[float] = 0.2
    every: int = 0
    blend: bool = False


@dataclasses.dataclass(frozen=True)
class CriticalKV(Eviction):
    """As SnapKV, then weighed by the value's projected norm (CriticalKV, arXiv 2502.03805). Needs each
    layer's output projection (`Plan.bind_output`)."""

    kind = "criticalkv"
    _code = lib.TAMIS_EVICT_CRITICALKV
    budget: int = 2048
    sinks: int = 0
    window: int = 32
    kernel: int = 7
    pooling: str = "max"
    every: int = 0


@dataclasses.dataclass(frozen=True)
class CriticalAdaKV(Eviction):
    """CriticalKV with AdaKV's budgets."""

    kind = "critical-adakv"
    _code = lib.TAMIS_EVICT_CRITICAL_ADAKV
    budget: int = 2048
    sinks: int = 0
    window: int = 32
    kernel: int = 7
    pooling: str = "max"
    floor: Optional[float] = 0.2
    every: int = 0


@dataclasses.dataclass(frozen=True)
class AnDPro(Eviction):
    """Chunks whose values point where the output points (AnDPro, NeurIPS 2025); `chunk` neighbouring tokens
    are kept or evicted together. `anchor_all`: the anchor is the output over all tokens;
    `budget_beside_kept` and `budget_chunks`: two other meanings of the budget (tamis/policy.h)."""

    kind = "andpro"
    _code = lib.TAMIS_EVICT_ANDPRO
    _options = {"anchor_all": lib.TAMIS_EVICT_ANCHOR_ALL,
                "budget_beside_kept": lib.TAMIS_EVICT_BUDGET_BESIDE_KEPT,
                "budget_chunks": lib.TAMIS_EVICT_BUDGET_CHUNKS}
    budget: int = 2048
    sinks: int = 0
    window: int = 32
    kernel: int = 7
    pooling: str = "max"
    chunk: int = 4
    floor: Optional[float] = None
    every: int = 0
    anchor_all: bool = False
    budget_beside_kept: bool = False
    budget_chunks: bool = False


@dataclasses.dataclass(frozen=True)
class DefensiveKV(Eviction):
    """The worst case over last queries and heads, weighed by values (DefensiveKV, arXiv 2510.13334). Needs
    each layer's output projection. `across_layers`: heads of all layers share one budget."""

    kind = "defensivekv"
    _code = lib.TAMIS_EVICT_DEFENSIVEKV
    _options = {"across_layers": lib.TAMIS_EVICT_ACROSS_LAYERS}
    budget: int = 2048
    sinks: int = 0
    window: int = 32
    kernel: int = 5
    pooling: str = "average"
    floor: Optional[float] = None
    every: int = 0
    across_layers: bool = False


@dataclasses.dataclass(frozen=True)
class Knorm(Eviction):
    """The tokens with the smallest keys by L2 norm, without queries (Devoto et al., arXiv 2406.11430).
    `recent` last tokens are always kept."""

    kind = "knorm"
    _code = lib.TAMIS_EVICT_KNORM
    budget: int = 2048
    sinks: int = 0
    recent: int = 0
    every: int = 1


@dataclasses.dataclass(frozen=True)
class Kept(Eviction):
    """By scores or keep lists that the caller computes (`Plan.evict_by_scores`, `Plan.evict_to`)."""

    kind = "caller"
    _code = lib.TAMIS_EVICT_CALLER
    _may_be_zero = frozenset({"sinks", "window"})
    budget: int = 2048
    sinks: int = 0
    window: int = 0


SELECTIONS: dict[str, type[Selection]] = {
    kind.kind: kind for kind in (Full, Window, Quest, Oracle, Random, Lists)}
EVICTIONS: dict[str, type[Eviction]] = {
    kind.kind: kind for kind in (Streaming, H2O, TOVA, SnapKV, PyramidKV, AdaKV, CriticalKV, CriticalAdaKV,
                                 AnDPro, DefensiveKV, Kept, Knorm)}


def selection(of: Union[str, Selection, None], **fields: Any) -> Selection:
    """A selection by its name: a kind's, or "quest-paper". None is full.

    >>> selection("quest", budget=512)
    Quest(budget=512, sinks=4, recent=16, dense_layers=0, group='max')
    """
    if of is None:
        of = "full"
    if of == "quest-paper":
        of = Quest.paper()
    if not isinstance(of, Selection):
        if of not in SELECTIONS:
            raise ArgumentError(f"selection {of!r}: known are {', '.join([*SELECTIONS, 'quest-paper'])}")
        of = SELECTIONS[of]()
    return _with(of, fields)


def eviction(of: Union[str, Eviction, None], **fields: Any) -> Optional[Eviction]:
    """An eviction by its name; None and "none" are none.

    >>> eviction("snapkv", budget=1024).window
    32
    """
    if of is None or of == "none":
        if fields:
            raise ArgumentError(f"without an eviction there is no {next(iter(fields))}")
        return None
    if not isinstance(of, Eviction):
        if of not in EVICTIONS:
            raise ArgumentError(f"eviction {of!r}: known are none, {', '.join(EVICTIONS)}")
        of = EVICTIONS[of]()
    return _with(of, fields)


def _with(policy: _Kind, fields: dict[str, Any]) -> _Kind:
    known = [field.name for field in dataclasses.fields(policy)]  # type: ignore[arg-type]
    for name in fields:
        if name not in known:
            raise ArgumentError(f"{policy.kind} has no {name!r}: it has {', '.join(known) or 'no fields'}")
    return dataclasses.replace(policy, **fields) if fields else policy  # type: ignore[type-var]


def check_selection(policy: Selection, page_size: int) -> None:
    """Raises ArgumentError where the budget does not hold what is always read."""
    check(lib.tamis_selection_check(policy._struct(), page_size, error()))


def check_eviction(policy: Eviction) -> None:
    """Raises ArgumentError where numbers do not fit each other."""
    check(lib.tamis_eviction_check(policy._struct(), error()))
