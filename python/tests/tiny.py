# SPDX-License-Identifier: Apache-2.0
"""The small model of tests/data on a context, with a runner over a cache, by the C calls themselves."""
import pathlib

from tamis import Cache, Plan
from tamis._core import Object, check, error
from tamis.c import ffi, lib

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data"
TOKENS = 96  # of the vocabulary, but for the last one, which is a control token


class Model(Object):
    def __init__(self, context, name="tiny"):
        handle = ffi.new("tamis_model **")
        path = ffi.new("char[]", str(DATA / f"{name}.gguf").encode())
        check(lib.tamis_model_load(context._pointer, path, ffi.NULL, handle, error()))
        self.context = context
        self._take(context._owner, handle, "tamis_model_destroy", context)

    @property
    def fingerprint(self):
        out = ffi.new("uint8_t[16]")
        check(lib.tamis_model_fingerprint(self._pointer, out, error()))
        return bytes(out)

    def cache(self, capacity_tokens=1024, **params):
        shape = ffi.new("tamis_cache_params *")
        lib.tamis_model_cache_shape(self._pointer, shape)
        return Cache(self.context, n_layers=shape.n_layers, n_heads=shape.n_heads,
                     n_kv_heads=shape.n_kv_heads, head_dim=shape.head_dim, capacity_tokens=capacity_tokens,
                     **params)


class Runner(Object):
    def __init__(self, model, cache, max_context=256, max_rows=256, **flags):
        params = ffi.new("tamis_plan_params *")
        params.max_context, params.max_rows, params.max_sequences = max_context, max_rows, 1
        params.load_dtypes = 1 << lib.TAMIS_F32 | 1 << lib.TAMIS_BF16
        for name in flags:
            params.flags |= getattr(lib, f"TAMIS_PLAN_{name.upper()}")
        handle = ffi.new("tamis_runner **")
        check(lib.tamis_runner_create(model._pointer, cache._pointer, params, handle, error()))
        self.model, self.cache = model, cache
        self._take(cache._owner, handle, "tamis_runner_destroy", (model, cache))
        self.plan = Plan.__new__(Plan)
        self.plan._begin(cache, ffi.new("tamis_plan **", lib.tamis_runner_plan(handle[0])), False, False)

    def prefill(self, sequence, tokens):
        out = ffi.new("int32_t *")
        check(lib.tamis_runner_prefill(self._pointer, sequence.handle, ffi.new("int32_t[]", list(tokens)),
                                       len(tokens), out, error()))
        return out[0]
