# SPDX-License-Identifier: Apache-2.0
"""Models of `transformers` whose attention and cache are tamis's: `attach`.

It uses transformers' own extension points: an attention function (AttentionInterface), its mask
(AttentionMaskInterface) and a Cache. Weights, norms and rotations stay transformers'; K and V are in a
cache of tamis, prompts are read in exact steps, and each new token goes through the selection."""
from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
import weakref
from typing import Any, Optional, Union

import numpy
import torch
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from . import cache as _cache
from ._core import lib
from ._hf_cache import Rows, TamisCache, take
from ._hf_shape import Mask, Passed, Shape, cache_keyword, rotation
from .array import Array
from .device import Context
from .errors import ArgumentError, Error, FullError, StateError, UnsupportedError
from .plan import Attention, Counters, Layer, Plan, Rotation, Step
from .policy import Eviction, Selection, eviction, selection

__all__ = ["Attached", "TamisCache", "attach"]
NAME = "tamis"  # of the attention function
_DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_DRAFTS = 64  # rows of a forward pass of drafts, at most
_attached: weakref.WeakSet[Attached] = weakref.WeakSet()


def attach(model: Any, *, select: Union[str, Selection, None] = "quest", budget: Optional[int] = None,
           evict: Union[str, Eviction, None] = None, max_context: Optional[int] = None,
           max_sequences: int = 8, capacity_tokens: Optional[int] = None, dtype: Optional[str] = None,
           device: Union[str, Context, None] = None, reads: bool = False) -> Attached:
    """Lets a causal language model of transformers read and keep its K and V through tamis.

    Until `Attached.detach` ``model.generate`` uses a cache of tamis, a new one for each call unless it is
    given one (``past_key_values=reader.cache()``; in newer versions ``cache=``). A forward pass of two
    tokens, which is run here, shows how the layers attend; weights of sink logits and, for evictions, of
    output projections are those of this moment.

    Args:
        model: a decoder whose attention goes through AttentionInterface, on the CPU, in f32, bf16 or f16.
        select: a selection or its name; `budget` replaces its budget, in tokens.
        evict: an eviction or its name, with its own budget (``tamis.SnapKV(budget=1024)``). It acts
            behind each forward pass of several tokens, and as its `every` says.
        max_context: the longest sequence; default: the model's, at most 32768.
        max_sequences: rows of a batch; under evictions with a window also the sequences whose last queries
            are kept.
        capacity_tokens: tokens that all sequences may hold together; default max_context.
        dtype: of K and V in the cache; default the model's. Also "f16", "q8", "k8v4", "q4".
        device: a context of tamis, or the device that one is opened on.
        reads: keep which pages new tokens read, for `Attached.read_pages`.

    Raises UnsupportedError, with the name, for what it does not do: layers that share K and V or differ
    in shape, masks that are not causal, position biases, latent and linear attention.
    """
    if not hasattr(model, "generate") or not hasattr(model, "set_attn_implementation"):
        raise ArgumentError(f"{type(model).__name__} is no language model of transformers that generates")
    modules = set(model.modules())
    if any(not modules.isdisjoint(layer.module for layer in reader.shape.layers) for reader in _attached):
        raise StateError("tamis is attached to this model already: detach it first")
    chosen = selection(select)
    if budget is not None and chosen.kind != "full":
        chosen = selection(chosen, budget=budget)
    implementation = _Implementation(model)
    try:
        implementation.set(NAME)
        shape = Shape.of(model)
        context = device if isinstance(device, Context) else Context(device)
        if max_context is None:
            max_context = min(int(shape.said("max_position_embeddings") or 32768), 32768)
        return Attached(model, shape, context, implementation, chosen, eviction(evict), max_context,
                        max_sequences, max_context if capacity_tokens is None else capacity_tokens, dtype,
                        reads)
    except BaseException:
        implementation.restore()
        raise


class _Implementation:
    """The attention implementation of a model's decoder; other parts of it keep theirs."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._config = model.config.get_text_config(decoder=True)
        before = self._config._attn_implementation
        if before == NAME:  # a copy of a model that tamis is attached to
            before = "sdpa" if getattr(model, "_supports_sdpa", False) else "eager"
        self._before = before

    def set(self, name: str) -> None:
        self._model.set_attn_implementation(_within(self._model.config, self._config, name) or name)

    def restore(self) -> None:
        self.set(self._before)


def _within(config: Any, inner: Any, value: str) -> Any:
    """As set_attn_implementation takes it: a value for one of the configs that a config is made of."""
    if config is inner:
        return value
    for name in config.sub_configs:
        below = getattr(config, name)
        found = _within(below, inner, value) if below is not None else None
        if found is not None:
            return {name: found}
    return None


# ---- Memory that torch and the device share -------------------------------------------------------


class _Buffer:
    """Rows that torch and the device share: in place where the device uses the host's memory."""

    def __init__(self, context: Context, heads: int, head_dim: int, dtype: str) -> None:
        self.context, self.heads, self.head_dim, self.dtype = context, heads, head_dim, dtype
        self.in_place = context.device.backend != "cuda" and context.device.kind == "cpu"
        self.array: Any = None
        self.tensor: Any = None
        self._slices: dict[int, Array] = {}

    def rows(self, count: int) -> Array:
        """An array of `count` rows; what was there is gone where it had to grow."""
        if self.array is None or self.array.shape[0] < count:
            self.tensor, self._slices = None, {}
            self.array = self.context.empty((max(count, 16), self.heads * self.head_dim), self.dtype)
            if self.in_place:
                with torch.inference_mode(False):
                    self.tensor = torch.from_dlpack(self.array)
        if count not in self._slices:
            if len(self._slices) > 64:
                self._slices = {}
            self._slices[count] = self.array[:count]
        return self._slices[count]

    def put(self, states: torch.Tensor, kept: Optional[torch.Tensor]) -> Array:
        """Rows of [batch][heads][n][head_dim]; of those the ones that `kept` names."""
        states = states.detach().transpose(1, 2)  # [batch][n][heads][head_dim]
        if kept is not None:
            states = states.reshape(-1, 1, self.heads, self.head_dim)[kept]
        count = states.shape[0] * states.shape[1]
        rows = self.rows(count)
        if self.tensor is not None:
            self.tensor[:count].view(states.shape).copy_(states)
        else:
            rows.write(states.reshape(count, -1).float().numpy())
        return rows

    def get(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A copy, once what is enqueued has been done."""
        if self.tensor is not None:
            self.context.wait()
            copied: torch.Tensor = self.tensor[:count].to(dtype, copy=True)
            return copied
        return torch.from_numpy(self.array[:count].read()).to(dtype)


# ---- What is attached -----------------------------------------------------------------------------


@dataclasses.dataclass
class _Pass:
    """A forward pass: its step, and which of its rows are tokens."""

    step: Optional[Step]  # None: they are all padding
    cache: TamisCache
    mask: Mask
    thread: int
    n: int
    kept: Optional[torch.Tensor]  # indices of rows that are no padding; None: all
    layer: int = 0  # the next one


class Attached:
    """tamis in a model, made by `attach`. It is a context manager, which detaches at its end."""

    def __init__(self, model: Any, shape: Shape, context: Context, implementation: _Implementation,
                 select: Selection, evict: Optional[Eviction], max_context: int, max_sequences: int,
                 capacity_tokens: int, dtype: Optional[str], reads: bool) -> None:
        if shape.dtype not in _DTYPES:
            raise UnsupportedError(f"{shape.name} computes in {shape.dtype}: f32, bf16 and f16 are taken")
        self.model, self.shape, self.context = model, shape, context
        self.n_layers, self.evicts = shape.n_layers, evict is not None
        own = _DTYPES[shape.dtype]
        self.store = _cache.Cache(context, n_layers=shape.n_layers, n_heads=shape.n_heads,
                                  n_kv_heads=shape.n_kv_heads, head_dim=shape.head_dim,
                                  capacity_tokens=capacity_tokens, dtype=dtype or own, evict=evict)
        self.plan = Plan(self.store, select=select, evict=evict, max_context=max_context,
                         max_sequences=max_sequences, max_rows=max(capacity_tokens, max_context),
                         max_selected_rows=max(max_sequences, _DRAFTS), layers=self._layers(max_context),
                         reads=reads)
        self._bind(evict)
        keys = own if self.store.dtype == own else "f32"
        self._k, self._v = (_Buffer(context, shape.n_kv_heads, shape.head_dim, keys) for _ in range(2))
        self._q, self._out = (_Buffer(context, shape.n_heads, shape.head_dim, "f32") for _ in range(2))
        self._pass: Optional[_Pass] = None
        self._implementation = implementation
        self._keyword = cache_keyword(model)
        self._overridden = vars(model).get("generate")
        model.generate = _Generate(self, model.generate)
        _attached.add(self)

    def _layers(self, max_context: int) -> list[Layer]:
        """How each layer attends. Where some see few tokens and others all, selections choose in these."""
        layers = []
        for layer in self.shape.layers:
            passed, near = layer.passed, layer.passed.local < max_context
            sinks = None if layer.sinks is None else self.context.array(layer.sinks.numpy())
            layers.append(Attention(passed.scale, passed.soft_cap, layer.sliding_window if near else 0,
                                    layer.chunk if near else 0, sinks))
        local = [layer.sliding_window + layer.chunk > 0 for layer in layers]
        self._local = any(local)
        mixed = self._local and not all(local)
        return [Layer(layer, full=mixed and is_local) for layer, is_local in zip(layers, local)]

    def _bind(self, evict: Optional[Eviction]) -> None:
        """What the eviction needs of the model beside q, k and v."""
        if evict is None:
            return
        needs = lib.tamis_eviction_needs(evict._struct())
        if needs & lib.TAMIS_NEEDS_OUTPUT:
            for number, layer in enumerate(self.shape.layers):
                weight = layer.output()
                on_device = self.context.empty(tuple(weight.shape), _DTYPES[weight.dtype])
                on_device.write(weight.view(torch.uint16).numpy() if weight.dtype == torch.bfloat16
                                else weight.numpy())
                self.plan.bind_output(number, on_device)
        if needs & lib.TAMIS_NEEDS_ROTATION:
            frequencies, pairing = rotation(self.model, self.shape)
            self.plan.bind_rotation(Rotation(self.context, frequencies.numpy(), pairing=pairing))

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_: Any) -> None:
        self.detach()

    def __repr__(self) -> str:
        return f"<tamis.hf.Attached {self.shape.name}: {self.plan!r} on {self.context.device.id}>"

    def detach(self) -> None:
        """Gives the model its own attention back; caches made by this cannot be used afterwards."""
        if self not in _attached:
            return
        self.settle()
        _attached.discard(self)
        del self.model.generate
        if self._overridden is not None:
            self.model.generate = self._overridden
        self._implementation.restore()

    def cache(self) -> TamisCache:
        """An empty cache for one batch of sequences."""
        return TamisCache(self)

    def read(self, input_ids: torch.Tensor, attention_mask: Optional[torch.Tensor] = None,
             cache: Optional[TamisCache] = None) -> TamisCache:
        """Reads texts, [batch][tokens], into a cache. The mask is as generate's, [batch][tokens] with those
        that the cache has already."""
        cache = self.cache() if cache is None else cache
        options: dict[str, Any] = {"attention_mask": attention_mask, self._keyword: cache}
        parameters = inspect.signature(type(self.model).forward).parameters
        if attention_mask is not None and "position_ids" in parameters:
            positions = (attention_mask.long().cumsum(1) - 1).clamp(min=0)  # as generate counts them
            options["position_ids"] = positions[:, -input_ids.shape[1]:]
        if "logits_to_keep" in parameters:
            options["logits_to_keep"] = 1
        with torch.no_grad():
            self.model(input_ids=input_ids, use_cache=True, **options)
        return cache

    @property
    def counters(self) -> Counters:
        """What has been read and evicted since it was attached."""
        return self.plan.counters

    def read_pages(self, row: int = 0) -> numpy.ndarray:
        """Which pages the last new token read: bool [n_layers][n_kv_heads][pages], of a batch's row. Needs
        ``attach(..., reads=True)``."""
        return self.plan.read(row)

    # ---- Forward passes ----

    def check(self) -> None:
        """Raises StateError where it has been detached."""
        if self not in _attached:
            raise StateError("tamis has been detached from the model of this cache")

    def settle(self) -> None:
        """Gives up a forward pass that failed half way: what it has written is truncated away."""
        step, self._pass = self.plan._step, None
        if step is not None and step.open:
            step.cancel()

    def _begin(self, cache: TamisCache, batch: int, n: int, mask: Mask) -> _Pass:
        self.settle()
        sequences = cache.sequences if cache.length else [self.store.add() for _ in range(batch)]
        if len(sequences) != batch:
            raise ArgumentError(f"a batch of {batch} for a cache of {len(sequences)} sequences")
        before, counts, kept = self._tokens(mask.padding, cache.length, sequences, n)
        taking = [(sequence, count) for sequence, count in zip(sequences, counts) if count]
        step = None
        if taking:
            exact = not cache.length or (n > 1 and not cache._drafts)
            self._fits(counts, max(map(sum, zip(before, counts))), exact)
            for sequence, length in zip(sequences, before):
                if len(sequence) > length:
                    sequence.truncate(length)
            try:
                step = self.plan.step([sequence for sequence, _ in taking], [count for _, count in taking],
                                      exact=exact)
            except FullError as full:
                raise FullError(f"{full} (attach(capacity_tokens=...) makes more room)") from None
        cache.sequences = sequences
        self._pass = _Pass(step, cache, mask, threading.get_ident(), n, kept)
        return self._pass

    def _tokens(self, padding: Optional[torch.Tensor], past: int, sequences: list[_cache.Sequence],
                n: int) -> tuple[list[int], list[int], Optional[torch.Tensor]]:
        """How many tokens each row of the batch has in the cache and brings, and which rows these are. The
        cache may hold more at a row's end, which is padding by now: generate feeds it behind a row's last
        token."""
        batch = len(sequences)
        if padding is None:
            before, counts, kept = [past] * batch, [n] * batch, None
        else:
            if padding.shape != (batch, past + n):
                raise ArgumentError(f"attention_mask {list(padding.shape)}: [{batch}][{past + n}] is "
                                    "expected, the tokens of the cache and the new ones")
            begins = padding[:, 0].long() + (padding[:, 1:] & ~padding[:, :-1]).sum(1)
            if self._local and bool((begins > 1).any()):
                raise UnsupportedError(f"row {int(begins.argmax())} of the batch has padding between its "
                                       "tokens, which sliding windows and chunks would count")
            new = padding[:, past:]
            before, counts = padding[:, :past].sum(1).tolist(), new.sum(1).tolist()
            kept = None if bool(new.all()) else new.reshape(-1).nonzero().squeeze(1)
        over = [len(sequence) - length for sequence, length in zip(sequences, before)]
        for row, count in enumerate(over):
            if count < 0 or (count and (padding is None or bool(padding[row, past - count:past].any()))):
                raise ArgumentError(f"row {row}: by attention_mask the cache holds {before[row]} tokens "
                                    f"beside padding, and it holds {before[row] + count}")
        return before, counts, kept

    def _fits(self, counts: list[int], longest: int, exact: bool) -> None:
        """Raises what a step would raise, in the words of `attach`."""
        batch, rows = sum(count > 0 for count in counts), sum(counts)
        if batch > self.plan.max_sequences:
            raise ArgumentError(f"a batch of {batch} rows: attach(max_sequences={self.plan.max_sequences}) "
                                "takes no more")
        if longest > self.plan.max_context:
            raise ArgumentError(f"a context of {longest} tokens: attach(max_context={self.plan.max_context}) "
                                "takes no more")
        if rows > self.plan.max_rows:
            raise FullError(f"a batch of {rows} tokens, which exceed attach(capacity_tokens=...)")
        if not exact and rows > max(_DRAFTS, batch) and self.plan.select.kind != "full":
            raise ArgumentError(f"{rows} rows of drafts: a selection chooses for {_DRAFTS} of them at most")

    def attend(self, rows: Rows, module: Any, query: torch.Tensor, mask: Any, scaling: Optional[float],
               softcap: Optional[float], sinks: Optional[torch.Tensor],
               options: dict[str, Any]) -> torch.Tensor:
        """The attention of one layer, in the forward pass that is open: [batch][n][heads][head_dim]."""
        now, layer = self._pass, self.shape.layers[rows.layer]
        if layer.module is not module:
            raise StateError(f"layer {rows.layer} is given a cache of another model")
        if rows.layer and (now is None or now.cache is not rows.cache or now.layer != rows.layer
                           or now.thread != threading.get_ident()):
            raise StateError(f"layer {rows.layer} comes without the layers before it, or another forward "
                             "pass has begun since: threads take turns")
        try:
            passed = Passed.of(query, rows, mask, scaling, softcap)
            if passed != layer.passed:
                raise UnsupportedError(f"layer {rows.layer} passes {passed.difference(layer.passed)} when it "
                                       "was attached")
            if (sinks is None) != (layer.sinks is None):
                raise UnsupportedError(f"layer {rows.layer} has sink logits at times")
            if rows.layer == 0:
                if options.get("output_attentions") or self.shape.said("output_attentions"):
                    raise UnsupportedError("output_attentions: tamis computes no attention weights")
                now = self._begin(rows.cache, query.shape[0], query.shape[2], mask)
            assert now is not None
            if mask is not now.mask and not _equal(mask.padding, now.mask.padding):
                raise UnsupportedError(f"layer {rows.layer} has another padding than the layers before it")
            out = self._run(now, rows, query)
            now.layer += 1
            if now.layer == self.n_layers:
                self._end(now)
            return out
        except BaseException:
            if self._pass is None or self._pass.thread == threading.get_ident():
                self.settle()
            raise

    def _run(self, now: _Pass, rows: Rows, query: torch.Tensor) -> torch.Tensor:
        batch, heads, n, head_dim = query.shape
        if now.step is None:
            return query.new_zeros((batch, n, heads, head_dim))
        now.step.write(rows.layer, self._k.put(rows.k, now.kept), self._v.put(rows.v, now.kept))
        q = self._q.put(query, now.kept)
        count = q.shape[0]
        now.step.attend(rows.layer, q, self._out.rows(count))
        out = self._out.get(count, query.dtype)
        if now.kept is not None:
            padded = out.new_zeros((batch * n, out.shape[1]))
            padded[now.kept] = out
            out = padded
        return out.view(batch, n, heads, head_dim)

    def _end(self, now: _Pass) -> None:
        if now.step is not None:
            now.step.end()
        self._pass = None
        now.cache.length += now.n
        by = self.plan.evict_by
        if now.step is None or by is None or by.kind == "caller":
            return
        every = int(getattr(by, "every", 0))
        try:
            for sequence in now.step.sequences:
                if now.n > 1 or (every > 1 and len(sequence) - sequence.evicted_at >= every):
                    self.plan.evict(sequence)
        except Error as reason:
            self._undo(now, now.step)
            if isinstance(reason, StateError):
                reason.args = (f"{reason} (attach(max_sequences=...) keeps the last queries of more "
                               "sequences)",)
            raise

    def _undo(self, now: _Pass, step: Step) -> None:
        """Truncates what a forward pass has written, unless some of its sequences have been evicted from."""
        lengths = [len(sequence) - count for sequence, count in zip(step.sequences, step.rows)]
        if all(sequence.evicted_at <= length for sequence, length in zip(step.sequences, lengths)):
            for sequence, length in zip(step.sequences, lengths):
                sequence.truncate(length)
            now.cache.length -= now.n


def _equal(one: Optional[torch.Tensor], other: Optional[torch.Tensor]) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))


# ---- What transformers calls ----------------------------------------------------------------------


class _Generate:
    """model.generate while tamis is attached. That of a copy of the model is its own."""

    def __init__(self, engine: Attached, own: Any) -> None:
        functools.update_wrapper(self, own)
        self._engine, self._own = engine, own
        self._names = [name for name in inspect.signature(own).parameters]

    def __reduce__(self) -> Any:
        return getattr, (self._engine.model, "generate")  # of the copy, which has its class's alone so far

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(self._names, args)), **kwargs}
        configs = (given.get("generation_config"), self._engine.model.generation_config)

        def option(name: str) -> Any:
            found = (given.get(name), *(getattr(config, name, None) for config in configs))
            return next((value for value in found if value is not None), None)

        if option("use_cache") is False:
            raise UnsupportedError("use_cache=False is not supported through tamis: K and V are in its cache")
        if option("cache_implementation") not in (None, "dynamic", "hybrid"):
            raise UnsupportedError(f"cache_implementation={option('cache_implementation')!r} is not "
                                   "supported through tamis: K and V are in its cache")
        if option("output_attentions"):
            raise UnsupportedError("output_attentions: tamis computes no attention weights")
        if option("assistant_early_exit"):
            raise UnsupportedError("assistant_early_exit is not supported through tamis: its forward passes "
                                   "go through all layers")
        caches = [kwargs.pop(name) for name in ("cache", "past_key_values") if kwargs.get(name) is not None]
        cache = caches[0] if caches else self._engine.cache()
        if not isinstance(cache, TamisCache) or cache._engine is not self._engine:
            raise ArgumentError(f"a {type(cache).__name__} that is not of this model's tamis: "
                                "reader.cache() makes one")
        self._continues(cache, given)
        cache._recording = cache._drafts = False
        kwargs[self._engine._keyword] = cache
        return self._own(*args, **kwargs)

    @staticmethod
    def _continues(cache: TamisCache, given: dict[str, Any]) -> None:
        """Raises where generate would go on behind padding, or take tokens for new that are in the cache."""
        ids = given.get("inputs", given.get("input_ids"))
        mask = given.get("attention_mask")
        if mask is not None and mask.ndim == 2 and bool((mask[:, -1] == 0).any()):
            raise UnsupportedError(f"row {int((mask[:, -1] == 0).nonzero()[0])} of the batch ends in "
                                   "padding, and generate goes on behind it: padding stands on the left "
                                   "(padding_side='left')")
        if ids is None or given.get("inputs_embeds") is not None:
            return
        if (mask is None or mask.shape[1] == ids.shape[1]) and ids.shape[1] <= cache.length:
            raise ArgumentError(f"{ids.shape[1]} tokens with a cache of {cache.length}: generate takes the "
                                "whole text, with the tokens in the cache and one more at least")


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _mask(batch_size: int, q_length: int, kv_length: int, *, mask_function: Any,
          attention_mask: Optional[torch.Tensor] = None, local_size: Optional[int] = None,
          allow_is_causal_skip: bool = True, use_vmap: bool = False, **_: Any) -> Mask:
    """The padding, and the rule by which rows see; what a row sees is the plan's matter."""
    padding = None
    if attention_mask is not None:
        padding = attention_mask[:, :kv_length]
        if padding.shape[1] == kv_length and bool(padding.all()):
            padding = None
    return Mask(padding, int(local_size or 0), allow_is_causal_skip and not use_vmap, mask_function)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attend(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any,
            scaling: Optional[float] = None, dropout: float = 0, softcap: Optional[float] = None,
            s_aux: Optional[torch.Tensor] = None, sinks: Optional[torch.Tensor] = None,
            **options: Any) -> tuple[torch.Tensor, None]:
    """The attention of a layer: [batch][n][heads][dim] of query, key and value [batch][heads][n][dim]."""
    rows = take(key, value)
    if rows is None:
        raise StateError("K and V do not come from a cache of tamis: give generate none, or reader.cache(), "
                         "and leave use_cache on")
    if dropout:
        raise UnsupportedError(f"dropout {dropout}: tamis is for inference (model.eval())")
    return rows.cache._engine.attend(rows, module, query, attention_mask, scaling, softcap,
                                     sinks if s_aux is None else s_aux, options), None


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, _mask)
