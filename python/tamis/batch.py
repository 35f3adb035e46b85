# SPDX-License-Identifier: Apache-2.0
"""Continuous batching (tamis/batch.h): requests come and go, and each step runs chunks of prompts beside
decode rows of those whose prompts have been read."""
from __future__ import annotations

import dataclasses
from typing import Any, Callable, Iterator, Optional, Union

import numpy

from . import _core
from ._c import ffi
from ._core import NULL, check, error, lib, text
from .cache import Sequence, dtype_code, fill, salt_of
from .errors import BY_CODE, ArgumentError
from .model import Runner
from .sampling import Sampler, Sampling
from .vocab import Tokens, tokens_of

#: Draws a token from logits, f32 [n_vocab].
Choose = Callable[[numpy.ndarray], int]
#: Told which pages a decode row has read: layer, KV head, pages (ascending ordinals), and how many there are.
Reads = Callable[[int, int, numpy.ndarray, int], object]

_EVENTS = {lib.TAMIS_REQUEST_BEGAN: "began", lib.TAMIS_REQUEST_TOKEN: "token",
           lib.TAMIS_REQUEST_ENDED: "ended", lib.TAMIS_REQUEST_PREEMPTED: "preempted",
           lib.TAMIS_REQUEST_RESUMED: "resumed"}


@dataclasses.dataclass(frozen=True)
class Event:
    """What has happened to a request.

    Attributes:
        id: the request's.
        kind: "began", "token", "ended", "preempted" or "resumed".
        value: of "token" the token; of "began" and "resumed" the tokens that need not be run; of
            "preempted" 1: what was computed is saved, 0: it was given up.
        error: of "ended": why it could not go on; None: it has all its tokens.
    """

    id: int
    kind: str
    value: int = 0
    error: Optional[BaseException] = None


@dataclasses.dataclass(frozen=True)
class SchedulerStats:
    """Requests now, and since the scheduler was made: steps of the runner, and rows that were run, of which
    `rows_again` had been run before their request was preempted; tokens that were not run, since another
    sequence held them or the store; pages put into the store, and times that it failed."""

    waiting: int
    running: int
    kept: int
    saved_bytes: int
    steps: int
    mixed_steps: int
    rows: int
    rows_again: int
    tokens_shared: int
    preempted: int
    saved: int
    tokens_stored: int
    pages_put: int
    store_failed: int


class _Request:
    """What the callbacks of a request call, and what that has raised."""

    def __init__(self, choose: Union[Sampler, Choose, None], reads: Optional[Reads]) -> None:
        self.choose, self.reads = choose, reads
        self.error: Optional[BaseException] = None

    def draw(self, logits: Any, n_vocab: int) -> int:
        values = numpy.frombuffer(ffi.buffer(logits, 4 * n_vocab), numpy.float32)
        if isinstance(self.choose, Sampler):
            return self.choose.next(values)
        assert self.choose is not None
        return int(self.choose(values.copy()))

    def run(self, call: Callable[[], None], failure: Any = NULL) -> bool:
        """Whether `call` went well; else its error is the request's."""
        with _core.callback(failure) as guarded:
            call()
        if guarded.failed:
            try:
                _core.raised()
            except BaseException as reason:
                self.error = reason
        return not guarded.failed


def _call_choose(user: Any, logits: Any, n_vocab: int, token: Any, failure: Any) -> int:
    request: _Request = ffi.from_handle(user)

    def call() -> None:
        token[0] = request.draw(logits, n_vocab)

    return 0 if request.run(call, failure) else int(lib.TAMIS_E_STATE)


def _call_reads(user: Any, layer: int, kv_head: int, pages: Any, n: int, of: int) -> None:
    request: _Request = ffi.from_handle(user)

    def call() -> None:
        assert request.reads is not None
        read = numpy.frombuffer(ffi.buffer(pages, 4 * n), numpy.uint32).copy()
        request.reads(layer, kv_head, read, of)

    if request.error is None:
        request.run(call)


_choose = _core.function_for_c("tamis_request_choose", _call_choose, lib.TAMIS_E_STATE)
_tell = _core.function_for_c("tamis_request_reads", _call_reads)


class Scheduler(_core.Object):
    """Runs requests over a runner, whose plan and cache it has to itself. A runner has one at most.

    Args:
        runner: with room for several sequences (max_sequences).
        max_rows: of a step; 0: the runner's.
        max_running: requests that run at once; 0: the runner's max_sequences.
        share: a request begins with a fork of the sequence that shares most of its prompt.
        max_kept: with `share`: sequences that stay behind the end of their requests.
        host_bytes: what saved sequences of preempted requests may take together; else they run again.
        store, store_tokens, store_dtype: a store from which beginnings of prompts are loaded, tokens of a
            page there, and the type of its planes, which must be in the runner's load_dtypes.
        apart, prompts_first: for measuring: no mixed steps; rows wait while there are prompts to be read.

    >>> for event in scheduler.run():  # doctest: +SKIP
    ...     print(event.id, event.kind, event.value)
    """

    def __init__(self, runner: Runner, *, max_rows: int = 0, max_running: int = 0, share: bool = False,
                 max_kept: int = 0, host_bytes: int = 0, store: Any = None, store_tokens: int = 0,
                 store_dtype: str = "f16", apart: bool = False, prompts_first: bool = False) -> None:
        runner._collect()
        params = ffi.new("tamis_scheduler_params *")
        params.max_rows, params.max_running, params.max_kept = max_rows, max_running, max_kept
        params.flags = ((lib.TAMIS_SCHEDULER_SHARE if share else 0)
                        | (lib.TAMIS_SCHEDULER_APART if apart else 0)
                        | (lib.TAMIS_SCHEDULER_PROMPTS_FIRST if prompts_first else 0))
        params.host_bytes, params.store_tokens = host_bytes, store_tokens
        if store is not None:
            params.store, params.store_dtype = store._pointer, dtype_code(store_dtype)
        handle = ffi.new("tamis_scheduler **")
        check(lib.tamis_scheduler_create(runner._pointer, params, handle, error()))
        self.runner = runner
        self._requests: dict[int, tuple[_Request, Any]] = {}  # with its handle for C
        self._late: list[Event] = []
        self._take(runner._owner, handle, "tamis_scheduler_destroy", (runner, store))

    def __repr__(self) -> str:
        return f"<tamis.Scheduler {'closed' if self.closed else self.stats}>"

    def add(self, tokens: Tokens, max_new: int, *, stops: Tokens = (), exact: bool = False,
            choose: Union[Sampling, Choose, None] = None, salt: bytes = bytes(16),
            sequence: Optional[Sequence] = None, stored: int = 0, reads: Optional[Reads] = None) -> int:
        """Adds a request behind all others. Enqueues nothing.

        Args:
            tokens: the prompt.
            max_new: tokens to generate, 1 or more.
            stops: tokens behind which it ends; they are reported, too.
            exact: its decode rows read every page, whatever the runner's selection.
            choose: draws tokens: a `Sampling`, or a function of the logits, f32 [n_vocab], that returns a
                token; None: the most likely one.
            salt: 16 bytes of the tenant: only requests of the same salt share anything.
            sequence: one of the runner's cache that holds K and V of the prompt's first tokens. It belongs to
                the scheduler once this has returned.
            stored: of its first tokens: their full pages are put into the store.
            reads: called with (layer, KV head, pages, of how many) for each decode row, within `step`.

        `choose` and `reads` must not call the scheduler, its runner or what these stand on. What they raise
        ends their request, and is the error of its last event.

        Returns the request's id, which is above 0 and grows."""
        prompt, ends = tokens_of(tokens), tokens_of(stops)
        request = _Request(Sampler(choose, self.runner.model.info.n_vocab) if isinstance(choose, Sampling)
                           else choose, reads)
        handle = ffi.new_handle(request)
        params = ffi.new("tamis_request *")
        held = ffi.from_buffer("int32_t[]", prompt), ffi.from_buffer("int32_t[]", ends)
        params.tokens, params.stops = held
        params.n_tokens, params.n_stops, params.max_new = len(prompt), len(ends), max_new
        params.flags = lib.TAMIS_REQUEST_EXACT if exact else 0
        params.choose = NULL if choose is None else _choose
        params.reads = NULL if reads is None else _tell
        params.user, params.salt, params.n_stored = handle, salt_of(salt), stored
        if sequence is not None:
            params.sequence = sequence.handle
        out = ffi.new("uint64_t *")
        check(lib.tamis_scheduler_add(self._pointer, params, out, error()))
        if sequence is not None:
            sequence._give()
        self._requests[int(out[0])] = request, handle
        return int(out[0])

    def cancel(self, id: int) -> None:
        """Gives a request up, between steps: its pages are free when the call returns, and no event of it
        comes any more. Raises ArgumentError for one that there is not, or that has ended."""
        check(lib.tamis_scheduler_cancel(self._pointer, id, error()))
        del self._requests[id]
        self._late = [event for event in self._late if event.id != id]

    def drop_kept(self) -> bool:
        """Removes the sequence that has been kept longest behind the end of its request. False: none is
        kept."""
        out = ffi.new("int *")
        check(lib.tamis_scheduler_drop_kept(self._pointer, out, error()))
        return bool(out[0])

    def step(self) -> list[Event]:
        """Runs one step, if there are requests. What it does before it runs comes before its tokens; there
        may be no events: a chunk in the midst of a prompt tells of nothing. After an error the call may be
        repeated, but after a DeviceError."""
        events, n = ffi.new("tamis_request_event **"), ffi.new("uint32_t *")
        check(lib.tamis_scheduler_step(self._pointer, events, n, error()))
        out = self._late + [self._event(events[0][i]) for i in range(n[0])]
        self._late = []
        for id in [id for id, (request, _) in self._requests.items() if request.error is not None]:
            reason = self._requests[id][0].error  # of `reads`; the library goes on
            self.cancel(id)
            out.append(Event(id, "ended", 0, reason))
        try:
            _core.raised()
            for event in out:
                if event.error is not None and not isinstance(event.error, Exception):  # as KeyboardInterrupt
                    out.remove(event)
                    raise event.error
        except BaseException:
            self._late = out
            raise
        return out

    def _event(self, event: Any) -> Event:
        id, reason = int(event.id), None
        if event.kind == lib.TAMIS_REQUEST_ENDED:
            reason = self._requests.pop(id)[0].error
            if event.status and reason is None:
                name = text(lib.tamis_status_name(event.status))
                reason = BY_CODE[event.status](f"request {id} could not go on: {name}")
        return Event(id, _EVENTS[event.kind], int(event.value), reason)

    def run(self) -> Iterator[Event]:
        """Runs steps until no request is left; requests may be added meanwhile."""
        while self._late or self._requests:
            yield from self.step()

    @property
    def stats(self) -> SchedulerStats:
        """What it has now, and has done."""
        out = ffi.new("tamis_scheduler_stats *")
        lib.tamis_scheduler_get_stats(self._pointer, out)
        return fill(SchedulerStats, out)
