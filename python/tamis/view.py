# SPDX-License-Identifier: Apache-2.0
"""Views (tamis/view.h): plans over K and V that an engine keeps and fills itself."""
from __future__ import annotations

from typing import Any, Optional, Sequence as Seq, Union

import numpy

from . import _core
from ._c import ffi
from ._core import check, error, lib
from .array import DTYPES, Array, integers
from .cache import Bounds, Cache, bounds_of
from .device import Context
from .errors import ArgumentError
from .plan import Plan, Step, rows_of, selected_rows

_LAYOUTS = {"nhd": (1, 2), "hnd": (2, 1)}  # the axes of slots and of KV heads


class View(Cache):
    """A cache over the engine's own K and V, which are read where they lie; the library's own are the bounds
    of pages. It has no sequences: each step brings page lists. Plans are made on it as on a cache; an
    eviction, and what would write K and V, raise UnsupportedError.

    Args:
        layers: K and V of each layer, all of one shape and dtype (f32, f16 or bf16):
            [n_pages][page_size][n_kv_heads][head_dim] by layout "nhd",
            [n_pages][n_kv_heads][page_size][head_dim] by "hnd". Pages may lie apart, as where K and V of a
            page are neighbours. A page of a list is that page of every layer.
        n_heads: query heads.
        bounds: "minmax", "meanstd", "mean", or a `Bounds`; `bounds_dtype` "q8" halves their bytes.

    The arrays are kept alive; they must not be closed before the view and its plans are. Raises ArgumentError
    and UnsupportedError with the layer and the value."""

    def __init__(self, context: Context, layers: Seq[tuple[Array, Array]], *, n_heads: int,
                 layout: str = "nhd", bounds: Union[str, Bounds] = "minmax",
                 bounds_dtype: Optional[str] = None) -> None:
        if layout not in _LAYOUTS:
            raise ArgumentError(f"layout {layout!r}: known are {', '.join(_LAYOUTS)}")
        if bounds_dtype not in (None, "q8"):
            raise ArgumentError(f"bounds_dtype {bounds_dtype!r}: None and 'q8' are known")
        if not len(layers):
            raise ArgumentError("a view without layers")
        slots, heads = _LAYOUTS[layout]
        first = layers[0][0]
        structs = ffi.new("tamis_kv[]", len(layers))
        values = ffi.new("tamis_kv_values[]", len(layers))
        for layer, (k, v) in enumerate(layers):
            for name, array in (("k", k), ("v", v)):
                _check(name, layer, array, first)
            kv = structs[layer]
            kv.data, kv.dtype, kv.layout = k._place(), DTYPES[k.dtype][2], lib.TAMIS_KV_STRIDES
            kv.n_pages, kv.page_size, kv.head_dim = k.shape[0], k.shape[slots], k.shape[3]
            kv.page_stride = k.row_stride
            kv.slot_stride, kv.head_stride = _stride(k, slots), _stride(k, heads)
            apart = v._offset - k._offset
            if v._buffer is k._buffer and v.row_stride == k.row_stride and apart > 0:
                kv.value_offset = apart // DTYPES[k.dtype][0]
            else:
                of = values[layer]
                of.data, of.page_stride = v._place(), v.row_stride
                of.slot_stride, of.head_stride = kv.slot_stride, kv.head_stride
                kv.values = values + layer
        params = ffi.new("tamis_view_params *")
        _core.put(params, n_layers=len(layers), n_heads=n_heads, n_kv_heads=first.shape[heads])
        params.bounds_dtype = lib.TAMIS_BOUNDS_Q8 if bounds_dtype else lib.TAMIS_BOUNDS_AS_CACHE
        bounds_of(bounds)._fill(params.bounds)
        params.layers = structs
        context._owner.collect()
        handle = ffi.new("tamis_cache **")
        check(lib.tamis_view_create(context._pointer, params, handle, error()))
        self._begin(context, handle, list(layers))
        self.n_pages: int = first.shape[0]

    def bound_pages(self, pages: Seq[int]) -> None:
        """Computes the bounds of full pages in every layer, from all of their keys: of pages that no step has
        filled, such as those that the engine has loaded. Enqueues. Raises ArgumentError with the page."""
        of = integers(pages, numpy.int32, "pages")
        check(lib.tamis_view_bound_pages(self._pointer, ffi.from_buffer("int32_t[]", of), len(of), error()))

    # ---- Steps ----

    def step(self, plan: Plan, tables: Union[Seq[Seq[int]], numpy.ndarray], lengths: Seq[int],
             rows: Union[int, Seq[int], None] = None, *, exact: bool = False, exact_from: int = 0) -> Step:
        """Begins a step on a plan over this view, as `Plan.step` does on a cache. For each layer the engine
        writes K and V of the step's rows, then `Step.attend` reads them, in the order of the context's queue:
        `Context.wait` comes before the host writes into memory that is wrapped.

        Args:
            tables: the pages of each sequence, in order; an int32 array [sequences][pages], of which lengths
                say how much counts, is taken as it is.
            lengths: tokens of each sequence, the step's rows included, which are its last ones.
            rows, exact, exact_from: as in `Plan.step`.

        A list may name a page twice; two sequences may have pages in common, but none that rows of both fill.
        Raises ArgumentError with the sequence and the value (a page that the view lacks, a length that its
        list does not hold, or above max_context)."""
        table, of = _table(tables), integers(lengths, numpy.uint32, "lengths")
        if len(of) != len(table):
            raise ArgumentError(f"{len(of)} lengths for {len(table)} lists of pages")
        struct = ffi.new("tamis_view_step *")
        keep = ffi.from_buffer("int32_t[]", table), ffi.from_buffer("uint32_t[]", of)
        struct.table, struct.lengths = keep
        struct.table_stride = table.shape[1]
        return self._step(plan, struct, len(table), rows, exact, exact_from)

    def step_csr(self, plan: Plan, indptr: Seq[int], indices: Seq[int], last_page_len: Seq[int],
                 rows: Union[int, Seq[int], None] = None, *, exact: bool = False,
                 exact_from: int = 0) -> Step:
        """The same by lists of another form: the pages of sequence b are indices[indptr[b]] to
        indices[indptr[b + 1] - 1], of which the last one has last_page_len[b] slots."""
        of = [integers(data, numpy.int32, name) for name, data in
              (("indptr", indptr), ("indices", indices), ("last_page_len", last_page_len))]
        count = len(of[2])
        if len(of[0]) != count + 1:
            raise ArgumentError(f"indptr of {len(of[0])} entries for {count} sequences: it must have one "
                                "more")
        if of[0].min() < 0 or of[0].max() > len(of[1]):
            raise ArgumentError(f"indptr from {of[0].min()} to {of[0].max()} with {len(of[1])} indices")
        struct = ffi.new("tamis_view_step *")
        keep = [ffi.from_buffer("int32_t[]", data) for data in of]
        struct.indptr, struct.indices, struct.last_page_len = keep
        return self._step(plan, struct, count, rows, exact, exact_from)

    def _step(self, plan: Plan, struct: Any, count: int, rows: Union[int, Seq[int], None], exact: bool,
              exact_from: int) -> Step:
        if plan.cache is not self:
            raise ArgumentError(f"{plan!r} is no plan over this view")
        brought = rows_of(rows, count)
        numbers = integers(brought, numpy.uint32, "rows")
        keep = ffi.from_buffer("uint32_t[]", numbers)
        struct.rows = keep
        _core.put(struct, count=count, exact=exact, exact_from=exact_from)
        self.context._owner.collect()
        check(lib.tamis_plan_view_begin(plan._pointer, struct, error()))
        return Step(plan, brought, selected_rows(brought, exact, exact_from))


def _check(name: str, layer: int, array: Array, first: Array) -> None:
    if not isinstance(array, Array):
        raise ArgumentError(f"{name} of layer {layer} is a {type(array).__name__}: see Context.wrap")
    if len(array.shape) != 4:
        raise ArgumentError(f"{name} of layer {layer} has the shape {array.shape}: it must have 4 dimensions")
    if array.shape != first.shape or array.dtype != first.dtype:
        raise ArgumentError(f"{name} of layer {layer} is {array.shape} of {array.dtype}: the first layer's "
                            f"k is {first.shape} of {first.dtype}")
    if DTYPES[array.dtype][2] is None:
        raise ArgumentError(f"{name} of layer {layer} is of {array.dtype}: f32, f16 and bf16 are taken")


def _stride(array: Array, axis: int) -> int:
    """Elements from one index of an axis behind the first to the next."""
    return int(numpy.prod(array.shape[axis + 1:], dtype=object))


def _table(tables: Any) -> numpy.ndarray:
    """int32 [sequences][pages]; behind the end of a list -1, which no view has."""
    if isinstance(tables, numpy.ndarray) and tables.ndim == 2 and tables.dtype == numpy.int32:
        return numpy.ascontiguousarray(tables)
    lists = [integers(pages, numpy.int32, f"pages of sequence {at}") for at, pages in enumerate(tables)]
    out = numpy.full((len(lists), max(map(len, lists), default=0)), -1, numpy.int32)
    for row, pages in zip(out, lists):
        row[:len(pages)] = pages
    return out
