# SPDX-License-Identifier: Apache-2.0
"""Vocabularies (tamis/vocab.h): text to tokens, tokens to bytes, and the chat templates of files."""
from __future__ import annotations

import os
from typing import Any, Iterable, Mapping, Optional, Sequence as Seq, Union

import numpy

from . import _core
from ._c import ffi
from ._core import check, error, lib, path_bytes, text
from .errors import ArgumentError

_KINDS = {lib.TAMIS_VOCAB_BYTES: "bytes", lib.TAMIS_VOCAB_BPE: "bpe", lib.TAMIS_VOCAB_SPM: "spm"}
_TOKEN_KINDS = {lib.TAMIS_TOKEN_UNDEFINED: "undefined", lib.TAMIS_TOKEN_NORMAL: "normal",
                lib.TAMIS_TOKEN_UNKNOWN: "unknown", lib.TAMIS_TOKEN_CONTROL: "control",
                lib.TAMIS_TOKEN_USER_DEFINED: "user-defined", lib.TAMIS_TOKEN_UNUSED: "unused",
                lib.TAMIS_TOKEN_BYTE: "byte"}

#: What calls take as tokens: one, or a one-dimensional array or list of them.
Tokens = Union[int, Seq[int], numpy.ndarray]


def tokens_of(tokens: Tokens) -> numpy.ndarray:
    """Tokens as an int32 array [n]. Raises ArgumentError for what is no integer of 32 bits.

    >>> tokens_of([1, 2])
    array([1, 2], dtype=int32)
    """
    array = numpy.atleast_1d(numpy.asarray(tokens))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ArgumentError(f"tokens of shape {array.shape} and dtype {array.dtype}: they are integers in "
                            "one dimension")
    if array.size and (array.min() < -2**31 or array.max() >= 2**31):
        raise ArgumentError(f"a token of {array.min()} to {array.max()} does not fit into 32 bits")
    return numpy.ascontiguousarray(array, numpy.int32)


def bytes_of(text: Union[str, bytes]) -> bytes:
    """UTF-8. Raises ArgumentError for a str that has lone surrogates."""
    if not isinstance(text, str):
        return bytes(text)
    try:
        return text.encode()
    except UnicodeEncodeError as reason:
        raise ArgumentError(f"a text that UTF-8 cannot hold: {reason}") from None


def _id(token: int) -> Optional[int]:
    return None if token < 0 else int(token)


class Vocab(_core.Object):
    """The vocabulary of a GGUF file. Of a model in parts `path` names any part. It never changes: any number
    of threads may use it at a time.

    Attributes:
        kind: "bytes" (each token is one byte), "bpe" or "spm" (SentencePiece).
        n_tokens, n_merges: how many it has.
        pattern: what cuts the text, as the file names it; "" for none.
        bos, eos, eot, unknown, padding: tokens; None where the file names none. `eot` ends a turn.
        add_bos, add_eos: whether the file wants them around every text.
        add_space_prefix: SPM: a space goes before a text, and behind special tokens.
        warning: what the file says of its tokens and is ignored, or None.
        chat_template: the file's, a template of Jinja, or None.
    """

    kind: str
    n_tokens: int
    n_merges: int
    pattern: str
    bos: Optional[int]
    eos: Optional[int]
    eot: Optional[int]
    unknown: Optional[int]
    padding: Optional[int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    warning: Optional[str]
    chat_template: Optional[str]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        handle = ffi.new("tamis_vocab **")
        check(lib.tamis_vocab_load(path_bytes(path), handle, error()))
        self._take(None, handle, "tamis_vocab_destroy")
        self._begin({})

    @classmethod
    def _part(cls, handle: Any, keep: Any, known: dict[Any, Any]) -> Vocab:
        """*handle, which `keep` owns."""
        self = cls.__new__(cls)
        self._owner, self._handle, self._keep = None, handle, keep
        self._begin(known)
        return self

    def _begin(self, known: dict[Any, Any]) -> None:
        self._known = known  # what has been found out and does not change
        info = lib.tamis_vocab_describe(self._pointer)
        self.kind = _KINDS[info.kind]
        self.n_tokens, self.n_merges, self.pattern = info.n_tokens, info.n_merges, text(info.pattern)
        self.bos, self.eos, self.eot = _id(info.bos), _id(info.eos), _id(info.eot)
        self.unknown, self.padding = _id(info.unknown), _id(info.padding)
        self.add_bos, self.add_eos = bool(info.add_bos), bool(info.add_eos)
        self.add_space_prefix = bool(info.add_space_prefix)
        warning = lib.tamis_vocab_warning(self._pointer)
        self.warning = text(warning) if warning else None
        template = lib.tamis_vocab_chat_template(self._pointer)
        self.chat_template = text(template) if template else None

    def __repr__(self) -> str:
        return f"<tamis.Vocab {self.kind}, {self.n_tokens} tokens{', closed' if self.closed else ''}>"

    def __len__(self) -> int:
        return self.n_tokens

    def encode(self, text: Union[str, bytes], *, bos: bool = False, special: bool = False,
               skip_missing: bool = False, eos: bool = False) -> numpy.ndarray:
        """The tokens of a text, int32 [n].

        Args:
            bos, eos: bos before the text, eos behind it, where the file wants them.
            special: the text of a control token is that token. For the text of a chat template; without it
                what a user has typed can be no control token.
            skip_missing: leave out bytes for which there is no token. Otherwise they raise ArgumentError
                with their place.
        """
        data = bytes_of(text)
        flags = ((lib.TAMIS_ENCODE_ADD_BOS if bos else 0) | (lib.TAMIS_ENCODE_ADD_EOS if eos else 0)
                 | (lib.TAMIS_ENCODE_PARSE_SPECIAL if special else 0)
                 | (lib.TAMIS_ENCODE_SKIP_MISSING if skip_missing else 0))
        count = ffi.new("size_t *")
        capacity = len(data) + 4  # bos, eos and a space; more would be a second call
        while True:
            out = numpy.empty(capacity, numpy.int32)
            check(lib.tamis_vocab_encode(self._pointer, data, len(data), flags,
                                         ffi.from_buffer("int32_t[]", out), capacity, count, error()))
            if count[0] <= capacity:
                return numpy.array(out[:count[0]])
            capacity = count[0]

    def token(self, id: int) -> bytes:
        """The bytes of a token, which may be a part of a UTF-8 character; of a control token the text that
        the file gives it. Raises ArgumentError for an id outside the vocabulary."""
        size = ffi.new("size_t *")
        data = lib.tamis_vocab_token_text(self._pointer, self._inside(id), size)
        return bytes(ffi.buffer(data, size[0]))

    def kind_of(self, id: int) -> str:
        """"normal", "control", "user-defined", "byte", "unknown", "unused" or "undefined"."""
        return _TOKEN_KINDS[lib.tamis_vocab_token_kind(self._pointer, self._inside(id))]

    def _inside(self, id: int) -> int:
        if not 0 <= id < self.n_tokens:
            raise ArgumentError(f"token {id} is outside the vocabulary of {self.n_tokens}")
        return int(id)

    def decode(self, tokens: Tokens) -> bytes:
        """The bytes of tokens, one behind another."""
        return b"".join(map(self.token, tokens_of(tokens)))

    def text(self, tokens: Tokens) -> str:
        """The text of tokens; what is no UTF-8 becomes U+FFFD."""
        return self.decode(tokens).decode("utf-8", "replace")

    def find_special(self, text: Union[str, bytes]) -> Optional[int]:
        """The control, unknown or user-defined token with this text, as "<|im_start|>"; None: there is
        none."""
        data = bytes_of(text)
        return _id(lib.tamis_vocab_find_special(self._pointer, data, len(data)))

    def render(self, messages: Iterable[Mapping[str, Any]], add_generation_prompt: bool = True,
               **extra: Any) -> str:
        """What the file's chat template makes of messages, such as ``{"role": "user", "content": "Hi"}``: as
        transformers runs it, in a sandbox of jinja2. `extra` are further variables of the template.

        Raises UnsupportedError where the file has no template, or one that cannot be run; ArgumentError
        where the template refuses the messages. ``encode(special=True)`` makes tokens of what comes out;
        messages may then be control tokens, which a `Session` does not let happen."""
        from .chat import render

        return render(self, list(messages), add_generation_prompt=add_generation_prompt, **extra)
