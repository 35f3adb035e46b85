#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times dense decode attention of others on this machine's GPU, in the shapes of `tamis bench`.

The peers: PyTorch's scaled_dot_product_attention (sdpa), FlexAttention under torch.compile (flex)
and, where it can be imported, FlashInfer's batch decode over pages of 16 (flashinfer). Each attends
over one cache after the other, together far larger than the L2 cache, f16, one query token a
sequence. The file is written anew after each row, so that a run that is cut leaves what it has.
Exit status: 0 done, 1 if nothing could be measured, 2 for a wrong command line, 77 without PyTorch
or without a GPU.
"""
import argparse
import json
import os
import statistics
import sys
import time

# Query heads, KV heads, head dim; as in tools/tamis/bench.c.
SHAPES = {'llama2-7b': (32, 32, 128), 'llama3-8b': (32, 8, 128), 'qwen3-4b': (32, 8, 128)}
PAGE_SIZE = 16
WANTED_BYTES = 4 << 30  # of the caches attended in turn
LEAST_CACHES, MOST_CACHES = 2, 36
COPY_BYTES = 1 << 30
SAMPLES = 9
MOST_ERROR = 0.02  # of a peer's output against sdpa's, relative to its norm

torch = None


class Case:
    """Shape, batch and context, with several caches: K and V, [batch][kv_heads][context][dim]."""

    def __init__(self, text):
        shape, batch, context = text.split(':')
        self.shape, self.batch, self.context = shape, int(batch), int(context)
        self.heads, self.kv_heads, self.dim = SHAPES[shape]
        self.bytes = 2 * self.batch * self.kv_heads * self.context * self.dim * 2
        self.caches, self.q = [], None

    def fill(self):
        count = min(MOST_CACHES, max(LEAST_CACHES, -(-WANTED_BYTES // self.bytes)))
        free = torch.cuda.mem_get_info()[0]
        if LEAST_CACHES * self.bytes > free * 0.8:
            raise MemoryError('%d caches of %d bytes do not fit into %d free' %
                              (LEAST_CACHES, self.bytes, free))
        count = min(count, int(free * 0.8 / self.bytes))
        make = lambda *size: torch.randn(size, dtype=torch.float16, device='cuda')
        size = self.batch, self.kv_heads, self.context, self.dim
        self.caches = [(make(*size), make(*size)) for _ in range(count)]
        self.q = make(self.batch, self.heads, 1, self.dim)

    def drop(self):
        self.caches, self.q = [], None
        torch.cuda.empty_cache()


# ---- Peers: each gives one call a cache, whose result is [batch][heads][1][dim] -----------------


def sdpa(case):
    attention = torch.nn.functional.scaled_dot_product_attention
    return [lambda k=k, v=v: attention(case.q, k, v, enable_gqa=case.heads != case.kv_heads)
            for k, v in case.caches]


def flex(case):
    from torch.nn.attention.flex_attention import flex_attention
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    return [lambda k=k, v=v: compiled(case.q, k, v, enable_gqa=case.heads != case.kv_heads)
            for k, v in case.caches]


def flashinfer(case):
    """A page is 16 consecutive tokens of all KV heads of a sequence: K and V are laid out anew as
    [pages][kv_heads][16][dim] before the clock runs."""
    import flashinfer as library
    pages = -(-case.context // PAGE_SIZE)
    if pages * PAGE_SIZE != case.context:
        raise ValueError('context %d is no multiple of %d' % (case.context, PAGE_SIZE))
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device='cuda')
    ints = lambda values: torch.tensor(values, dtype=torch.int32, device='cuda')
    indptr = ints(range(0, case.batch * pages + 1, pages))
    indices = torch.arange(case.batch * pages, dtype=torch.int32, device='cuda')
    last = ints([PAGE_SIZE] * case.batch)
    wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
        workspace, 'HND', use_cuda_graph=True, paged_kv_indptr_buffer=indptr.clone(),
        paged_kv_indices_buffer=indices.clone(), paged_kv_last_page_len_buffer=last.clone())
    wrapper.plan(indptr, indices, last, case.heads, case.kv_heads, case.dim, PAGE_SIZE,
                 q_data_type=torch.float16, kv_data_type=torch.float16)
    size = case.batch, case.kv_heads, pages, PAGE_SIZE, case.dim
    paged = lambda x: x.view(size).transpose(1, 2).reshape(-1, *size[1:2], *size[3:])
    for i, (k, v) in enumerate(case.caches):
        case.caches[i] = paged(k), paged(v)
    q = case.q[:, :, 0].contiguous()
    return [lambda k=k, v=v: wrapper.run(q, (k, v)).unsqueeze(2) for k, v in case.caches]


# FlashInfer comes last: it lays the caches out anew.
PEERS = {'sdpa': sdpa, 'flex': flex, 'flashinfer': flashinfer}


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


def events_us(run, count):
    samples = []
    for _ in range(SAMPLES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e3 / count)
    return statistics.median(samples)


def graph_us(calls):
    """Time on the device of a call, all caches in one CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    return events_us(graph.replay, len(calls))


def measure(name, case, wanted):
    """A row, and the output over the first cache, which must be near what sdpa gave."""
    calls = PEERS[name](case)
    for call in calls[:2] * 2:
        out = call()
    out = calls[0]().float()
    row = {'peer': name, 'shape': case.shape, 'batch': case.batch, 'context': case.context,
           'dtype': 'f16', 'caches': len(calls)}
    if wanted is not None:
        error = ((out - wanted).norm() / wanted.norm()).item()
        if not error <= MOST_ERROR:
            raise ValueError('its output differs from sdpa\'s by %g of its norm' % error)
        row['error_to_sdpa'] = error
    row['total_us'] = wall_us(calls)
    try:
        row['graph_us'] = graph_us(calls)
    except Exception as error:  # a peer that cannot be captured has its wall time still
        row['graph_us'], row['graph_error'] = None, one_line(error)
    least = min(value for value in (row['total_us'], row['graph_us']) if value is not None)
    row['gb_per_s'] = case.bytes / least * 1e-3
    return row, out


def copy_row():
    source = torch.randn(COPY_BYTES // 4, device='cuda')
    target = torch.empty_like(source)
    target.copy_(source)
    us = events_us(lambda: target.copy_(source), 1)
    return {'peer': 'copy', 'us': us, 'gb_per_s': 2 * COPY_BYTES / us * 1e-3}


def one_line(error):
    text = ' '.join(str(error).split()) or type(error).__name__
    return '%s: %s' % (type(error).__name__, text[:300])


# ---- Rows ---------------------------------------------------------------------------------------


class Rows:
    def __init__(self, path):
        self.path, self.rows = path, []

    def add(self, row):
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        if self.path is None:
            return
        header = {'torch': torch.__version__, 'device': torch.cuda.get_device_name(),
                  'page_size': PAGE_SIZE}
        with open(self.path + '.new', 'w', encoding='utf-8') as file:
            json.dump({'tool': 'gpu_peers', 'header': header, 'rows': self.rows}, file, indent=1)
        os.replace(self.path + '.new', self.path)

    def measured(self):
        return any('total_us' in row for row in self.rows)


def run_case(case, names, rows):
    wanted = None
    for name in names:
        try:
            if not case.caches:
                case.fill()
            row, out = measure(name, case, wanted)
            wanted = out if name == 'sdpa' else wanted
        except Exception as error:  # of other people's code: the row says what it was
            row = {'peer': name, 'shape': case.shape, 'batch': case.batch,
                   'context': case.context, 'error': one_line(error)}
        rows.add(row)
    case.drop()


def can_import(name):
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def cases_of(text):
    cases = []
    for part in text.split(','):
        shape, *numbers = part.split(':')
        if shape not in SHAPES or len(numbers) != 2 or not all(
                number.isdigit() and int(number) > 0 for number in numbers):
            raise argparse.ArgumentTypeError(
                '%s: not SHAPE:BATCH:CONTEXT with a shape of %s' % (part, ', '.join(SHAPES)))
        cases.append(Case(part))
    return cases


def main():
    global torch
    parser = argparse.ArgumentParser(prog='gpu_peers.py', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--cases', required=True, type=cases_of, metavar='SHAPE:BATCH:CONTEXT,...')
    parser.add_argument('--json', metavar='FILE', help='the rows, whole after each of them')
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print('gpu_peers.py: PyTorch is not installed for %s' % sys.executable)
        return 77
    if not torch.cuda.is_available():
        print('gpu_peers.py: PyTorch %s sees no GPU' % torch.__version__)
        return 77
    names = [name for name in PEERS if name != 'flashinfer' or can_import(name)]
    rows = Rows(options.json)
    rows.add(copy_row())
    with torch.no_grad():
        for case in options.cases:
            run_case(case, names, rows)
    return 0 if rows.measured() else 1


if __name__ == '__main__':
    sys.exit(main())
