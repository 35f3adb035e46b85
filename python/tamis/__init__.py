# SPDX-License-Identifier: Apache-2.0
"""tamis: the sparse-attention pipeline of LLM inference, from Python.

A context is an opened device; a cache keeps K and V of sequences in pages; a plan joins a cache with a
selection (which pages a query reads) and an eviction (which tokens stay), and runs steps:

>>> import numpy, tamis
>>> context = tamis.Context("reference")
>>> cache = tamis.Cache(context, n_layers=1, n_heads=4, n_kv_heads=2, head_dim=64, capacity_tokens=256)
>>> plan = cache.plan(select=tamis.Quest(budget=64, recent=16), max_context=256)
>>> text = cache.add()
>>> k, v = (context.array(numpy.ones((1, 2, 64), "f4")) for _ in range(2))
>>> q, out = context.array(numpy.ones((1, 4, 64), "f4")), context.empty((1, 4, 64))
>>> with plan.step(text) as step:
...     step.write(0, k, v)
...     step.attend(0, q, out)
>>> float(out.read().max()), len(text)
(1.0, 1)

`tamis.c` has the library itself, as cffi gives it: ``tamis.c.lib`` with every function and number of the
headers by its name, and ``tamis.c.ffi``."""
from . import c
from .array import Array, empty, from_bf16, to_bf16
from .batch import Event, Scheduler, SchedulerStats
from .blend import (Blend, BlendCosts, BlendEngine, BlendLayerStats, BlendStats, BlendTier, Part, choose_tier,
                    share_of)
from .cache import Bounds, Cache, CacheStats, Prefixes, Sequence, SequenceStats
from .device import Context, Device, devices, version
from .errors import (ArgumentError, DamagedError, DeviceError, Error, FileError, FormatError, FullError,
                     NoDeviceError, NoMemoryError, StateError, UnsupportedError)
from .model import Architecture, AttentionRows, Model, ModelInfo, Run, Runner, architectures, load
from .plan import (NO_ROW, Attention, Counters, Evicted, Layer, OpenStep, Plan, PlanMemory, Rotation, Step,
                   StepPages, Times)
from .policy import (H2O, TOVA, AdaKV, AnDPro, CriticalAdaKV, CriticalKV, DefensiveKV, Eviction, Full, Kept,
                     Knorm, Lists, Oracle, PyramidKV, Quest, Random, Selection, SnapKV, Streaming, Window,
                     eviction, selection)
from .recording import record, record_id, record_prefix, record_sequence
from .sampling import Sampler, Sampling
from .saved import restore, save
from .session import Session
from .store import (Chunk, ChunkId, ChunkInfo, ChunkShape, Store, StoreFound, StoreStats, TierStats,
                    fingerprint_extend)
from .trials import Trial, TrialFigures, read_trials, trial_passed, trial_path, write_trial
from .view import View
from .vocab import Vocab

__version__ = version()
