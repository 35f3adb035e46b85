# SPDX-License-Identifier: Apache-2.0
"""The two sides that are compared: kvpress, which acts in a transformers model, and tamis, which gets the q,
k and v of that model's layers."""
from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, Optional

import numpy
import tamis
import torch
from kvpress import BasePress, ScorerPress
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

#: Positions of the tokens that a lane keeps, ascending: [n_layers][n_kv_heads].
Lanes = list[list[numpy.ndarray]]

NEEDS_OUTPUT = (tamis.CriticalKV, tamis.CriticalAdaKV, tamis.DefensiveKV)


@dataclasses.dataclass
class Text:
    """A model, tokens, and what the model's attention gets for them."""

    model: Any
    tokens: torch.Tensor  # [1][n]
    layers: list[tuple[numpy.ndarray, ...]]  # (q, k, v) of each layer, rotated: f32 [n][heads][head_dim]

    @property
    def shape(self) -> dict[str, Any]:
        """The model's shape as tamis.Cache takes it."""
        config = self.model.config
        return {"n_layers": config.num_hidden_layers, "n_heads": config.num_attention_heads,
                "n_kv_heads": config.num_key_value_heads, "head_dim": config.head_dim}


def random_model(seed: int) -> tuple[Any, torch.Tensor]:
    """A Llama of random weights, and 8,192 random tokens. Its KV heads attend more or less sharply, as those
    of trained models do, so that heads which share a budget get unequal parts of it."""
    torch.manual_seed(seed)
    vocabulary = 2048
    config = LlamaConfig(vocab_size=vocabulary, hidden_size=512, intermediate_size=1024, num_hidden_layers=4,
                         num_attention_heads=8, num_key_value_heads=2, head_dim=64, initializer_range=0.05)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            by_kv_head = layer.self_attn.q_proj.weight.view(config.num_key_value_heads, -1)
            by_kv_head *= torch.tensor([0.3, 3.0])[:, None]
    return model, torch.randint(vocabulary, (1, 8192))


def gguf_model(path: pathlib.Path, text: pathlib.Path) -> tuple[Any, torch.Tensor]:
    """A model of a GGUF file, dequantised by transformers, and the tokens of a text."""
    logging.disable_progress_bar()
    files: dict[str, Any] = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(**files, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(**files)(text.read_text(), return_tensors="pt").input_ids


def capture(model: Any, tokens: torch.Tensor) -> Text:
    """Runs the model over the tokens and notes what its attention gets."""
    model.eval().set_attn_implementation("sdpa")
    layers: list[tuple[numpy.ndarray, ...]] = []
    attention = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def note(module: Any, q: Any, k: Any, v: Any, *rest: Any, **named: Any) -> Any:
        layers.append(tuple(rows[0].transpose(0, 1).contiguous().numpy() for rows in (q, k, v)))
        return attention(module, q, k, v, *rest, **named)

    ALL_ATTENTION_FUNCTIONS["sdpa"] = note
    try:
        with torch.no_grad():
            model.model(tokens)
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = attention
    return Text(model, tokens, layers)


# ---- kvpress --------------------------------------------------------------------------------------


@dataclasses.dataclass
class Pressed:
    """What a press has left of a text."""

    lanes: Lanes
    scores: Optional[numpy.ndarray]  # by which it ranks: [n_layers][n_kv_heads][n]
    cache: Any  # transformers' DynamicCache
    masks: list[Any]  # of each layer the indices of keys that it masks, or None


def press_text(press: BasePress, text: Text, *, eager: bool = False, last: int = 0) -> Pressed:
    """Prefills the text, but for its `last` tokens, under a press. What it kept of the first text of a batch
    is read off the cache: rows of K are found by their bits among the keys that it was given, and masked ones
    are left out."""
    model = text.model
    model.set_attn_implementation("eager" if eager else "sdpa")
    given: list[Any] = []
    scores: list[numpy.ndarray] = []
    compress = press.compress
    scorer: Any = press if isinstance(press, ScorerPress) else getattr(press, "press")
    score = scorer.score

    def note_keys(module: Any, hidden: Any, keys: Any, *rest: Any) -> Any:
        given.append(keys[0])
        return compress(module, hidden, keys, *rest)

    def note_scores(*arguments: Any) -> Any:
        out = score(*arguments)
        scores.append(out[0].clone().numpy())
        return out

    press.compress, scorer.score = note_keys, note_scores
    cache: Any = DynamicCache()
    tokens = text.tokens[:, :text.tokens.shape[1] - last]
    with torch.no_grad(), press(model):
        model.model(tokens, past_key_values=cache)
    attentions = [layer.self_attn for layer in model.model.layers]
    masks = [getattr(attention, "masked_key_indices", None) for attention in attentions]
    for attention in attentions:
        attention.masked_key_indices = None
    lanes = [_unmasked(keys, mask) if mask is not None else _found(keys, held.keys[0])
             for keys, held, mask in zip(given, cache.layers, masks)]
    return Pressed(lanes, numpy.stack(scores) if scores else None, cache, masks)


def _unmasked(keys: torch.Tensor, mask: Any) -> list[numpy.ndarray]:
    kept = numpy.ones(keys.shape[:2], bool)
    text, head, position = (index.numpy() for index in mask)
    kept[head[text == 0], position[text == 0]] = False
    return [numpy.flatnonzero(lane) for lane in kept]


def _found(keys: torch.Tensor, held: torch.Tensor) -> list[numpy.ndarray]:
    lanes = []
    for before, after in zip(keys.numpy(), held.numpy()):
        where = {row.tobytes(): position for position, row in enumerate(before)}
        assert len(where) == len(before), "two positions have the same key"
        lanes.append(numpy.sort(numpy.array([where[row.tobytes()] for row in after])))
    return lanes


# ---- tamis ----------------------------------------------------------------------------------------


class Tamis:
    """The text's q, k and v in caches of tamis, of which evictions keep tokens."""

    def __init__(self, context: tamis.Context, text: Text) -> None:
        self.context, self.text = context, text
        self.layers = [tuple(context.array(rows) for rows in layer) for layer in text.layers]
        self.outputs = [context.array(layer.self_attn.o_proj.weight.detach().numpy())
                        for layer in text.model.model.layers]

    def plan(self, evict: Optional[tamis.Eviction], **flags: bool) -> tamis.Plan:
        """A plan over a cache of its own, which has room for the text."""
        n = self.text.tokens.shape[1]
        cache = tamis.Cache(self.context, **self.text.shape, capacity_tokens=n + 64, dtype="f32", evict=evict,
                            planes=("positions",) if evict else ())
        plan = cache.plan(evict=evict, max_context=n + 64, max_rows=n, **flags)
        if isinstance(evict, NEEDS_OUTPUT):
            for layer, output in enumerate(self.outputs):
                plan.bind_output(layer, output)
        return plan

    def prefill(self, plan: tamis.Plan, *, last: int = 0) -> tamis.Sequence:
        """A sequence that holds the text, but for its `last` tokens, not yet evicted from."""
        n = self.text.tokens.shape[1] - last
        sequence = plan.cache.add()
        out = self.context.empty((n, plan.cache.n_heads, plan.cache.head_dim))
        with plan.step(sequence, n, exact=True) as step:
            for layer, (q, k, v) in enumerate(self.layers):
                step.write(layer, k[:n], v[:n])
                step.attend(layer, q[:n], out)
        return sequence

    def kept(self, evict: tamis.Eviction, scores: Optional[numpy.ndarray] = None) -> Lanes:
        """What the eviction keeps of the text; under tamis.Kept by these scores."""
        plan = self.plan(evict)
        sequence = self.prefill(plan)
        if scores is None:
            plan.evict(sequence)
        else:
            plan.evict_by_scores(sequence, scores)
        return [[sequence.positions(layer, head) for head in range(plan.cache.n_kv_heads)]
                for layer in range(plan.cache.n_layers)]

    def weights(self, last: int) -> numpy.ndarray:
        """The attention weight of each token in the text's `last` last rows, the mean over these and over all
        query heads: [n_layers][n]."""
        plan = self.plan(None, row_masses=True)
        n, sequence = self.text.tokens.shape[1], plan.cache.add()
        out = self.context.empty((n, plan.cache.n_heads, plan.cache.head_dim))
        weights = []
        with plan.step(sequence, n, exact=True) as step:
            for layer, (q, k, v) in enumerate(self.layers):
                step.write(layer, k, v)
                weights.append(step.masses(layer, q, last))
                step.attend(layer, q, out)
        mean: numpy.ndarray = numpy.stack(weights) / (last * plan.cache.n_heads)
        return mean
