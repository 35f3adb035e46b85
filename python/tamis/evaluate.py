# SPDX-License-Identifier: Apache-2.0
"""What policies cost a model, as tables: each function answers a list of dicts, one for each pair of a
selection and an eviction, which ``pandas.DataFrame`` takes as it is.

Columns that both have: select, budget (tokens; 0: all), evict, kept (tokens that a lane holds over those
of the text), read (bytes of K, V and bounds that decode rows read over those of all K and V), ms (a new
token, median)."""
from __future__ import annotations

import itertools
import random
import statistics
import time
from typing import Any, Iterable, Iterator, Optional, Union

import numpy

from .errors import ArgumentError
from .model import Model, Runner
from .plan import Counters
from .policy import Eviction, Selection, eviction, selection

COLOURS = ("red", "green", "blue", "yellow", "white", "black", "brown", "grey", "pink", "purple")

Selections = Iterable[Union[str, Selection, None]]
Evictions = Iterable[Union[str, Eviction, None]]


def _pairs(select: Selections, evict: Evictions) -> Iterator[tuple[Selection, Optional[Eviction]]]:
    pairs = itertools.product([selection(one) for one in select], [eviction(one) for one in evict])
    return iter(list(pairs))


def _row(select: Selection, evict: Optional[Eviction], counters: Counters, kept: float, times: list[float],
         **figures: Any) -> dict[str, Any]:
    read = counters.kv_bytes_read + counters.bounds_bytes_read
    return {"select": select.kind, "budget": getattr(select, "budget", 0),
            "evict": f"{evict.kind} {getattr(evict, 'budget')}" if evict else "none", **figures, "kept": kept,
            "read": read / counters.kv_bytes_full if counters.kv_bytes_full else 1.0,
            "ms": statistics.median(times) * 1e3}


def plant(text: str, keys: int, seed: int = 0) -> tuple[str, dict[str, str]]:
    """A text with `keys` sentences "The red pass key is 48213. Remember it." between its lines, at equal
    distances; and the key of each colour.

    >>> text, keys = plant("One line.\\n" * 4, 1)
    >>> list(keys), text.count("pass key")
    (['red'], 1)
    """
    if not 1 <= keys <= len(COLOURS):
        raise ArgumentError(f"{keys} keys: 1 to {len(COLOURS)} can be planted")
    if "pass key is" in text:
        raise ArgumentError("the text has a pass key already: " + text[text.index("pass key is"):][:30])
    lines = text.splitlines(keepends=True)
    numbers = random.Random(seed)
    planted = {colour: str(numbers.randint(10000, 99999)) for colour in COLOURS[:keys]}
    for at, (colour, key) in reversed(list(enumerate(planted.items()))):
        lines.insert((2 * at + 1) * len(lines) // (2 * keys), f"The {colour} pass key is {key}. Remember it.\n")
    return "".join(lines), planted


def keys(model: Model, text: str, *, n_keys: int = 5, select: Selections = ("full", "quest", "window"),
         evict: Evictions = (None,), question: str = "The {colour} pass key is ", max_new: int = 12,
         seed: int = 0, **session: Any) -> list[dict[str, Any]]:
    """How many of the keys that are planted in a text a model finds under each pair of policies.

    Further columns: asked, found, tokens (of the text). `question` is asked of each colour behind the text,
    by itself; an answer of `max_new` tokens that holds the key counts. Other arguments are `Session`'s."""
    planted_text, planted = plant(text, n_keys, seed)
    table = []
    for chosen, evicts in _pairs(select, evict):
        with model.session(select=chosen, evict=evicts, **session) as asked:
            asked.read(planted_text)
            kept = asked.stats.slots / (model.info.n_layers * model.info.n_kv_heads * asked.tokens_read)
            found, times = 0, []
            for colour, key in planted.items():
                begin = time.perf_counter()
                pieces = list(asked.stream(question.format(colour=colour), max_new=max_new))
                times.append((time.perf_counter() - begin) / max_new)
                found += key in "".join(pieces)
            table.append(_row(chosen, evicts, asked.counters, kept, times, asked=n_keys, found=found,
                              tokens=asked.tokens_read))
    return table


def perplexity(model: Model, text: str, *, prompt: float = 0.5, tokens: int = 256,
               select: Selections = ("full", "quest", "window"), evict: Evictions = (None,),
               dtype: str = "f16", **params: Any) -> list[dict[str, Any]]:
    """exp of the mean negative log-likelihood (nats) that a model gives to `tokens` tokens of a text, which
    are decoded one by one behind its beginning; the share `prompt` of the text's tokens is read first.

    Further columns: perplexity, prompt (tokens read first), tokens. Other arguments are `Runner`'s."""
    ids = model.vocab.encode(text, bos=True)
    begin = int(len(ids) * prompt)
    behind = ids[begin:begin + tokens]
    if begin < 1 or len(behind) < 2:
        raise ArgumentError(f"a text of {len(ids)} tokens, of which {prompt:.2f} are read first, leaves "
                            f"{len(behind)} to be measured")
    table = []
    room = begin + len(behind)
    for chosen, evicts in _pairs(select, evict):
        with model.cache(2 * room, dtype=dtype, evict=evicts) as cache, \
                Runner(model, cache, select=chosen, evict=evicts, max_context=room, **params) as runner:
            sequence = cache.add()
            runner.prefill(sequence, ids[:begin])
            kept = float(sequence.lane_lengths().mean()) / begin
            losses, times = [_loss(runner.logits(), behind[0])], []
            for token, after in zip(behind, behind[1:]):
                start = time.perf_counter()
                runner.decode([sequence], [token])
                times.append(time.perf_counter() - start)
                losses.append(_loss(runner.logits(), after))
            table.append(_row(chosen, evicts, runner.plan.counters, kept, times,
                              perplexity=float(numpy.exp(numpy.mean(losses))), prompt=begin,
                              tokens=len(behind)))
    return table


def _loss(logits: numpy.ndarray, token: int) -> float:
    """-log p(token), in float64."""
    logits = logits.astype(numpy.float64)
    largest = logits.max()
    return float(numpy.log(numpy.exp(logits - largest).sum()) + largest - logits[token])
