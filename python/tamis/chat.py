# SPDX-License-Identifier: Apache-2.0
"""Chat templates: running them as transformers does, and the tokens of a conversation's turns. Tokens of a
template are found in its own text alone, never in what somebody says."""
from __future__ import annotations

import datetime
import json
import re
from typing import Any, Mapping, Optional, Pattern, Sequence as Seq

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import numpy

from .errors import ArgumentError, UnsupportedError
from .vocab import Vocab

# ---- Running a template ---------------------------------------------------------------------------


# What running a template may raise, for which its author is to blame.
_ERRORS = (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError)


class _Generation(jinja2.ext.Extension):
    """The tag `generation`, which marks answers for training; here its body is all of it."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _refuse(message: str) -> None:
    raise ArgumentError(f"the chat template refuses the messages: {message}")


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _environment() -> Any:
    """As transformers documents it: a sandbox, blocks that take no lines of their own, loop controls."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    environment.filters["tojson"] = _to_json
    return environment


def _compiled(vocab: Vocab) -> Any:
    if vocab.chat_template is None:
        raise UnsupportedError("the file has no chat template")
    known = "template", vocab.chat_template
    template = vocab._known.get(known)
    if template is None:
        try:
            template = _environment().from_string(vocab.chat_template)
        except _ERRORS as reason:
            raise UnsupportedError(f"the file's chat template is no template of Jinja: {reason}") from None
        vocab._known[known] = template
    return template


def render(vocab: Vocab, messages: Seq[Mapping[str, Any]], *, add_generation_prompt: bool = True,
           **extra: Any) -> str:
    """See `Vocab.render`."""
    template = _compiled(vocab)
    variables = {"tools": None, "documents": None, "bos_token": _word(vocab, vocab.bos),
                 "eos_token": _word(vocab, vocab.eos), **extra}
    try:
        return str(template.render(messages=messages, add_generation_prompt=add_generation_prompt,
                                   **variables))
    except ArgumentError:
        raise
    except _ERRORS as reason:
        raise UnsupportedError(f"the file's chat template cannot be run: {reason}") from None


def _word(vocab: Vocab, token: Optional[int]) -> str:
    return "" if token is None else vocab.token(token).decode("utf-8", "replace")


# ---- Tokens of templates --------------------------------------------------------------------------

# <|name|>, [NAME], [/NAME]: what no text is, so that a token of kind normal with such a text was meant for a
# template; and Llama 2's <<NAME>>.
_TAG = re.compile(r"<\|[^|\s]+\|>|\[/?[A-Z_]+\]|<</?[A-Z]+>>")


def _is_special(vocab: Vocab, token: int, text: str) -> bool:
    kind = vocab.kind_of(token)
    if kind == "control" or token in (vocab.bos, vocab.eos, vocab.eot):
        return True
    if kind == "user-defined":  # others, such as white space, are found by encoding
        return len(text) > 2 and (text[0], text[-1]) in (("<", ">"), ("[", "]"))
    return kind in ("normal", "undefined") and _TAG.fullmatch(text) is not None


def _specials(vocab: Vocab) -> tuple[dict[str, int], Pattern[str]]:
    """The tokens that a template's own text may have, by their texts, and what finds the longest."""
    found = vocab._known.get("specials")
    if found is None:
        tokens: dict[str, int] = {}
        for token in range(vocab.n_tokens):
            text = vocab.token(token).decode("utf-8", "replace")
            if text and _is_special(vocab, token, text):
                tokens.setdefault(text, token)
        longest_first = sorted(tokens, key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        found = vocab._known["specials"] = tokens, pattern
    return found


# ---- Turns ----------------------------------------------------------------------------------------

# What stands for a text while the template runs: of a private use, so that no template has it.
_SYSTEM, _EARLIER, _ANSWER, _TEXT = (f"\ue000{i}\ue001" for i in range(4))
_MARKS = re.compile("(\ue000[0-3]\ue001)")


def _around(text: str, mark: str) -> str:
    """The mark with the white space around the text, since templates may strip that."""
    bare = text.strip()
    if not bare:
        return mark
    begin = text.index(bare)
    return text[:begin] + mark + text[begin + len(bare):]


class Chat:
    """The tokens of the turns of one conversation, by the template of a vocabulary's file. Over one cache
    what has been read stays: answers are what the model gave, and a template that writes earlier turns anew
    raises UnsupportedError.

    Args:
        system: what the model is told before the conversation; None: nothing, so that a template may put
            its own.
        variables: further variables of the template.

    Attributes:
        ending: the token that the template puts behind an answer, or None.
    """

    #: Between a text that was read and the question behind it, in one message.
    between = "\n\n"

    def __init__(self, vocab: Vocab, system: Optional[str] = None,
                 variables: Optional[Mapping[str, Any]] = None) -> None:
        self.vocab, self.system, self._variables = vocab, system, dict(variables or {})
        self._tokens, self._pattern = _specials(vocab)
        self._used: set[int] = set()
        template = vocab.chat_template or ""
        self._tags = [tag for tag in set(_TAG.findall(template)) if tag not in self._tokens]
        first = self._render(0, _TEXT)
        for mark, whose in ((_TEXT, "user's"), (_SYSTEM, "system")):
            if first.count(mark) != (mark == _TEXT or bool(system)):
                raise UnsupportedError(f"the file's chat template says the {whose} text "
                                       f"{first.count(mark)} times")
        self._pieces(first)
        self.ending = self._find_ending()

    def begin(self, turns: int, text: str) -> numpy.ndarray:
        """The tokens of a user's turn behind `turns` answered ones, up to the end of a text at its
        beginning, int32 [n]. Raises ArgumentError for a text that holds tokens or tags of the template."""
        bare = text.lstrip()
        head, _ = self._turn(turns, text[:len(text) - len(bare)] + _TEXT)
        return self._encode([*head, (bare, False)], first=not turns)

    def more(self, text: str) -> numpy.ndarray:
        """The tokens of further text in a turn that has begun."""
        return self._encode([(text, False)])

    def end(self, turns: int, question: str, begun: bool) -> numpy.ndarray:
        """The tokens up to the answer: of the whole turn, or, where it has begun, of what stands behind the
        text that has been read."""
        bare = question.rstrip()
        head, tail = self._turn(turns, _TEXT + question[len(bare):] if begun else _around(question, _TEXT))
        if begun:
            return self._encode([(self.between + bare, False), *tail])
        return self._encode([*head, (question.strip(), False), *tail], first=not turns)

    # ---- Inside ----

    def _render(self, turns: int, text: Optional[str], answers: bool = True) -> str:
        messages = [{"role": "system", "content": _around(self.system, _SYSTEM)}] if self.system else []
        for _ in range(turns):
            messages += [{"role": "user", "content": _EARLIER}, {"role": "assistant", "content": _ANSWER}]
        if text is not None:
            messages.append({"role": "user", "content": text})
        return render(self.vocab, messages, add_generation_prompt=answers, **self._variables)

    def _pieces(self, rendered: str) -> list[tuple[str, bool]]:
        """Of what a template has made: texts, and whether each is the template's own."""
        said = {_SYSTEM: (self.system or "").strip()}
        pieces = [(said[part], False) if part in said else (part, True)
                  for part in _MARKS.split(rendered) if part]
        for part, own in pieces:
            if own:
                self._look_at(part)
        return pieces

    def _look_at(self, own: str) -> None:
        """Notes the tokens that the template uses; a tag that was meant as one must be one."""
        self._used.update(self._tokens[found.group()] for found in self._pattern.finditer(own))
        for tag in _TAG.findall(self._pattern.sub(" ", own)):
            if tag.startswith("<|"):
                raise UnsupportedError(f"the file's chat template needs the token {tag!r}, which the "
                                       "vocabulary lacks")

    def _turn(self, turns: int, text: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
        """The pieces of a turn before and behind the mark of its text."""
        rendered = self._render(turns, text)
        begin = 0
        if turns:
            before, begin = self._render(turns - 1, _EARLIER), rendered.rfind(_ANSWER)
            if (begin < len(before) or not rendered.startswith(before)
                    or rendered[len(before):begin].strip()):
                raise UnsupportedError(
                    f"the file's chat template writes what was said before anew with turn {turns + 1}; over "
                    "one cache it must stay")
            begin += len(_ANSWER)
        if rendered[begin:].count(_TEXT) != 1:
            raise UnsupportedError(f"the file's chat template says the text of turn {turns + 1} "
                                   f"{rendered[begin:].count(_TEXT)} times")
        head, tail = rendered[begin:].split(_TEXT)
        if turns:
            head = self._to_token(head)
        return self._pieces(head), self._pieces(tail)

    def _to_token(self, text: str) -> str:
        """Without white space before the token that ends an answer: the model did not give that."""
        bare = text.lstrip()
        return bare if self._pattern.match(bare) else text

    def _find_ending(self) -> Optional[int]:
        try:
            rendered = self._render(1, None, answers=False)
        except (ArgumentError, UnsupportedError):  # it cannot end with an answer
            return None
        _, answer, behind = rendered.rpartition(_ANSWER)
        found = self._pattern.match(behind.lstrip()) if answer else None
        return self._tokens[found.group()] if found else None

    def _encode(self, pieces: list[tuple[str, bool]], first: bool = False) -> numpy.ndarray:
        """What lies between two tokens of the template, its text and somebody's, is encoded as one."""
        out: list[int] = []
        text: list[tuple[str, bool]] = []
        for part, own in pieces:
            at = 0
            for found in self._pattern.finditer(part) if own else ():
                out += self._words([*text, (part[at:found.start()], True)])
                out.append(self._tokens[found.group()])
                text, at = [], found.end()
            text.append((part[at:], own))
            self._check_said("" if own else part)
        out += self._words(text)
        if first and self.vocab.add_bos and self.vocab.bos is not None and out[:1] != [self.vocab.bos]:
            out.insert(0, self.vocab.bos)
        return numpy.array(out, numpy.int32)

    def _check_said(self, text: str) -> None:
        for tag in self._tags:
            if tag in text:
                raise ArgumentError(f"the text holds {tag!r}, a tag of the file's chat template")

    def _words(self, pieces: list[tuple[str, bool]]) -> list[int]:
        text = "".join(part for part, _ in pieces)
        own = next((own for part, own in pieces if part), False)
        if own and self.vocab.add_space_prefix and text.startswith(" "):
            text = text[1:]  # SentencePiece puts it there
        if not text:
            return []
        tokens = self.vocab.encode(text).tolist()
        for token in self._used.intersection(tokens):
            raise ArgumentError(f"the text holds {_word(self.vocab, token)!r}, which is a token of the "
                                "file's chat template")
        return tokens  # type: ignore[no-any-return]
