# SPDX-License-Identifier: Apache-2.0
"""The engine of gpu_peers.py: dense decode attention of others under PyTorch. PyTorch's own
scaled_dot_product_attention with each of its kernels forced, FlashInfer's decode over pages of 16
with and without tensor cores, where it can be imported, and FlexAttention under torch.compile.

Each attends over one cache after the other, f16, one query token a sequence; as many caches as
`tamis bench` takes layers, so that nothing is left in the L2 cache. The query heads of a group are
query rows of one KV head, so that no peer reads a key twice. Times are those of a CUDA graph of all
caches, replayed ten times in a row between two events, as in `tamis bench`; wall time beside it.
"""
import statistics
import time

from gpu_peers import ImportFailed, NothingToMeasure

# Query heads, KV heads, head dim; as in tools/tamis/bench/common.c.
HEADS = {'llama2-7b': (32, 32, 128), 'llama3-8b': (32, 8, 128)}
PAGE_SIZE = 16
REPLAYS = 10  # BENCH_GRAPH_REPLAYS
SAMPLES = 5
COPY_BYTES = 1 << 30
MOST_ERROR = 0.02  # of an output against fp32's, relative to its norm
NEAR_L2 = 16       # rotations of less than so many L2 caches are measured behind a flush, too

try:
    import torch
except ImportError:
    torch = None

held = {}  # of one case: text, layout, caches, q, wanted


# ---- The caches of a case: K and V, [batch][kv_heads][context][dim], or in pages -----------------


def shape_of(case):
    heads, kv_heads, dim = HEADS[case.shape]
    return case.batch, kv_heads, case.context, dim, heads // kv_heads


def attend_exactly(q, k, v):
    """In fp32, of one sequence."""
    q, k, v = q.float(), k.float(), v.float()
    weights = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, dim=-1)
    return weights @ v


def fill(case):
    batch, kv_heads, context, dim, group = shape_of(case)
    held.clear()
    torch.cuda.empty_cache()
    make = lambda *size: torch.randn(size, dtype=torch.float16, device='cuda')
    size = batch, kv_heads, context, dim
    caches = [(make(*size), make(*size)) for _ in range(case.caches)]
    q = make(batch, kv_heads, group, dim)
    ends = sorted({0, batch - 1})
    wanted = {i: attend_exactly(q[i], caches[0][0][i], caches[0][1][i]) for i in ends}
    held.update(text=case.text, paged=False, caches=caches, q=q, wanted=wanted)


def paged(x):
    """[batch * pages][kv_heads][16][dim]."""
    batch, kv_heads, context, dim = x.shape
    pages = x.view(batch, kv_heads, context // PAGE_SIZE, PAGE_SIZE, dim).transpose(1, 2)
    return pages.reshape(-1, kv_heads, PAGE_SIZE, dim)


def take(case, in_pages):
    if held.get('text') != case.text or (held['paged'] and not in_pages):
        fill(case)
    if in_pages and not held['paged']:
        for i, (k, v) in enumerate(held['caches']):
            held['caches'][i] = paged(k), paged(v)
        held['paged'] = True
    return held['q'], held['caches']


# ---- Peers: each gives a call a cache, whose result is [batch][kv_heads][group][dim] -------------


def sdpa(kernel):
    def calls(case):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        q, caches = take(case, False)
        attention = torch.nn.functional.scaled_dot_product_attention

        def call(k, v):
            with sdpa_kernel(getattr(SDPBackend, kernel)):
                return attention(q, k, v)
        return [lambda k=k, v=v: call(k, v) for k, v in caches]
    return calls


def flex(case):
    from torch.nn.attention.flex_attention import flex_attention
    torch._dynamo.reset()
    q, caches = take(case, False)
    compiled = torch.compile(flex_attention, dynamic=False)
    return [lambda k=k, v=v: compiled(q, k, v) for k, v in caches]


def flashinfer(tensor_cores):
    def calls(case):
        try:
            import flashinfer as library
        except ImportError as error:
            raise ImportFailed(error)
        batch, kv_heads, context, dim, group = shape_of(case)
        if context % PAGE_SIZE:
            raise ValueError('context %d is no multiple of %d' % (context, PAGE_SIZE))
        q, caches = take(case, True)
        pages = context // PAGE_SIZE
        ints = lambda values: torch.tensor(values, dtype=torch.int32, device='cuda')
        indptr = ints(range(0, batch * pages + 1, pages))
        indices = torch.arange(batch * pages, dtype=torch.int32, device='cuda')
        last = ints([PAGE_SIZE] * batch)
        wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
            torch.empty(256 << 20, dtype=torch.uint8, device='cuda'), 'HND', use_cuda_graph=True,
            use_tensor_cores=tensor_cores, paged_kv_indptr_buffer=indptr.clone(),
            paged_kv_indices_buffer=indices.clone(), paged_kv_last_page_len_buffer=last.clone())
        wrapper.plan(indptr, indices, last, kv_heads * group, kv_heads, dim, PAGE_SIZE,
                     q_data_type=torch.float16, kv_data_type=torch.float16)
        rows = q.reshape(batch, kv_heads * group, dim)
        return [lambda k=k, v=v: wrapper.run(rows, (k, v)).view(batch, kv_heads, group, dim)
                for k, v in caches]
    return calls


# FlashInfer after SDPA: it lays the caches out anew.
PEERS = {'sdpa-flash': sdpa('FLASH_ATTENTION'), 'sdpa-cudnn': sdpa('CUDNN_ATTENTION'),
         'sdpa-efficient': sdpa('EFFICIENT_ATTENTION'), 'flashinfer': flashinfer(False),
         'flashinfer-tensor': flashinfer(True), 'flex': flex}
QUICK = [name for name in PEERS if name != 'flex']  # which compiles for a minute


# ---- Timing -------------------------------------------------------------------------------------


def wall_us(calls):
    """Wall time of a call: all caches enqueued in turn, waited for once."""
    samples = []
    for _ in range(SAMPLES):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for call in calls:
            call()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - start) * 1e6 / len(calls))
    return statistics.median(samples)


def events_us(run, times):
    """Device time of one of so many runs in a row."""
    samples = []
    for _ in range(SAMPLES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            run()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e3 / times)
    return statistics.median(samples)


def graph_of(calls):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    return graph


def l2_bytes():
    return torch.cuda.get_device_properties(0).L2_cache_size


def cold_us(calls):
    """The same with a write of four L2 caches before each call, whose own time is taken off."""
    buffer = torch.empty(4 * l2_bytes(), dtype=torch.uint8, device='cuda')
    flush = lambda: buffer.zero_()
    both = graph_of([step for call in calls for step in (flush, call)])
    alone = graph_of([flush] * len(calls))
    return (events_us(both.replay, REPLAYS) - events_us(alone.replay, REPLAYS)) / len(calls)


def clocks():
    """SM and memory clock in MHz; None where nothing says."""
    try:
        import pynvml
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        return [pynvml.nvmlDeviceGetClockInfo(device, kind)
                for kind in (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM)]
    except Exception:  # it is not there, or is not allowed: the row does without
        return None


def check(out):
    worst = 0
    for i, wanted in held['wanted'].items():
        error = ((out[i].float() - wanted).norm() / wanted.norm()).item()
        if not error <= MOST_ERROR:
            raise ValueError('its output differs from fp32\'s by %g of its norm' % error)
        worst = max(worst, error)
    return worst


def measure(name, case):
    with torch.no_grad():
        calls = PEERS[name](case)
        for call in calls[:2] * 2:
            call()
        row = {'error_to_fp32': check(calls[0]()), 'total_us': wall_us(calls), 'graph_us': None}
        try:
            graph = graph_of(calls)
            row['graph_us'] = events_us(graph.replay, REPLAYS) / len(calls)
            row['replays'] = REPLAYS
            for _ in range(REPLAYS):
                graph.replay()
            row['clocks_mhz'] = clocks()
            torch.cuda.synchronize()
            batch, kv_heads, context, dim, _ = shape_of(case)
            bytes_of_one = 4 * batch * kv_heads * context * dim
            if bytes_of_one * case.caches < NEAR_L2 * l2_bytes():
                row['cold_us'] = cold_us(calls)
        except Exception as error:  # a peer that cannot be captured has its wall time still
            row['graph_error'] = '%s: %s' % (type(error).__name__, str(error)[:300])
        return row


def copy_gb_per_s():
    source = torch.randn(COPY_BYTES // 4, device='cuda')
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * COPY_BYTES / events_us(lambda: target.copy_(source), REPLAYS) * 1e-3


def header():
    if torch is None:
        raise NothingToMeasure('PyTorch is not installed for this python3')
    if not torch.cuda.is_available():
        raise NothingToMeasure('PyTorch %s sees no GPU' % torch.__version__)
    return {'version': torch.__version__, 'device': 'cuda:%d' % torch.cuda.current_device(),
            'device_name': torch.cuda.get_device_name(), 'page_size': PAGE_SIZE,
            'l2_bytes': l2_bytes(), 'copy_gb_per_s': copy_gb_per_s()}


def usable():
    try:
        torch.cuda.synchronize()
        return True
    except Exception:
        return False
