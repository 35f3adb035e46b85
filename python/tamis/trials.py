# SPDX-License-Identifier: Apache-2.0
"""Trials of blends (tamis/blend_trials.h): a file that keeps, for each model that was measured, how large a
share of the tokens found must be computed for answers to stay as they are."""
from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any, Optional, Union

from . import _core
from ._c import ffi
from ._core import check, choice, error, function, lib, text
from .blend import SCHEDULES, SELECTORS, Blend
from .cache import DTYPE_NAMES, dtype_code, fill
from .errors import ArgumentError
from .store import PLANES, sixteen

_Path = Union[str, "os.PathLike[str]", None]
_SELECTORS = {code: name for name, code in SELECTORS.items()}
_SCHEDULES = {code: name for name, code in SCHEDULES.items()}
_PATH_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class TrialFigures:
    """What was measured at one share: prompts that were blended beside the same prompts computed whole.

    Attributes:
        share: of the hits, above 0 to 1.
        k_deviation, v_deviation, attention_deviation: ‖blended − whole‖₂ / ‖whole‖₂, mean over layers.
        kl_mean, kl_p95: of the answers' tokens, nats: the mean, and what 95 % of them do not exceed.
        agreement: the share of these tokens that are the most likely ones after the blended prompt, too.
        left: the largest estimate that `Blend`'s bound is compared with.
        passed: whether kl_mean and agreement keep the trial's bounds.
    """

    share: float
    k_deviation: float
    v_deviation: float
    attention_deviation: float
    kl_mean: float
    kl_p95: float
    agreement: float
    left: float
    passed: bool


@dataclasses.dataclass(frozen=True)
class Trial:
    """An entry. Fingerprint and settings, up to `n_sink`, decide which one: writing one again replaces it.

    Attributes:
        fingerprint: of the model alone, 16 bytes; `model` is its name, for people.
        selector, schedule, check_layer, dtype, n_sink: as in `Blend`; a selector that takes a share.
        cache_dtype: of the plan's cache.
        max_kl, min_agreement: the bounds.
        figures: by share, ascending.
    """

    fingerprint: bytes
    model: str
    selector: str
    schedule: str
    check_layer: Optional[int]
    cache_dtype: str
    dtype: str
    n_sink: int
    prompts: int
    chunks: int
    chunk_tokens: int
    answer_tokens: int
    seed: int
    max_kl: float
    min_agreement: float
    figures: tuple[TrialFigures, ...]

    @property
    def share(self) -> float:
        """The smallest share that passed with all above it; 0: none has."""
        share = 0.0
        for figures in reversed(self.figures):
            if not figures.passed:
                break
            share = figures.share
        return share

    def _struct(self) -> Any:
        out = ffi.new("tamis_blend_trial *")
        name, most = self.model.encode(), ffi.sizeof(out.model) - 1
        if len(name) > most:
            raise ArgumentError(f"model is {self.model!r}: {len(name)} bytes, and {most} are the most")
        if len(self.figures) > lib.TAMIS_BLEND_TRIAL_SHARES:
            raise ArgumentError(f"{len(self.figures)} figures: an entry holds {lib.TAMIS_BLEND_TRIAL_SHARES}")
        out.fingerprint, out.model = sixteen(self.fingerprint, "fingerprint"), name
        out.selector = choice("selector", self.selector, SELECTORS)
        out.schedule = choice("schedule", self.schedule, SCHEDULES)
        out.cache_dtype, out.dtype = dtype_code(self.cache_dtype), dtype_code(self.dtype, PLANES)
        _core.put(out, share=self.share, n_figures=len(self.figures),
                  check_layer=lib.TAMIS_BLEND_NO_CHECK if self.check_layer is None else self.check_layer,
                  **{field: getattr(self, field) for field in _NUMBERS})
        for of, figures in zip(out.figures, self.figures):
            _core.put(of, **dataclasses.asdict(figures))
        return out

    @staticmethod
    def _from(struct: Any) -> Trial:
        layer = struct.check_layer
        figures = (fill(TrialFigures, struct.figures[i]) for i in range(struct.n_figures))
        return Trial(bytes(ffi.buffer(struct.fingerprint)), text(struct.model), _SELECTORS[struct.selector],
                     _SCHEDULES[struct.schedule], None if layer == lib.TAMIS_BLEND_NO_CHECK else layer,
                     DTYPE_NAMES[struct.cache_dtype], DTYPE_NAMES[struct.dtype],
                     **{field: getattr(struct, field) for field in _NUMBERS},
                     figures=tuple(dataclasses.replace(of, passed=bool(of.passed)) for of in figures))


_NUMBERS = ("n_sink", "prompts", "chunks", "chunk_tokens", "answer_tokens", "seed", "max_kl", "min_agreement")


def trial_path() -> pathlib.Path:
    """Where trials are kept unless the caller says otherwise: tamis/blend.trials in the environment's
    ``XDG_CONFIG_HOME``, else in .config of ``HOME``. Raises StateError where neither is set."""
    out = ffi.new("char[]", _PATH_BYTES)
    check(function("tamis_blend_trial_path")(out, _PATH_BYTES, error()))
    return pathlib.Path(os.fsdecode(ffi.string(out)))


def _named(path: _Path) -> bytes:
    return _core.path_bytes(trial_path() if path is None else path)


def read_trials(path: _Path = None) -> list[Trial]:
    """All entries of a file, by default of `trial_path`. One that does not exist has none. Raises
    FormatError, UnsupportedError (another version), DamagedError, FileError."""
    count, capacity = ffi.new("size_t *"), 0
    while True:
        trials = ffi.new("tamis_blend_trial[]", capacity)
        check(function("tamis_blend_trial_read")(_named(path), trials, capacity, count, error()))
        if count[0] <= capacity:
            return [Trial._from(trials[i]) for i in range(count[0])]
        capacity = count[0]  # others may write meanwhile


def write_trial(trial: Trial, path: _Path = None) -> None:
    """Adds an entry to a file, in the place of the one with the same fingerprint and settings. Makes the file
    and the folders to it, and waits until it is on the disk. Raises ArgumentError with the value, and what
    `read_trials` raises: the file stays as it is then."""
    check(function("tamis_blend_trial_write")(_named(path), trial._struct(), error()))


def trial_passed(blend: Blend, path: _Path = None) -> Optional[Trial]:
    """The gate: the entry of a blend's settings that passed with its share or a smaller one; None where none
    is needed (selector "all", or a share of 1). Raises StateError where there is none, with what makes one;
    UnsupportedError for what no entry can hold (selectors without a share, `shares`, `least`, `most`)."""
    out = ffi.new("tamis_blend_trial *")
    cache_dtype = dtype_code(blend.plan.cache.dtype)
    check(function("tamis_blend_trial_passed")(_named(path), blend._params, cache_dtype, out, error()))
    return Trial._from(out) if out.share else None
