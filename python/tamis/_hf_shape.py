# SPDX-License-Identifier: Apache-2.0
"""How the layers of a model of transformers attend: read from what they pass to their attention function
in a forward pass of two tokens, which `Shape.of` runs."""
from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Callable, Optional

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ._hf_cache import Rows, TamisCache
from .errors import Error, UnsupportedError

# Of a layer's other arguments those that change nothing where K and V are in a cache.
_HARMLESS = {"position_ids", "position_embeddings", "use_cache", "cache", "past_key_values", "cache_position",
             "sliding_window", "output_attentions", "output_hidden_states", "output_router_logits",
             "return_dict", "logits_to_keep", "is_causal"}
_FAR = 1000  # the position of the second token


@dataclasses.dataclass(frozen=True)
class Mask:
    """What the layers get in the place of a mask.

    Attributes:
        padding: bool [batch][tokens], those of the cache and the new ones, False for padding; None: there is
            none.
        local: the length of the sliding window or chunk, 0 for none.
        causal: whether a row sees what is before it and nothing else.
        sees: whether the query at an index sees the key at an index, as transformers asks it.
    """

    padding: Optional[torch.Tensor]
    local: int
    causal: bool
    sees: Callable[..., torch.Tensor]

    def rule(self) -> tuple[int, int]:
        """(sliding window, chunk) as tamis.Attention has them. Raises UnsupportedError for other rules."""
        n = self.local
        rows = torch.tensor([row for row in (0, 1, 2, n - 1, n, n + 1, 2 * n, 2 * n + 1, 3 * n - 1, 100)
                             if row >= 0])[:, None]
        keys = torch.arange(int(rows.max()) + 2)[None]
        zero = torch.zeros((), dtype=torch.int64)
        seen = self.sees(zero, zero, rows, keys)
        for window, chunk in ((n, 0), (0, n)) if n else ((0, 0),):
            first = rows - window + 1 if window else rows - rows % chunk if chunk else 0 * rows
            if torch.equal(seen, (keys >= first) & (keys <= rows)):
                return window, chunk
        raise UnsupportedError(f"its mask (local size {n}) is not a causal one, of a sliding window, or of "
                               "chunks")


@dataclasses.dataclass(frozen=True)
class Passed:
    """What a layer passes to its attention function beside the rows themselves."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float  # 0: 1/sqrt(head_dim)
    soft_cap: float  # 0: none
    local: int

    @classmethod
    def of(cls, query: torch.Tensor, rows: Rows, mask: Any, scaling: Optional[float],
           softcap: Optional[float]) -> Passed:
        """Raises UnsupportedError for a mask that is not from `_mask`, or not causal."""
        if not isinstance(mask, Mask):
            raise UnsupportedError(f"layer {rows.layer} gets a mask that transformers' masking_utils have "
                                   f"not made ({type(mask).__name__}): tamis takes attention_mask as [batch]"
                                   "[tokens]")
        if not mask.causal:
            raise UnsupportedError(f"layer {rows.layer} gets a mask that is not a causal one: tamis attends "
                                   "causally")
        return cls(query.shape[1], rows.k.shape[1], query.shape[3], float(scaling or 0), float(softcap or 0),
                   mask.local)

    def difference(self, other: Passed) -> str:
        """The first field in which it differs, with both values; "" where there is none."""
        for field in dataclasses.fields(self):
            mine, others = getattr(self, field.name), getattr(other, field.name)
            if mine != others:
                return f"{field.name} {mine}, {others}"
        return ""


@dataclasses.dataclass
class LayerShape:
    """How one layer attends.

    Attributes:
        module: its attention module.
        passed: what it passes.
        sliding_window, chunk: the rule of its mask.
        sinks: the sink logits, f32 [n_heads], or None.
        keys: its keys of two equal tokens at the positions 0 and `far`, [2][n_kv_heads][head_dim].
    """

    module: torch.nn.Module
    passed: Passed
    sliding_window: int
    chunk: int
    sinks: Optional[torch.Tensor]
    keys: torch.Tensor

    def output(self) -> torch.Tensor:
        """The weights of the output projection, [...][n_heads*head_dim]."""
        width = self.passed.n_heads * self.passed.head_dim
        for name in ("o_proj", "out_proj", "dense", "wo"):
            projection = getattr(self.module, name, None)
            if isinstance(projection, torch.nn.Linear) and projection.in_features == width:
                return projection.weight.detach()
        raise UnsupportedError(f"{type(self.module).__name__} has no output projection that is known, which "
                               "the eviction needs")


class Shape:
    """What tamis must know of a model: how each of its layers attends.

    Attributes:
        layers: one `LayerShape` for each.
        n_heads, n_kv_heads, head_dim: the same in all layers.
        far: the position of the second token of `LayerShape.keys`.
        dtype: of the rows.
    """

    evicts = False

    def __init__(self, model: Any) -> None:
        self.name = type(model).__name__
        self.config = model.config.get_text_config(decoder=True)
        self.n_layers = int(self.config.num_hidden_layers)
        self.layers: list[LayerShape] = []
        self.far = 1

    def said(self, name: str) -> Any:
        """What the config says; None where it says nothing, or something else for each layer."""
        try:
            return getattr(self.config, name, None)
        except Exception:  # of configs whose layers differ
            return None

    def check(self) -> None:
        """A forward pass may come."""

    def settle(self) -> None:
        """No sequences."""

    @classmethod
    def of(cls, model: Any) -> Shape:
        """Runs the model, whose attention implementation is tamis's. Raises UnsupportedError for what tamis
        cannot do."""
        shape = cls(model)
        if getattr(model.config, "is_encoder_decoder", False):
            raise UnsupportedError(f"{shape.name} is an encoder-decoder model")
        if model.device.type != "cpu":
            raise UnsupportedError(f"{shape.name} is on {model.device}: tamis attaches to models on the CPU")
        parameters = inspect.signature(type(model).forward).parameters
        options: dict[str, Any] = {"use_cache": True, cache_keyword(model): TamisCache(shape)}
        if "position_ids" in parameters:
            most = int(shape.said("max_position_embeddings") or 2)
            shape.far = max(min(_FAR, most // 2), 1)
            options["position_ids"] = torch.tensor([[0, shape.far]])
        try:
            own = DynamicCache(config=shape.config).layers
            for number, kept in enumerate(own):
                if type(kept) not in (DynamicLayer, DynamicSlidingWindowLayer):
                    raise UnsupportedError(f"layer {number} has a {type(kept).__name__} in transformers' "
                                           "cache: tamis keeps K and V alone")
            with torch.no_grad():
                model(input_ids=torch.ones((1, 2), dtype=torch.int64), **options)
        except Error as reason:
            latent = "latent attention: " if shape.said("kv_lora_rank") is not None else ""
            raise UnsupportedError(f"{shape.name}: {latent}{reason}") from reason
        except Exception as reason:
            raise UnsupportedError(f"{shape.name} does not run with a cache and an attention of tamis: "
                                   f"{type(reason).__name__}: {reason}") from reason
        shape._check([int(getattr(kept, "sliding_window", 0)) for kept in own])
        return shape

    def _check(self, kept: list[int]) -> None:
        """Of the layers together; `kept` are the tokens that transformers' own cache keeps of each, 0 for
        all."""
        if len(self.layers) != self.n_layers:
            raise UnsupportedError(f"{self.name}: of its {self.n_layers} layers {len(self.layers)} attend "
                                   "through AttentionInterface to what they give a cache")
        for number, (layer, tokens) in enumerate(zip(self.layers, kept)):
            if tokens not in (0, layer.passed.local):
                raise UnsupportedError(f"{self.name}: layer {number} has a mask of local size "
                                       f"{layer.passed.local}, but transformers keeps {tokens} tokens of it")
        shapes = {(layer.passed.n_heads, layer.passed.n_kv_heads, layer.passed.head_dim)
                  for layer in self.layers}
        if len(shapes) != 1:
            raise UnsupportedError(f"{self.name}: layers differ in (heads, KV heads, head_dim): "
                                   f"{sorted(shapes)}")
        self.n_heads, self.n_kv_heads, self.head_dim = shapes.pop()

    def attend(self, rows: Rows, module: Any, query: torch.Tensor, mask: Any, scaling: Optional[float],
               softcap: Optional[float], sinks: Optional[torch.Tensor],
               options: dict[str, Any]) -> torch.Tensor:
        """Notes what a layer passes. The answer is 0, so that both tokens stay equal in all layers."""
        layer = len(self.layers)
        if rows.layer != layer:
            raise UnsupportedError(f"layer {rows.layer} attends where layer {layer} is expected")
        if rows.v.shape != rows.k.shape or query.shape[3] != rows.k.shape[3]:
            raise UnsupportedError(f"queries, keys and values have heads of {query.shape[3]}, "
                                   f"{rows.k.shape[3]} and {rows.v.shape[3]}: tamis keeps K and V of one "
                                   "head_dim")
        causal = options.get("is_causal")
        if not (getattr(module, "is_causal", True) if causal is None else causal):
            raise UnsupportedError(f"layer {layer} does not attend causally (is_causal is False)")
        for name, value in options.items():
            if value is not None and name not in _HARMLESS:
                raise UnsupportedError(f"layer {layer} passes {name} to its attention, which tamis does not "
                                       "know")
        passed = Passed.of(query, rows, mask, scaling, softcap)
        window, chunk = mask.rule()
        self.dtype = query.dtype
        self.layers.append(LayerShape(module, passed, window, chunk,
                                      None if sinks is None else sinks.detach().float().reshape(-1),
                                      rows.k[0].transpose(0, 1).clone()))
        return query.new_zeros((query.shape[0], query.shape[2], query.shape[1], query.shape[3]))


def cache_keyword(model: Any) -> str:
    """What forward calls its cache: it depends on transformers' version."""
    return "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"


def rotation(model: Any, shape: Shape) -> tuple[torch.Tensor, str]:
    """The frequencies and the pairing ("half", "adjacent") of a rotation by which all layers turn their keys.
    Raises UnsupportedError where there is no such one."""
    found = [module for module in model.modules()
             if isinstance(getattr(module, "inv_freq", None), torch.Tensor)]
    scaled = any(float(getattr(module, "attention_scaling", 1)) != 1 for module in found)
    if not found or scaled or any(not torch.equal(module.inv_freq, found[0].inv_freq) for module in found):
        raise UnsupportedError(f"{shape.name}: reindexed streaming takes a model with one rotation of all "
                               "layers, which scales nothing")
    frequencies = found[0].inv_freq.double()
    for pairing in ("half", "adjacent"):
        wrong = [number for number, layer in enumerate(shape.layers)
                 if not _turns(layer.keys, shape.far * frequencies, pairing)]
        if not wrong:
            return frequencies, pairing
        if len(wrong) < shape.n_layers:
            break
    raise UnsupportedError(f"{shape.name}: the keys of layers {wrong} do not turn with their positions as "
                           "reindexed streaming needs")


def _turns(keys: torch.Tensor, angles: torch.Tensor, pairing: str) -> bool:
    """Whether the second keys are the first ones, turned by these angles."""
    n = 2 * len(angles)
    if n > keys.shape[-1]:
        return False
    (before, after), rest = keys[..., :n].double(), keys[..., n:]
    first, second = ((slice(0, n // 2), slice(n // 2, n)) if pairing == "half" else
                     (slice(0, n, 2), slice(1, n, 2)))
    a, b = before[..., first], before[..., second]
    turned = torch.empty_like(before)
    turned[..., first] = a * angles.cos() - b * angles.sin()
    turned[..., second] = a * angles.sin() + b * angles.cos()
    near = 1e-3 if keys.dtype == torch.float32 else 3e-2
    return bool((turned - after).norm() <= near * after.norm()) and bool(
        (rest[0].float() - rest[1].float()).norm() <= near * after.norm())
