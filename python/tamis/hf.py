# SPDX-License-Identifier: Apache-2.0
"""Models of `transformers` whose attention and cache are tamis's: `attach`.

It uses transformers' own extension points: an attention function (AttentionInterface), its mask
(AttentionMaskInterface) and a Cache. Weights, norms and rotations stay transformers'; K and V are in a
cache of tamis, prompts are read in exact steps, and each new token goes through the selection."""
from __future__ import annotations

import dataclasses
import inspect
import weakref
from typing import Any, Iterator, Optional, Union

import numpy
import torch
from transformers.cache_utils import Cache as _HfCache
from transformers.cache_utils import CacheLayerMixin
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from . import cache as _cache
from .array import Array
from .device import Context
from .errors import ArgumentError, FullError, StateError, UnsupportedError
from .plan import Attention, Counters, Layer, Plan, Rotation
from .policy import Eviction, Selection, eviction, selection

NAME = "tamis"  # of the attention function
_DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_engines: weakref.WeakKeyDictionary[torch.nn.Module, Attached] = weakref.WeakKeyDictionary()


def attach(model: Any, *, select: Union[str, Selection, None] = "quest", budget: Optional[int] = None,
           evict: Union[str, Eviction, None] = None, max_context: Optional[int] = None,
           max_sequences: int = 8, capacity_tokens: Optional[int] = None, dtype: Optional[str] = None,
           device: Union[str, Context, None] = None, reads: bool = False) -> Attached:
    """Lets a causal language model of transformers read and keep its K and V through tamis.

    Afterwards ``model.generate`` uses a cache of tamis, a new one for each call unless it is given one
    (``past_key_values=reader.cache()``; in newer versions ``cache=``). Batches may be padded on the left. Until `Attached.detach`.

    Args:
        model: Llama, Qwen, Gemma or another decoder whose attention goes through AttentionInterface, on
            the CPU, in f32, bf16 or f16.
        select: a selection or its name; `budget` replaces its budget, in tokens.
        evict: an eviction or its name, with its own budget (``tamis.SnapKV(budget=1024)``). It acts
            behind each forward pass of several tokens, and as its `every` says.
        max_context: the longest sequence; default: the model's, at most 32768.
        max_sequences: rows of a batch.
        capacity_tokens: tokens that all sequences may hold together; default max_context.
        dtype: of K and V in the cache; default the model's. Also "f16", "q8", "k8v4", "q4".
        device: a context of tamis, or the device that one is opened on.
        reads: keep which pages new tokens read, for `Attached.read_pages`.

    Raises UnsupportedError, with the name, for what it does not do: layers that share K and V or differ
    in shape, masks that are not causal, beam search.
    """
    if model in _engines or any(module in _engines for module in model.modules()):
        raise StateError("tamis is attached to this model already: detach it first")
    chosen = selection(select)
    if budget is not None:
        chosen = selection(chosen, budget=budget) if chosen.kind != "full" else chosen
    shape = _Shape.of(model)
    context = device if isinstance(device, Context) else Context(device)
    if max_context is None:
        max_context = min(int(getattr(shape.config, "max_position_embeddings", 32768)), 32768)
    return Attached(model, shape, context, chosen, eviction(evict), max_context, max_sequences,
                    max_context if capacity_tokens is None else capacity_tokens, dtype, reads)


# ---- What a model is ------------------------------------------------------------------------------


@dataclasses.dataclass
class _Shape:
    """What tamis must know of a model: the shape of its cache, and how each layer attends."""

    config: Any
    modules: list[torch.nn.Module]  # the attention of each layer
    n_heads: int
    n_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @classmethod
    def of(cls, model: Any) -> _Shape:
        config = model.config.get_text_config(decoder=True)
        name = type(model).__name__
        if getattr(model.config, "is_encoder_decoder", False):
            raise UnsupportedError(f"{name} is an encoder-decoder model")
        if getattr(config, "num_kv_shared_layers", 0):
            raise UnsupportedError(f"{name}: {config.num_kv_shared_layers} layers share K and V of others")
        found = {module.layer_idx: module for module in model.modules()
                 if hasattr(module, "layer_idx") and hasattr(module, "q_proj") and hasattr(module, "o_proj")}
        layers = int(config.num_hidden_layers)
        if sorted(found) != list(range(layers)):
            raise UnsupportedError(f"{name}: of its {layers} layers {len(found)} have an attention that tamis "
                                   "knows (layer_idx, q_proj, o_proj)")
        modules = [found[layer] for layer in range(layers)]
        shapes = {(int(module.head_dim), module.q_proj.weight.shape[0], module.k_proj.weight.shape[0])
                  for module in modules}
        if len(shapes) != 1:
            raise UnsupportedError(f"{name}: layers have different shapes: {sorted(shapes)}")
        head_dim, q_rows, k_rows = shapes.pop()
        if model.device.type != "cpu":
            raise UnsupportedError(f"{name} is on {model.device}: tamis attaches to models on the CPU")
        dtype = modules[0].q_proj.weight.dtype
        if dtype not in _DTYPES:
            raise UnsupportedError(f"{name} computes in {dtype}: f32, bf16 and f16 are taken")
        n_heads = int(config.num_attention_heads)
        n_kv_heads = int(config.num_key_value_heads)
        if q_rows < n_heads * head_dim or k_rows != n_kv_heads * head_dim:
            raise UnsupportedError(f"{name}: projections of {q_rows} and {k_rows} rows for {n_heads} heads and "
                                   f"{n_kv_heads} KV heads of {head_dim}")
        return cls(config, modules, n_heads, n_kv_heads, head_dim, dtype)

    def attention(self, module: Any) -> Attention:
        """How a layer attends, as its module says; `_attend` compares it with what the model passes."""
        window = getattr(module, "sliding_window", None)
        if not hasattr(module, "sliding_window") and not hasattr(self.config, "layer_types"):
            window = getattr(self.config, "sliding_window", None)
        return Attention(scale=float(module.scaling), sliding_window=int(window or 0),
                         soft_cap=float(getattr(module, "attn_logit_softcapping", None) or 0))


class _Rows:
    """Rows that torch and the device share: in place where the device uses the host's memory."""

    def __init__(self, context: Context, width: int, dtype: str) -> None:
        self.context, self.width, self.dtype = context, width, dtype
        self.in_place = context.device.backend != "cuda" and context.device.kind == "cpu"
        self.array: Any = None
        self.tensor: Any = None
        self._slices: dict[int, Array] = {}

    def rows(self, count: int) -> Array:
        """An array of `count` rows; what was there is gone where it had to grow."""
        if self.array is None or self.array.shape[0] < count:
            self.array = self.context.empty((max(count, 16), self.width), self.dtype)
            self.tensor = torch.from_dlpack(self.array) if self.in_place else None
            self._slices = {}
        if count not in self._slices:
            if len(self._slices) > 64:
                self._slices = {}
            self._slices[count] = self.array[:count]
        return self._slices[count]

    def put(self, data: torch.Tensor) -> Array:
        """[rows][width] of any float type."""
        rows = self.rows(data.shape[0])
        if self.tensor is not None:
            self.tensor[:data.shape[0]].copy_(data)
        else:
            rows.write(data.float().numpy())
        return rows

    def get(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A copy, once what is enqueued has been done."""
        if self.tensor is not None:
            self.context.wait()
            return self.tensor[:count].to(dtype, copy=True)
        found = torch.from_numpy(self.array[:count].read())
        return found.view(torch.bfloat16).to(dtype) if self.dtype == "bf16" else found.to(dtype)


# ---- The cache that transformers sees -------------------------------------------------------------


class _CacheLayer(CacheLayerMixin):
    """One layer of a TamisCache. It hands K and V on to the attention function, which writes them."""

    is_sliding = False
    supports_early_init = False

    def __init__(self, owner: TamisCache, layer: int) -> None:
        super().__init__()
        self._owner = weakref.ref(owner)
        self._layer = layer

    @property
    def _cache(self) -> TamisCache:
        owner = self._owner()
        assert owner is not None
        return owner

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any,
               **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self._cache._engine._given = (self._cache, self._layer, key_states)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + int(query_length), 0

    def get_seq_length(self) -> int:
        return self._cache.length

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length


class TamisCache(_HfCache):
    """The K and V of a batch of sequences, made by `Attached.cache`; ``past_key_values`` of generate and of
    forward passes. Forgotten, it gives its pages back.

    Attributes:
        sequences: the sequences of tamis, one for each row of the batch; padding is in none of them.
        length: tokens that transformers counts, padding included.
    """

    def __init__(self, engine: Attached) -> None:
        self._engine = engine
        self.sequences: list[_cache.Sequence] = []
        self.length = 0
        super().__init__(layers=[_CacheLayer(self, i) for i in range(len(engine.shape.modules))])

    def fork(self) -> TamisCache:
        """A cache with the same content, which shares pages: to ask a text several questions."""
        other = TamisCache(self._engine)
        other.sequences = [sequence.fork() for sequence in self.sequences]
        other.length = self.length
        return other

    def crop(self, tokens_to_remove: int) -> None:
        """Gives up the last -`tokens_to_remove` tokens (transformers counts them so). Raises StateError for
        tokens before an eviction."""
        if tokens_to_remove > 0:
            raise ArgumentError(f"crop({tokens_to_remove}): the number of tokens to give up is negative")
        for sequence in self.sequences:
            sequence.truncate(max(len(sequence) + tokens_to_remove, 0))
        self.length = max(self.length + tokens_to_remove, 0)

    def reset(self) -> None:
        """Gives all tokens up."""
        for sequence in self.sequences:
            sequence.remove()
        self.sequences, self.length = [], 0

    def reorder_cache(self, beam_idx: Any) -> None:
        raise UnsupportedError("beam search is not supported with a cache of tamis: num_beams must be 1")

    def batch_repeat_interleave(self, repeats: int) -> None:
        raise UnsupportedError("a cache of tamis cannot be repeated for several beams or candidates")

    def batch_select_indices(self, indices: Any) -> None:
        raise UnsupportedError("rows of a cache of tamis cannot be selected")

    @property
    def batch_size(self) -> int:
        return len(self.sequences) or -1

    @property
    def is_croppable(self) -> bool:
        return False  # it is unless tokens were evicted; nobody should count on it

    def __iter__(self) -> Iterator[Any]:
        raise UnsupportedError("K and V of a cache of tamis are not tensors: see TamisCache.sequences")


# ---- What is attached -----------------------------------------------------------------------------


@dataclasses.dataclass
class _Pass:
    """A forward pass: its step, and which of its rows are tokens."""

    step: Any
    cache: TamisCache
    batch: int
    n: int
    kept: Optional[torch.Tensor]  # indices of rows that are no padding; None: all


class Attached:
    """tamis in a model, made by `attach`. It is a context manager, which detaches at its end."""

    def __init__(self, model: Any, shape: _Shape, context: Context, select: Selection,
                 evict: Optional[Eviction], max_context: int, max_sequences: int, capacity_tokens: int,
                 dtype: Optional[str], reads: bool) -> None:
        self.model, self.shape, self.context = model, shape, context
        own = _DTYPES[shape.dtype]
        self.store = _cache.Cache(context, n_layers=len(shape.modules), n_heads=shape.n_heads,
                                  n_kv_heads=shape.n_kv_heads, head_dim=shape.head_dim,
                                  capacity_tokens=capacity_tokens, dtype=dtype or own, evict=evict)
        self.attention = [shape.attention(module) for module in shape.modules]
        local = [layer.sliding_window > 0 for layer in self.attention]
        mixed = any(local) and not all(local)  # then selections choose in the others alone
        self.plan = Plan(self.store, select=select, evict=evict, max_context=max_context,
                         max_sequences=max_sequences, max_rows=max(capacity_tokens, max_context),
                         layers=[Layer(layer, full=mixed and layer.sliding_window > 0)
                                 for layer in self.attention], reads=reads, half_rows=own != "f32")
        self._bind(evict)
        keys = own if self.store.dtype == own else "f32"
        self._k, self._v = (_Rows(context, shape.n_kv_heads * shape.head_dim, keys) for _ in range(2))
        self._q, self._out = (_Rows(context, shape.n_heads * shape.head_dim, own) for _ in range(2))
        self._given: Any = None  # what the last update of a layer's cache has handed on
        self._pass: Optional[_Pass] = None
        self._before = model.config._attn_implementation
        AttentionInterface.register(NAME, _attend)
        AttentionMaskInterface.register(NAME, _mask)
        model.set_attn_implementation(NAME)
        for module in shape.modules:
            _engines[module] = self
        self._generate = model.generate
        parameters = inspect.signature(type(model).forward).parameters
        self._keyword = "cache" if "cache" in parameters else "past_key_values"
        model.generate = self._generate_with_cache

    def _bind(self, evict: Optional[Eviction]) -> None:
        """What the eviction needs of the model beside q, k and v."""
        if evict is None:
            return
        from ._core import lib

        needs = lib.tamis_eviction_needs(evict._struct())
        if needs & lib.TAMIS_NEEDS_OUTPUT:
            for layer, module in enumerate(self.shape.modules):
                weight = module.o_proj.weight.detach().contiguous()
                on_device = self.context.empty(tuple(weight.shape), _DTYPES[weight.dtype])
                on_device.write(weight.view(torch.uint16).numpy() if weight.dtype == torch.bfloat16
                                else weight.numpy())
                self.plan.bind_output(layer, on_device)
        if needs & lib.TAMIS_NEEDS_ROTATION:
            rotary = [module for module in self.model.modules() if hasattr(module, "inv_freq")]
            if len(rotary) != 1 or float(getattr(rotary[0], "attention_scaling", 1)) != 1:
                raise UnsupportedError(f"{type(self.model).__name__}: reindexed streaming takes a model with "
                                       "one rotation of all layers, which scales nothing")
            self.plan.bind_rotation(Rotation(self.context, rotary[0].inv_freq.double().numpy()))

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_: Any) -> None:
        self.detach()

    def __repr__(self) -> str:
        return f"<tamis.hf.Attached {type(self.model).__name__}: {self.plan!r} on {self.context.device.id}>"

    def detach(self) -> None:
        """Gives the model its own attention back; caches made by this cannot be used afterwards."""
        if _engines.get(self.shape.modules[0]) is not self:
            return
        for module in self.shape.modules:
            del _engines[module]
        del self.model.generate
        self.model.set_attn_implementation(self._before)

    def cache(self) -> TamisCache:
        """An empty cache for one batch of sequences."""
        return TamisCache(self)

    def read(self, input_ids: torch.Tensor, attention_mask: Optional[torch.Tensor] = None,
             cache: Optional[TamisCache] = None) -> TamisCache:
        """Reads texts, [batch][tokens], into a cache. The mask is as generate's, [batch][tokens] with those
        that the cache has already."""
        cache = self.cache() if cache is None else cache
        positions = None
        if attention_mask is not None:  # as generate counts them: padding has none
            positions = (attention_mask.long().cumsum(1) - 1).clamp(min=0)[:, -input_ids.shape[1]:]
        with torch.no_grad():
            self.model(input_ids=input_ids, attention_mask=attention_mask, position_ids=positions,
                       use_cache=True, logits_to_keep=1, **{self._keyword: cache})
        return cache

    @property
    def counters(self) -> Counters:
        """What has been read and evicted since it was attached."""
        return self.plan.counters

    def read_pages(self, row: int = 0) -> numpy.ndarray:
        """Which pages the last new token read: bool [n_layers][n_kv_heads][pages], of a batch's row. Needs
        ``attach(..., reads=True)``."""
        return self.plan.read(row)

    def _generate_with_cache(self, *args: Any, **kwargs: Any) -> Any:
        """model.generate with a cache of tamis where the caller gives none."""
        config = kwargs.get("generation_config") or self.model.generation_config
        beams = kwargs.get("num_beams") or config.num_beams or 1
        if beams > 1:
            raise UnsupportedError(f"beam search (num_beams={beams}) is not supported through tamis")
        if kwargs.get("use_cache", config.use_cache) is False:
            raise UnsupportedError("use_cache=False is not supported through tamis: K and V are in its cache")
        given = [kwargs.pop(name, None) for name in ("cache", "past_key_values")]
        kwargs[self._keyword] = next((cache for cache in given if cache is not None), None) or self.cache()
        return self._generate(*args, **kwargs)

    # ---- Forward passes ----

    def _begin(self, cache: TamisCache, query: torch.Tensor, mask: Optional[torch.Tensor]) -> _Pass:
        if self._pass is not None:  # a pass that failed half way
            self._give_up()
        batch, n = query.shape[0], query.shape[2]
        if not cache.sequences:
            cache.sequences = [self.store.add() for _ in range(batch)]
        if len(cache.sequences) != batch:
            raise ArgumentError(f"a batch of {batch} for a cache of {len(cache.sequences)} sequences")
        counts, kept = _tokens(mask, cache.length, batch, n)
        taking = [(sequence, count) for sequence, count in zip(cache.sequences, counts) if count]
        if not taking:
            raise ArgumentError("the batch has nothing but padding")
        try:
            step = self.plan.step([sequence for sequence, _ in taking], [count for _, count in taking],
                                  exact=n > 1 or not cache.length)
        except FullError as full:
            raise FullError(f"{full} (attach(capacity_tokens=...) makes more room)") from None
        self._pass = _Pass(step, cache, batch, n, kept)
        return self._pass

    def _give_up(self) -> None:
        assert self._pass is not None
        step, self._pass = self._pass.step, None
        if step.open:
            step.cancel()

    def _layer(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
               mask: Optional[torch.Tensor]) -> torch.Tensor:
        given, self._given = self._given, None
        if given is None or given[1] != layer or given[2] is not key:
            raise StateError("K and V do not come from a cache of tamis: give generate none, or "
                             f"{self._keyword}=reader.cache(), and leave use_cache on")
        try:
            now = self._begin(given[0], query, mask) if layer == 0 else self._pass
            if now is None or now.cache is not given[0]:
                raise StateError(f"layer {layer} comes without the layers before it")
            out = self._run(now, layer, query, key, value)
            if layer == len(self.shape.modules) - 1:
                self._end(now)
            return out
        except BaseException:
            if self._pass is not None:
                self._give_up()
            raise

    def _run(self, now: _Pass, layer: int, query: torch.Tensor, key: torch.Tensor,
             value: torch.Tensor) -> torch.Tensor:
        def rows(states: torch.Tensor) -> torch.Tensor:  # [batch][heads][n][dim] to [rows][heads*dim]
            packed = states.transpose(1, 2).reshape(now.batch * now.n, -1)
            return packed if now.kept is None else packed[now.kept]

        now.step.write(layer, self._k.put(rows(key)), self._v.put(rows(value)))
        q = self._q.put(rows(query))
        count = q.shape[0]
        now.step.attend(layer, q, self._out.rows(count))
        out = self._out.get(count, query.dtype)
        if now.kept is not None:
            padded = out.new_zeros((now.batch * now.n, out.shape[1]))
            padded[now.kept] = out
            out = padded
        return out.view(now.batch, now.n, self.shape.n_heads, self.shape.head_dim)

    def _end(self, now: _Pass) -> None:
        now.step.end()
        self._pass = None
        now.cache.length += now.n
        by = self.plan.evict_by
        if by is None or by.kind == "caller":
            return
        every = int(getattr(by, "every", 0))
        for sequence in now.step.sequences:
            if now.n > 1 or (every > 1 and len(sequence) - sequence.evicted_at >= every):
                self.plan.evict(sequence)


def _tokens(mask: Optional[torch.Tensor], past: int, batch: int,
            n: int) -> tuple[list[int], Optional[torch.Tensor]]:
    """How many tokens each row of the batch brings, and which rows these are; padding stands left."""
    if mask is None:
        return [n] * batch, None
    if mask.ndim != 2 or mask.shape != (batch, past + n):
        raise UnsupportedError(f"a mask of shape {tuple(mask.shape)}: tamis takes [batch][tokens], "
                               f"[{batch}][{past + n}] here")
    if bool((mask[:, 1:] < mask[:, :-1]).any()):
        row = int((mask[:, 1:] < mask[:, :-1]).any(1).nonzero()[0])
        raise UnsupportedError(f"row {row} of the batch has padding behind its tokens: padding stands on the "
                               "left (padding_side='left')")
    new = mask[:, past:]
    if bool(new.all()):
        return [n] * batch, None
    return [int(count) for count in new.sum(1)], new.reshape(-1).nonzero().squeeze(1)


# ---- What transformers calls ----------------------------------------------------------------------


def _mask(batch_size: int, q_length: int, kv_length: int, *, attention_mask: Optional[torch.Tensor] = None,
          allow_is_causal_skip: bool = True, use_vmap: bool = False, **_: Any) -> Optional[torch.Tensor]:
    """The padding, bool [batch][tokens], or None; what else a row sees is the plan's matter."""
    if use_vmap or not allow_is_causal_skip:
        raise UnsupportedError("this model's mask is not a causal one: tamis attends causally")
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return attention_mask[:, -kv_length:]


def _attend(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
            attention_mask: Optional[torch.Tensor], scaling: Optional[float] = None, dropout: float = 0,
            sliding_window: Optional[int] = None, softcap: Optional[float] = None, s_aux: Any = None,
            **_: Any) -> tuple[torch.Tensor, None]:
    """The attention of a layer: [batch][n][heads][dim] of query, key and value [batch][heads][n][dim]."""
    engine = _engines.get(module)
    if engine is None:
        raise StateError("tamis is not attached to this model: tamis.hf.attach(model)")
    layer = int(module.layer_idx)
    plan = engine.attention[layer]
    for name, said, known in (("scaling", scaling, plan.scale), ("sliding_window", sliding_window or 0,
                              plan.sliding_window), ("softcap", softcap or 0, plan.soft_cap)):
        if said is not None and said != known:
            raise UnsupportedError(f"layer {layer} passes {name} {said}, its module says {known}")
    if s_aux is not None:
        raise UnsupportedError(f"layer {layer} has sink logits, which tamis.hf does not pass on")
    if dropout:
        raise UnsupportedError(f"dropout {dropout}: tamis is for inference (model.eval())")
    return engine._layer(layer, query, key, value, attention_mask), None
