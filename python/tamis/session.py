# SPDX-License-Identifier: Apache-2.0
"""Sessions: a text that is read once and asked several times, and conversations that go on."""
from __future__ import annotations

import codecs
import contextlib
import hashlib
import json
import os
import struct
import tempfile
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, Iterator, Mapping, Optional, Sequence as Seq, Union

import numpy

from . import saved
from .cache import Bounds, Cache, Sequence, SequenceStats
from .errors import ArgumentError, DamagedError, FormatError, StateError
from .model import Model, Progress, Runner
from .plan import Counters
from .policy import Eviction, Full, Quest, Selection, eviction, selection
from .sampling import Sampler, Sampling
from .vocab import Vocab

if TYPE_CHECKING:
    from .chat import Chat

LONGEST = 32768  # tokens of a session where nothing else is asked for

# Chat models of one family end with several tokens, of which a file names two.
_ENDINGS = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>")


def endings(vocab: Vocab) -> frozenset[int]:
    """The tokens that end an answer: eos, eot, and those by which models end a turn or a text."""
    named = (vocab.find_special(text) for text in _ENDINGS)
    others = {token for token in named if token is not None and vocab.kind_of(token) == "control"}
    return frozenset(others | {token for token in (vocab.eos, vocab.eot) if token is not None})


class _Answer:
    """The text of an answer while its tokens come. What may yet be a part of a character, or of a text that
    ends the answer, waits for its rest."""

    def __init__(self, stop: Union[str, Seq[str]]) -> None:
        self.stops = [stop] if isinstance(stop, str) else list(stop)
        if "" in self.stops:
            raise ArgumentError("a text that ends the answer is empty")
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.held = ""
        self.tokens = 0
        self.stopped = False

    def add(self, piece: bytes) -> str:
        """The text that can be given out with these bytes."""
        self.tokens += 1
        self.held += self.decoder.decode(piece)
        found = [(at + len(stop), at) for stop in self.stops if (at := self.held.find(stop)) >= 0]
        if found:  # the first that is complete, of several the longest
            self.stopped, self.held = True, self.held[:min(found)[1]]
        keep = 0 if self.stopped else max((self._begun(stop) for stop in self.stops), default=0)
        ready = self.held[:len(self.held) - keep]
        self.held = self.held[len(ready):]
        return ready

    def _begun(self, stop: str) -> int:
        """How many characters at the end are the beginning of a stop text."""
        return next((n for n in range(min(len(stop) - 1, len(self.held)), 0, -1)
                     if self.held.endswith(stop[:n])), 0)


class Session:
    """A text in a cache of its own, which is read once and asked several times.

    >>> session = model.session(select=Quest(budget=1024))  # doctest: +SKIP
    >>> session.read(open("book.txt").read())               # doctest: +SKIP
    >>> session.ask("Who is the captain?")                  # doctest: +SKIP

    The text is read exactly; at its end the eviction evicts. A question goes through the selection token by
    token, as the answer does, where there is a selection or an eviction and something has been read before
    it; else it is read as a text is. Each question is asked behind what was read, on a fork: nothing of it
    stays, unless it is kept. Whatever raises leaves the session as it was.

    With a model that has a chat template, texts are the beginning of a user's message, a question its end,
    with an empty line between. Texts and questions are cut into tokens apart, and can be no control tokens:
    a text that holds tokens or tags of the template raises ArgumentError. Without a template both are taken
    as they are.

    Args:
        model: the model.
        select, evict: a selection and an eviction, or their names.
        max_context: the longest text with question and answer, tokens; None: the model's, at most 32768.
        dtype: of the cache.
        sampling: how tokens are drawn; without a temperature the most likely one is next.
        chat: whether the file's chat template is used; None: where there is one.
        system: what the model is told before the conversation, with a template.
        variables: further variables of the template, such as ``{"enable_thinking": False}``.
        reads: keep which pages decode rows read (`reads`); see `Runner`.
        capacity_tokens: room of the cache. By default there is room for one question at a time.
        max_rows: of a step in which text is read.
        page_size, bounds_dtype: as `Cache` takes them.
        bounds: as `Cache` takes them; None: "meanstd", as `tamis run` has it, and "minmax" for `Quest.paper`.
        timing: collect `Plan.times` (``session.runner.plan.times``).

    Attributes:
        model, vocab, cache, runner: what it stands on.
        max_context, sampling: as above.
        ended: why the last answer ended: "token" (one that ends answers), "text" (of `stop`), "tokens"
            (max_new) or "context" (no room for another token); None before the first.
    """

    def __init__(self, model: Model, *, select: Union[str, Selection, None] = None,
                 evict: Union[str, Eviction, None] = None, max_context: Optional[int] = None,
                 dtype: str = "f16", sampling: Sampling = Sampling(), chat: Optional[bool] = None,
                 system: Optional[str] = None, variables: Optional[Mapping[str, Any]] = None,
                 reads: bool = False, capacity_tokens: Optional[int] = None, max_rows: int = 512,
                 page_size: int = 16, bounds: Union[str, Bounds, None] = None,
                 bounds_dtype: Optional[str] = None, timing: bool = False) -> None:
        chosen, evicts = selection(select), eviction(evict)
        if max_context is None:
            max_context = min(model.info.context, LONGEST)
        self.model, self.max_context, self.sampling = model, max_context, sampling
        self.vocab = model.vocab
        self._chat = self._open_chat(chat, system, variables)
        self._endings = endings(self.vocab)
        if self._chat is not None and self._chat.ending is not None:
            self._endings |= {self._chat.ending}
        room = capacity_tokens or _room(max_context, page_size, evicts)
        given_back = None if evicts else model.layer_tokens(max_context, sequences=2, max_rows=max_rows,
                                                            page_size=page_size)
        if bounds is None:
            paper = isinstance(chosen, Quest) and chosen == Quest.paper(chosen.budget)
            bounds = "minmax" if paper else "meanstd"
        self.cache: Cache = model.cache(room, dtype=dtype, evict=evicts, page_size=page_size, bounds=bounds,
                                        bounds_dtype=bounds_dtype, layer_tokens=given_back)
        # The last queries, by which evictions score, are kept for as many sequences as a step may have.
        self.runner: Runner = model.runner(self.cache, select=chosen, evict=evicts, max_context=max_context,
                                           max_sequences=2 if evicts else 1, max_rows=max_rows, reads=reads,
                                           timing=timing, give_back=given_back is not None)
        self._sparse = evicts is not None or not isinstance(chosen, Full)
        self._sequence = self.cache.add()
        self._pending: list[int] = []  # of an answer that was kept: what has not been run yet
        self._turns = 0                # that were kept
        self._begun = False            # the message has a text
        self.ended: Optional[str] = None

    def _open_chat(self, chat: Optional[bool], system: Optional[str],
                   variables: Optional[Mapping[str, Any]]) -> Optional[Chat]:
        if chat is None:
            chat = self.vocab.chat_template is not None
        if not chat:
            if system is not None:
                raise ArgumentError("a system text is given, and no chat template is used")
            return None
        from .chat import Chat

        return Chat(self.vocab, system, variables)

    def __repr__(self) -> str:
        return (f"<tamis.Session {self.model.info.name or self.model.info.architecture}, "
                f"{self.runner.select}, evict {self.runner.evict_by}"
                f"{', closed' if self.runner.closed else f', {len(self._sequence)} tokens'}>")

    def close(self) -> None:
        """Gives its memory back now; the model stays."""
        self.runner.close()
        self.cache.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # ---- Reading and asking ----

    def read(self, text: str, watch: Optional[Progress] = None) -> None:
        """Appends a text, exactly, and evicts at its end if there is an eviction.

        Args:
            watch: called with (tokens done, tokens of all) behind each step.

        Raises ArgumentError for a text that max_context does not hold."""
        if self._chat is None:
            tokens = self.vocab.encode(text, bos=not self._started)
        elif self._begun:
            tokens = self._chat.more(text)
        else:
            tokens = self._chat.begin(self._turns, text)
        self._check_room(tokens)
        if not len(tokens):
            return
        with self._branch() as branch:
            self._run_pending(branch)
            self.runner.prefill(branch, tokens, watch or _interruptible)
            self._keep(branch, [], self._turns, begun=True)

    def ask(self, question: str, *, max_new: int = 256, keep: bool = False,
            stop: Union[str, Seq[str]] = (), sampling: Optional[Sampling] = None) -> str:
        """The answer to a question behind what was read.

        Args:
            max_new: most tokens of the answer.
            keep: go on behind question and answer, as a conversation. Otherwise nothing of them stays.
            stop: texts before the first of which the answer ends.
            sampling: in the place of the session's. Each question begins with its seed.
        """
        return "".join(self.stream(question, max_new=max_new, keep=keep, stop=stop, sampling=sampling))

    def stream(self, question: str, *, max_new: int = 256, keep: bool = False,
               stop: Union[str, Seq[str]] = (), sampling: Optional[Sampling] = None) -> Iterator[str]:
        """The answer piece by piece, in whole characters; as `ask`. It is asked when the first piece is, and
        kept when the last one has been taken."""
        if max_new < 1:
            raise ArgumentError(f"max_new is {max_new}")
        tokens = self._question(question)
        if not len(tokens) and not self._pending:
            raise ArgumentError("the question is empty")
        self._check_room(tokens)
        return self._stream(self._sequence, tokens, max_new, keep, _Answer(stop), sampling or self.sampling)

    def _stream(self, base: Sequence, tokens: numpy.ndarray, max_new: int, keep: bool, answer: _Answer,
                sampling: Sampling) -> Iterator[str]:
        self._check_still(base)
        with self._branch() as branch:
            token = self._run_pending(branch)
            if len(tokens):
                token = self._run_question(branch, tokens)
            sampler = Sampler(sampling, self.model.info.n_vocab) if sampling.temperature else None
            pending: list[int] = []
            ended = None
            while ended is None:
                if pending:
                    token = int(self.runner.decode(branch, pending)[0])
                if sampler is not None:
                    token = sampler.next(self.runner.logits())
                if token in self._endings:
                    pending, ended = [], "token"
                    break
                pending = [token]
                piece = answer.add(self.vocab.token(token))
                if piece:
                    yield piece
                ended = self._end_of(answer, branch, max_new)
            if answer.held:
                yield answer.held
            self.ended = ended
            if keep:
                self._check_still(base)
                self._keep(branch, pending, self._turns + 1, begun=False)

    def _end_of(self, answer: _Answer, branch: Sequence, max_new: int) -> Optional[str]:
        if answer.stopped:
            return "text"
        if answer.tokens == max_new:
            return "tokens"
        return "context" if len(branch) == self.max_context else None

    # ---- Inside ----

    @property
    def _started(self) -> bool:
        return len(self._sequence) > 0

    def _question(self, question: str) -> numpy.ndarray:
        if self._chat is None:
            return self.vocab.encode(question, bos=not self._started)
        return self._chat.end(self._turns, question, self._begun)

    def _check_room(self, tokens: numpy.ndarray) -> None:
        if self.tokens_read + len(tokens) > self.max_context:
            raise ArgumentError(f"{len(tokens)} tokens behind the {self.tokens_read} of the session; "
                                f"max_context is {self.max_context}")

    def _check_still(self, base: Sequence) -> None:
        if self._sequence is not base:
            raise StateError("the session has gone on since the question was put, which no longer fits")

    @contextlib.contextmanager
    def _branch(self) -> Iterator[Sequence]:
        """A fork of what was read, which is removed unless it is kept."""
        branch = self._sequence.fork()
        try:
            yield branch
        finally:
            if branch is not self._sequence:
                branch._end()  # at once or, in a callback, later

    def _run_pending(self, branch: Sequence) -> int:
        """Runs what was kept of an answer and has not been run; the next token."""
        return int(self.runner.decode(branch, self._pending)[0]) if self._pending else -1

    def _run_question(self, branch: Sequence, tokens: numpy.ndarray) -> int:
        if not self._sparse or not len(branch):
            return self.runner.prefill(branch, tokens, _interruptible)
        token = -1
        for one in tokens:
            token = int(self.runner.decode(branch, int(one))[0])
        return token

    def _keep(self, branch: Sequence, pending: list[int], turns: int, begun: bool) -> None:
        self._sequence.remove()
        self._sequence, self._pending, self._turns, self._begun = branch, pending, turns, begun

    # ---- What it holds and has done ----

    @property
    def tokens_read(self) -> int:
        """Tokens that it holds, of the template's, of texts, and of what was kept."""
        return len(self._sequence) + len(self._pending)

    @property
    def stats(self) -> SequenceStats:
        """Slots, pages and bytes of what it holds."""
        return self._sequence.stats

    @property
    def counters(self) -> Counters:
        """What its plan has done: bytes read, rows, evictions."""
        return self.runner.plan.counters

    @property
    def reads(self) -> numpy.ndarray:
        """Which pages the last decode row has read, bool [n_layers][n_kv_heads][pages], of a session with
        ``reads=True``; see `Plan.read`."""
        return self.runner.read(0)

    # ---- In files ----

    def save(self, to: Union[str, os.PathLike[str], BinaryIO]) -> None:
        """Writes the session to a file, which nobody else may read, as a whole or not at all; or to a binary
        file object, from where that stands on. `restore` goes on with it.

        K and V of a large model take many MiB for 1000 tokens. Who may write the file decides what the
        model goes on from."""
        if not isinstance(to, (str, os.PathLike)):
            self._write(to)
            return
        path = os.fsdecode(to)
        handle, name = tempfile.mkstemp(prefix=os.path.basename(path) + ".", dir=os.path.dirname(path) or ".")
        try:
            with os.fdopen(handle, "wb") as file:
                self._write(file)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise

    def _write(self, file: BinaryIO) -> None:
        state = {"turns": self._turns, "begun": self._begun, "pending": self._pending,
                 "template": _template(self.vocab) if self._chat is not None else None,
                 "system": self._chat.system if self._chat is not None else None}
        data = json.dumps(state).encode()
        saved.write_all(file, _HEAD.pack(_MAGIC, _VERSION, len(data), zlib.crc32(data)) + data)
        saved.save(self.runner.plan, self._sequence, file, self.model.fingerprint)

    @classmethod
    def restore(cls, model: Model, source: Union[str, os.PathLike[str], BinaryIO],
                **params: Any) -> Session:
        """A session that goes on with what was saved. `params` are those of `Session`; the eviction, `dtype`
        and `page_size` must be those of the session that was saved, and whether the template is used, and
        its system text, follow from the file.

        Raises FormatError for a file that is cut off or no session, DamagedError where a checksum does not
        hold, and ArgumentError where model or parameters are others, with both values."""
        if isinstance(source, (str, os.PathLike)):
            with open(source, "rb") as file:
                return cls.restore(model, file, **params)
        for name in ("chat", "system"):
            if name in params:
                raise ArgumentError(f"{name} is given; it follows from the file")
        state = _State(source, model)
        session = cls(model, chat=state.template is not None, system=state.system, **params)
        sequence = saved.restore(session.runner.plan, source, model.fingerprint)
        if state.turns > len(sequence):
            raise FormatError(f"the session has {state.turns} turns in {len(sequence)} tokens")
        session._keep(sequence, state.pending, state.turns, state.begun)
        return session


def _interruptible(done: int, count: int) -> None:
    """Between two steps Python looks whether Ctrl-C was pressed."""


def _room(max_context: int, page_size: int, evicts: Optional[Eviction]) -> int:
    """Tokens of a text and a fork of it: the fork copies the page that it goes on in, and where tokens are
    evicted it may copy all that has been kept."""
    copied = min(evicts.budget, max_context) if evicts else 0  # type: ignore[attr-defined]
    return max_context + int(copied) + 2 * page_size


# ---- The file's own head: the magic, a version, the length and the CRC-32 of the JSON that follows ------

_MAGIC, _VERSION = b"tamis-py", 1
_HEAD = struct.Struct("<8sIII")
_MOST = 1 << 26  # bytes of JSON


def _template(vocab: Vocab) -> str:
    return hashlib.sha256((vocab.chat_template or "").encode()).hexdigest()


class _State:
    """What a file says beside the sequence. The bytes are not trusted."""

    def __init__(self, file: BinaryIO, model: Model) -> None:
        magic, version, size, crc = _HEAD.unpack(saved.read_all(file, _HEAD.size, "its head"))
        if magic != _MAGIC:
            raise FormatError("the file is no session of this package")
        if version != _VERSION:
            raise FormatError(f"a session of version {version}: this package reads {_VERSION}")
        if size > _MOST:
            raise FormatError(f"a session with {size} bytes of JSON: at most {_MOST}")
        data = saved.read_all(file, size, "its head")
        if zlib.crc32(data) != crc:
            raise DamagedError("the session's head is damaged: its checksum does not hold")
        try:
            state = json.loads(data)
        except (ValueError, RecursionError) as reason:
            raise FormatError(f"the session's head is no JSON: {reason}") from None
        self._state = state if isinstance(state, dict) else {}
        self.turns: int = self._get("turns", int)
        self.begun: bool = self._get("begun", bool)
        self.pending: list[int] = self._get("pending", list)
        self.template: Optional[str] = self._get("template", (str, type(None)))
        self.system: Optional[str] = self._get("system", (str, type(None)))
        if self.turns < 0 or len(self.pending) > 1 or any(
                type(token) is not int or not 0 <= token < model.vocab.n_tokens for token in self.pending):
            raise FormatError(f"the session has {self.turns} turns and the tokens {self.pending} to run")
        if self.template is not None and self.template != _template(model.vocab):
            raise ArgumentError("the session was saved with another chat template")
        if self.template is None and self.system is not None:
            raise FormatError("the session has a system text and no chat template")

    def _get(self, name: str, kind: Any) -> Any:
        value = self._state.get(name)
        if name not in self._state or not isinstance(value, kind) or (kind is int and value is True):
            raise FormatError(f"the session's {name} is {value!r}")
        return value
