#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what `tamis eval`, `tamis bench attention`, `throughput` and `ttft`, and gpu_check.sh wrote
as JSON.

Each file's "tool" decides its figures; several files of one tool make one set of points. Every
figure comes as PNG and SVG, the same bytes for the same files.
"""
import argparse
import io
import math
import os
import sys
import tempfile

try:
    import matplotlib
except ImportError:
    sys.exit('plot.py: matplotlib is not installed for %s; Debian has it as python3-matplotlib'
             % sys.executable)
matplotlib.rcdefaults()
matplotlib.use('Agg')
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
from plot_blend import draw_blend, draw_ttft, read_blend, read_ttft
from plot_read import (BENCH_SCORES, EVICTIONS, SERIES, Bad, Points, interval_around, read_json,
                       rows_of, shown)
from plot_sheet import (BETWEEN, BUDGET_COLOURS, Sheet, facts_of, grouped, log2_axis, say_empty,
                        share_axis)

# Heads whose attention is held to 90 % by fewer of the tokens than this are sharp.
SHARP = 0.25
# Student's t at 97.5 %, by degrees of freedom from 1 on; the last stands for all beyond.
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
         2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
         2.052, 2.048, 2.045, 2.042, 1.96)
# Ways to ask after an eviction, as the README's table names them.
EVICTION_CASES = ('the question ends the prompt',
                  'asked later: the question comes after the eviction')

# Lines of an eviction with options; alone it has a whole one.
OPTION_DASHES = ((0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (2, 3)))

# Dense attention of others, which a run on a GPU shows beside full and quest.
PEERS = {'sdpa-flash': ('PyTorch SDPA, flash', '#d55e00', '^'),
         'sdpa-cudnn': ('PyTorch SDPA, cuDNN', '#e69f00', '<'),
         'sdpa-efficient': ('PyTorch SDPA, efficient', '#b35900', '>'),
         'flex': ('FlexAttention', '#009e73', 'D'), 'flashinfer': ('FlashInfer', '#cc79a7', 'v'),
         'flashinfer-tensor': ('FlashInfer, tensor cores', '#8a4f7d', 'P')}

STYLE = {
    'font.family': 'DejaVu Sans', 'font.size': 9, 'axes.titlesize': 9, 'axes.labelsize': 9,
    'axes.titlelocation': 'left', 'axes.spines.top': False, 'axes.spines.right': False,
    'axes.edgecolor': '#555555', 'axes.axisbelow': True, 'axes.grid': True, 'grid.color': '#e6e6e6',
    'grid.linewidth': 0.8, 'xtick.color': '#333333', 'ytick.color': '#333333', 'xtick.labelsize': 8,
    'ytick.labelsize': 8, 'legend.frameon': False, 'legend.fontsize': 8.5, 'lines.linewidth': 1.6,
    'lines.markersize': 5, 'svg.hashsalt': 'tamis', 'svg.fonttype': 'path',
}
DPI = 200
KINDS = 'png', 'svg'  # of files, one each of a figure


# ---- Reading ------------------------------------------------------------------------------------


def load(path):
    """(tool, its fields)."""
    root = read_json(path)
    tool = root.text('tool')
    if tool not in TOOLS:
        raise Bad('%s: "tool": no figure is known for %s; known: %s'
                  % (path, shown(tool), ', '.join(TOOLS)))
    return tool, root


def read_arm_rows(points, root, read):
    root.text('model')
    points.same(root)
    for row in rows_of(root):
        read(points, row)


def read_passkey(points, root):
    read_arm_rows(points, root, read_passkey_row)


def read_passkey_row(points, row):
    series = row.series()
    points.add((series, row.budget(series), row.count('length')),
               interval_around(row, 'accuracy', 'ci95') + (row.count('trials'),), row)


def read_recall(points, root):
    read_arm_rows(points, root, read_recall_row)
    for kind, what in (('head', 'of one layer and head'), ('sparsity', 'with "sparsity"')):
        if not any(key[0] == kind for key in points.by_key):
            raise Bad('%s: "rows": no row %s' % (root.where, what))


def read_recall_row(points, row):
    layer, head = row.count('layer', -1), row.count('head', -1)
    length = row.count('length')
    if 'sparsity' in row:
        points.add(('sparsity', length, layer, head), row.share('sparsity'), row)
        return
    series = row.series()
    value = row.share('recall'), row.share('mass')
    if layer >= 0 and head >= 0:
        points.add(('head', series, row.budget(series), length, layer, head), value, row)


def read_perplexity(points, root):
    read_arm_rows(points, root, read_perplexity_row)


def read_perplexity_row(points, row):
    series = row.series()
    points.add((series, row.budget(series), row.count('length')), row.number('perplexity', 1), row)


def read_eviction(points, root):
    read_arm_rows(points, root, read_eviction_row)


def read_eviction_row(points, row):
    """Of a question that ends the prompt, then of one that is asked later: (error, its spread,
    share of keys found, low, high)."""
    series = row.eviction()
    cases = tuple((row.number(error, 0), row.number(error + '_spread', 0))
                  + interval_around(row, found, interval) for error, found, interval in
                  (('error_single', 'passkey_single', 'passkey_single_ci95'),
                   ('output_error', 'passkey_accuracy', 'passkey_ci95')))
    points.add((series, None if series == ('full', '-') else row.count('budget')), cases, row)


def read_throughput(points, root):
    if root.get('equal_batch') is not False:
        raise root.bad('equal_batch', 'is not false: such a run shows no gain of memory')
    for row in rows_of(root):
        series = row.eviction()
        if series == ('full', '-'):
            continue
        run = (root.text('device_name'), root.text('model'), root.text('dtype'),
               row.count('context'), row.count('budget'), row.count('tokens'))
        points.add((run, series), (row.number('gain_over_full', 1e-9), row.number('ceiling', 1e-9),
                                   row.count('batch')), row)


def read_bench(points, root):
    device = root.text('device_name')
    for row in rows_of(root):
        series = row.series(BENCH_SCORES)
        if series[0] == 'full':
            continue
        counters = row.object('counters')
        full = counters.number('kv_bytes_full', 1)
        read = counters.number('kv_bytes_read', 1) + counters.number('bounds_bytes_read', 0)
        run = device, row.text('shape'), row.text('dtype'), 'pages ' + row.text('pages')
        points.add((run, series, row.budget(series), row.count('context')),
                   (row.number('speedup_over_full', 1e-9), full / read), row)


def read_gpu_check(points, root):
    """Keys: (device, shape), batch, series, context; values: time on the wall, of the graph."""
    device, backend = root.text('device_name'), root.text('device').split(':')[0]
    if root.get('dry_run') is not False:
        raise root.bad('dry_run', 'is not false: such a run measures nothing')
    points.settings = {**(points.settings or {}), device: '%s, %s, %s' % (
        root.text('date')[:10], root.text('driver'), root.text('commit'))}
    fulls = set()  # several stages measure it in one shape: the first one stands
    for row in root.rows('rows'):
        series = gpu_series(row)
        if series is None or (row.text('backend'), row.text('pages'), row.text('dtype')) != (
                backend, 'ordered', 'f16'):
            continue
        shape = row.text('shape'), row.count('batch'), row.count('context')
        if series[1] is not None or shape not in fulls:
            add_gpu_row(points, device, series, row)
        if series[1] is None:
            fulls.add(shape)
    if not points.by_key:
        raise Bad('%s: "rows": no row of backend %s with pages in order' % (root.where, backend))
    for row in root.rows('peers'):
        if row.text('peer') in PEERS and 'total_us' in row:
            add_gpu_row(points, device, (row.text('peer'), None), row)


def gpu_series(row):
    """None of what is not drawn."""
    select = row.text('select')
    if select not in ('full', 'quest'):
        return None
    return select, None if select == 'full' else row.count('budget')


def add_gpu_row(points, device, series, row):
    alone = None if row.get('graph_us') is None else row.number('graph_us', 1e-9)
    points.add(((device, row.text('shape')), row.count('batch'), series, row.count('context')),
               (row.number('total_us', 1e-9), alone), row)


# ---- Drawing ------------------------------------------------------------------------------------


def order(series):
    return list(SERIES).index(series)


def handle(series):
    name, colour, marker = SERIES[series]
    return Line2D([], [], color=colour, marker=marker, label=name)


def draw_line(axes, series, xs, ys, **options):
    _, colour, marker = SERIES[series]
    axes.plot(xs, ys, color=colour, marker=marker, markeredgewidth=0, clip_on=False, zorder=3,
              **options)


def arms(keys):
    """(series but full in their order, budgets, lengths) of keys (series, budget, length)."""
    keys = list(keys)
    names = sorted({key[0] for key in keys if key[1] is not None}, key=order)
    budgets = sorted({key[1] for key in keys if key[1] is not None})
    if not names:
        raise Bad('no row but those of full')
    return names, budgets, sorted({key[2] for key in keys})


def draw_passkey(points):
    names, budgets, lengths = arms(points.by_key)
    trials = sorted({value[3] for value in points.by_key.values()})
    counted = ' to '.join(grouped(n) for n in sorted({trials[0], trials[-1]}))
    has_full = any(key[1] is None for key in points.by_key)
    sheet = Sheet('Keys found in a text, by budget',
                  facts_of(points, '%s questions a point' % counted,
                           'bars: 95 % intervals, questions as independent'),
                  [''],
                  len(lengths), [handle(s) for s in [('full', '-')] * has_full + names])
    for axes, length in zip(sheet.panels[0], lengths):
        draw_passkey_panel(axes, points.by_key, names, budgets, length)
    sheet.label('budget, tokens a lane', 'five-digit keys found')
    return {'passkey': sheet.figure}


def draw_passkey_panel(axes, by_key, names, budgets, length):
    axes.set_title('%s tokens of text' % grouped(length))
    log2_axis(axes.xaxis, budgets)
    share_axis(axes)
    full = by_key.get((('full', '-'), None, length))
    if full is not None:
        axes.axhspan(full[1], full[2], color='#000000', alpha=0.07, linewidth=0)
        axes.axhline(full[0], color='#000000', clip_on=False)
    for i, series in enumerate(names):
        found = [(b, by_key[series, b, length]) for b in budgets if (series, b, length) in by_key]
        shift = 2 ** (0.05 * (i - (len(names) - 1) / 2))  # bars beside each other, not over
        xs, ys = [b * shift for b, _ in found], [value[0] for _, value in found]
        draw_line(axes, series, xs, ys)
        axes.errorbar(xs, ys, fmt='none', ecolor=SERIES[series][1], elinewidth=1, capsize=2,
                      yerr=[[max(v[0] - v[1], 0) for _, v in found],
                            [max(v[2] - v[0], 0) for _, v in found]], clip_on=False)


def draw_recall(points):
    return {'recall': draw_means(points), 'sparsity': draw_sparsity(points)}


def kinds_of_heads(points, length):
    """{kind: its (layer, head)} of one length, by what few or many tokens hold most of their
    attention."""
    kinds = {}
    for (kind, *key), value in sorted(points.by_key.items(), key=lambda item: str(item[0])):
        if kind == 'sparsity' and key[0] == length and min(key[1:]) >= 0:
            kinds.setdefault('sharp' if value < SHARP else 'even', []).append(tuple(key[1:]))
    return dict(sorted(kinds.items(), reverse=True))


def mean_interval(values):
    """(mean, half of its 95 % interval) with the values as a sample; Student's t."""
    n = len(values)
    mean = sum(values) / n
    if n == 1:
        return mean, 0
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    return mean, T_975[min(n - 1, len(T_975)) - 1] * deviation / math.sqrt(n)


def draw_means(points):
    """A section for each length and kind of head."""
    names, budgets, lengths = arms(key[1:4] for key in points.by_key if key[0] == 'head')
    sections = [(length, kind, heads) for length in lengths
                for kind, heads in kinds_of_heads(points, length).items()]
    has_full = any(key[0] == 'head' and key[2] is None for key in points.by_key)
    sheet = Sheet('What the pages read hold, by budget',
                  facts_of(points, 'means over heads; bars: 95 % intervals, heads as independent'),
                  ['%s tokens of text, %d %s heads: %s of the tokens hold 90 %% of their attention'
                   % (grouped(length), len(heads), kind, {'sharp': 'under a quarter',
                                                          'even': 'a quarter or more'}[kind])
                   for length, kind, heads in sections], 2,
                  [handle(s) for s in [('full', '-')] * has_full + names])
    for row, (length, _, heads) in zip(sheet.panels, sections):
        for which, axes in enumerate(row):
            draw_means_panel(axes, points.by_key, names, budgets, length, heads, which)
    sheet.label('budget, tokens a lane', 'share of top tokens')
    for row in sheet.panels:
        row[1].set_ylabel('share of attention')
    return sheet.figure


def draw_means_panel(axes, by_key, names, budgets, length, heads, which):
    axes.set_title(('recall of the top tokens', 'covered mass')[which])
    log2_axis(axes.xaxis, budgets)
    share_axis(axes)

    def interval(series, budget):
        found = [by_key['head', series, budget, length, *head][which] for head in heads
                 if ('head', series, budget, length, *head) in by_key]
        return mean_interval(found) if found else None
    full = interval(('full', '-'), None)
    if full is not None:
        axes.axhline(full[0], color='#000000', clip_on=False)
    for i, series in enumerate(names):
        found = [(b, interval(series, b)) for b in budgets]
        found = [(b, value) for b, value in found if value is not None]
        shift = 2 ** (0.05 * (i - (len(names) - 1) / 2))  # bars beside each other, not over
        xs, ys = [b * shift for b, _ in found], [mean for _, (mean, _) in found]
        draw_line(axes, series, xs, ys)
        axes.errorbar(xs, ys, fmt='none', ecolor=SERIES[series][1], elinewidth=1, capsize=2,
                      yerr=[[min(half, mean) for _, (mean, half) in found],
                            [min(half, 1 - mean) for _, (mean, half) in found]], clip_on=False)


def draw_sparsity(points):
    heads = {key[1:]: value for key, value in points.by_key.items()
             if key[0] == 'sparsity' and key[2] >= 0 and key[3] >= 0}
    if not heads:
        raise Bad('no row with "sparsity" is of one layer and head')
    lengths = sorted({key[0] for key in heads})
    colour = SERIES['quest', 'minmax'][1]
    handles = [Line2D([], [], color=colour, marker='o', linestyle='', alpha=0.45, markeredgewidth=0,
                      label='a query head'),
               Line2D([], [], color='#000000', label='mean of the layer')]
    sheet = Sheet('Tokens that hold 90 % of the attention, by layer', facts_of(points), [''],
                  len(lengths), handles)
    for axes, length in zip(sheet.panels[0], lengths):
        axes.set_title('%s tokens of text' % grouped(length))
        layers = sorted({key[1] for key in heads if key[0] == length})
        by_layer = [[value for key, value in sorted(heads.items()) if key[:2] == (length, layer)]
                    for layer in layers]
        for layer, values in zip(layers, by_layer):
            axes.plot([layer] * len(values), values, 'o', color=colour, alpha=0.45,
                      markeredgewidth=0, clip_on=False)
        axes.plot(layers, [sum(values) / len(values) for values in by_layer], color='#000000')
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.set_xlim(layers[0] - 0.4, layers[-1] + 0.4)
    top = max(heads.values())
    for axes in sheet.panels[0]:
        axes.set_ylim(0, top * 1.08 if top > 0 else 1)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: '%g %%' % round(100 * y, 3)))
    sheet.label('layer', 'share of all tokens')
    return sheet.figure


def draw_perplexity(points):
    names, budgets, lengths = arms(points.by_key)
    full = {key[2]: value for key, value in points.by_key.items() if key[1] is None}
    sheet = Sheet('Perplexity of the text that follows, by context', facts_of(points), [''],
                  len(budgets), [handle(s) for s in [('full', '-')] * bool(full) + names])
    for axes, budget in zip(sheet.panels[0], budgets):
        axes.set_title('budget %s' % grouped(budget))
        log2_axis(axes.xaxis, lengths)
        axes.plot(sorted(full), [full[n] for n in sorted(full)], color='#000000', marker='o',
                  markersize=3, clip_on=False, zorder=2.5)
        for series in names:
            found = [n for n in lengths if (series, budget, n) in points.by_key]
            draw_line(axes, series, found, [points.by_key[series, budget, n] for n in found])
    low, high = min(points.by_key.values()), max(points.by_key.values())
    pad = max(0.05 * (high - low), 0.025 * low - (high - low) / 2)  # shows at least 5 % of it
    sheet.panels[0][0].set_ylim(low - pad, high + pad)
    sheet.label('context, tokens', 'perplexity, per token')
    return {'perplexity': sheet.figure}


def eviction_styles(names):
    """{name: (colour, marker, line)} in the order of the legend: kinds, each before its options."""
    kinds = list(EVICTIONS)
    styles, options = {}, {}
    for name in sorted(names, key=lambda name: (kinds.index(name.split('+')[0]), name)):
        kind = name.split('+')[0]
        line = '-'
        if name != kind:
            if options.get(kind, 0) == len(OPTION_DASHES):
                raise Bad('%s has options beyond %d; lines are known for those'
                          % (kind, len(OPTION_DASHES)))
            line = OPTION_DASHES[options.get(kind, 0)]
            options[kind] = options.get(kind, 0) + 1
        styles[name] = EVICTIONS[kind] + (line,)
    return styles


def draw_eviction(points):
    full = points.by_key.get((('full', '-'), None))
    arms_of = {key: value for key, value in points.by_key.items() if key[1] is not None}
    if not arms_of:
        raise Bad('no row but those of full')
    styles = eviction_styles({name for name, _ in arms_of})
    budgets = sorted({budget for _, budget in arms_of})
    handles = [Line2D([], [], color='#000000', label='full')] * (full is not None)
    handles += [Line2D([], [], color=colour, marker=marker, linestyle=line, label=name)
                for name, (colour, marker, line) in styles.items()]
    settings = points.settings
    sheet = Sheet('What evictions cost, by budget',
                  facts_of(points, *('%s %s' % (grouped(settings[name]), what) for name, what in
                                     (('length', 'tokens of text'), ('seeds', 'seeds'))
                                     if name in settings),
                           'bars: deviation over seeds, 95 % intervals'), list(EVICTION_CASES), 2,
                  handles, share_y=False)
    for case, panels in enumerate(sheet.panels):
        draw_eviction_panels(panels, full and full[case], styles, budgets,
                             {key: value[case] for key, value in arms_of.items()})
    sheet.label('budget, tokens a lane', 'share of the norm')
    for panels in sheet.panels:
        panels[1].set_ylabel('share of the questions')
    return {'eviction': sheet.figure}


def draw_eviction_panels(panels, full, styles, budgets, arms_of):
    """Error and keys found of one way to ask."""
    for which, axes in enumerate(panels):
        axes.set_title(('error of the output', 'five-digit keys found')[which])
        log2_axis(axes.xaxis, budgets)
        if full is not None:
            axes.axhline(full[2 * which], color='#000000', clip_on=False)
        for i, (name, style) in enumerate(styles.items()):
            found = [(b, arms_of[name, b]) for b in budgets if (name, b) in arms_of]
            shift = 2 ** (0.03 * (i - (len(styles) - 1) / 2))  # bars beside each other, not over
            draw_eviction_line(axes, style, [b * shift for b, _ in found],
                               [value for _, value in found], which)
        share_axis(axes)
    most = max(value[0] + value[1] for value in arms_of.values())
    panels[0].set_ylim(0, 1.08 * most if most > 0 else 1)


def draw_eviction_line(axes, style, xs, values, which):
    colour, marker, line = style
    ys = [value[2 * which] for value in values]
    if which == 0:
        bars = [[min(v[1], v[0]) for v in values], [v[1] for v in values]]
    else:
        bars = [[max(v[2] - v[3], 0) for v in values], [max(v[4] - v[2], 0) for v in values]]
    axes.plot(xs, ys, color=colour, marker=marker, linestyle=line, markeredgewidth=0,
              clip_on=False, zorder=3)
    axes.errorbar(xs, ys, yerr=bars, fmt='none', ecolor=colour, elinewidth=0.8, capsize=1.5,
                  alpha=0.6, clip_on=False)


def draw_throughput(points):
    if not points.by_key:
        raise Bad('no row but those of full')
    runs = sorted({key[0] for key in points.by_key})
    styles = eviction_styles({key[1] for key in points.by_key})
    handles = [Line2D([], [], color='#555555', linewidth=5, label='tokens a second over full'),
               Line2D([], [], color='#000000', marker='|', markersize=9, linestyle='',
                      label='limit: bytes of a sequence, full over evicted')]
    sheet = Sheet('Decoding in the same cache memory, times over full',
                  'medians of tamis bench throughput; at the bars: sequences that fit',
                  ['%s, %s, %s, %s tokens, budget %s' % (run[:3] + tuple(map(grouped, run[3:5])))
                   for run in runs], 1, handles)
    for panels, run in zip(sheet.panels, runs):
        draw_throughput_panel(panels[0], points.by_key, run, styles)
    sheet.panels[0][0].set_ylim(len(styles) - 0.4, -0.6)
    sheet.panels[0][0].set_yticks(range(len(styles)), list(styles))
    sheet.panels[0][0].set_xlim(0, 1.08 * max(max(value[:2]) for value in points.by_key.values()))
    sheet.figure.subplots_adjust(left=0.22)
    sheet.label('times over full', '')
    return {'throughput': sheet.figure}


def draw_throughput_panel(axes, by_key, run, styles):
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: '%g ×' % x))
    axes.grid(visible=False, axis='y')
    axes.axvline(1, color='#000000', linewidth=1)
    for y, (name, (colour, _, line)) in enumerate(styles.items()):
        if (run, name) not in by_key:
            continue
        gain, ceiling, batch = by_key[run, name]
        axes.barh(y, gain, height=0.6, color=colour, alpha=1 if line == '-' else 0.6, linewidth=0)
        axes.plot([ceiling], [y], color='#000000', marker='|', markersize=9)
        axes.text(0.04, y, grouped(batch), color='white', size=7, va='center')


def draw_bench(points):
    if not points.by_key:
        raise Bad('no row but those of full')
    runs = sorted({key[0] for key in points.by_key})
    budgets = sorted({key[2] for key in points.by_key})
    names = sorted({key[1] for key in points.by_key}, key=order)
    limit = Line2D([], [], color='#555555', linestyle=(0, (4, 2)), linewidth=1,
                   label='limit: full bytes / bytes read')
    one = Line2D([], [], color='#000000', linewidth=1, label='full')
    sheet = Sheet('Decode attention, times over full', 'medians of tamis bench attention',
                  [', '.join(run) for run in runs], len(budgets),
                  [one] + [handle(s) for s in names] + [limit])
    for panels, run in zip(sheet.panels, runs):
        for axes, budget in zip(panels, budgets):
            axes.set_title('budget %s' % grouped(budget))
            draw_bench_panel(axes, points.by_key, run, budget, names)
    sheet.label('context, tokens', 'speed-up over full')
    return {'speed': sheet.figure}


def draw_bench_panel(axes, by_key, run, budget, names):
    log2_axis(axes.xaxis, [key[3] for key in by_key])
    axes.set_yscale('log', base=2)
    axes.yaxis.set_major_locator(LogLocator(base=2, numticks=12))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: '%g ×' % y))
    axes.axhline(1, color='#000000', linewidth=1)
    if not any((key[0], key[2]) == (run, budget) for key in by_key):
        say_empty(axes)
    for series in names:
        found = sorted((key[3], value) for key, value in by_key.items()
                       if key[:3] == (run, series, budget))
        contexts = [context for context, _ in found]
        axes.plot(contexts, [value[1] for _, value in found], color=SERIES[series][1],
                  linestyle=(0, (4, 2)), linewidth=1)
        draw_line(axes, series, contexts, [value[0] for _, value in found])


def gpu_styles(series):
    """{series: (name, colour, marker)} in the order of the legend."""
    budgets = sorted(budget for name, budget in series if name == 'quest')
    if len(budgets) > len(BUDGET_COLOURS):
        raise Bad('%d budgets; colours are known for %d' % (len(budgets), len(BUDGET_COLOURS)))
    styles = {('full', None): ('full', '#000000', 's')}
    for budget, colour in zip(budgets, BUDGET_COLOURS[-len(budgets):] if budgets else ()):
        styles['quest', budget] = 'quest %s' % grouped(budget), colour, 'o'
    styles.update({(peer, None): style for peer, style in PEERS.items()})
    return {key: style for key, style in styles.items() if key in series}


def dashes(series):
    return (0, (4, 2)) if series[0] in PEERS else '-'


def draw_gpu_check(points):
    by_key = points.by_key
    runs, batches = sorted({key[0] for key in by_key}), sorted({key[1] for key in by_key})
    styles = gpu_styles({key[2] for key in by_key})
    # All by one clock: where a row lacks the time on the device, by the wall's.
    which = 1 if all(value[1] is not None for value in by_key.values()) else 0
    sheet = Sheet('Decode attention on a GPU, time of one layer',
                  BETWEEN.join(points.settings[device] for device in sorted(points.settings)),
                  [', '.join(run) for run in runs], len(batches),
                  [Line2D([], [], color=colour, marker=marker, label=name, linestyle=dashes(series))
                   for series, (name, colour, marker) in styles.items()])
    for panels, run in zip(sheet.panels, runs):
        for axes, batch in zip(panels, batches):
            axes.set_title('batch %d' % batch)
            draw_gpu_panel(axes, by_key, run, batch, styles, which)
    sheet.label('context, tokens', ('wall time, us', 'time on the device, us')[which])
    return {'gpu': sheet.figure}


def draw_gpu_panel(axes, by_key, run, batch, styles, which):
    log2_axis(axes.xaxis, [key[3] for key in by_key])
    axes.set_yscale('log')
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: '{:,g}'.format(y)))
    if not any(key[:2] == (run, batch) for key in by_key):
        say_empty(axes)
    for series, (_, colour, marker) in styles.items():
        found = sorted((key[3], value[which]) for key, value in by_key.items()
                       if key[:3] == (run, batch, series))
        axes.plot([context for context, _ in found], [us for _, us in found], color=colour,
                  marker=marker, markeredgewidth=0, clip_on=False, zorder=3,
                  linestyle=dashes(series))


TOOLS = {
    'tamis eval passkey': (read_passkey, draw_passkey),
    'tamis eval recall': (read_recall, draw_recall),
    'tamis eval perplexity': (read_perplexity, draw_perplexity),
    'tamis eval eviction': (read_eviction, draw_eviction),
    'tamis eval blend': (read_blend, draw_blend),
    'tamis bench attention': (read_bench, draw_bench),
    'tamis bench throughput': (read_throughput, draw_throughput),
    'tamis bench ttft': (read_ttft, draw_ttft),
    'gpu_check': (read_gpu_check, draw_gpu_check),
}


# ---- Files --------------------------------------------------------------------------------------


def figures_of(paths):
    """All figures by name; nothing is written before the last file has been read."""
    points, files = {}, {}
    for path in paths:
        tool, root = load(path)
        files.setdefault(tool, []).append(path)
        TOOLS[tool][0](points.setdefault(tool, Points()), root)
    figures = {}
    for tool, found in points.items():
        try:
            figures.update(TOOLS[tool][1](found))
        except Bad as error:
            raise Bad('%s: %s' % (', '.join(files[tool]), error))
    return figures


def render(figure, kind):
    bytes_of = io.BytesIO()
    nothing = {'png': {'Software': None}, 'svg': {'Date': None, 'Creator': None}}
    figure.savefig(bytes_of, format=kind, dpi=DPI, metadata=nothing[kind])
    return bytes_of.getvalue()


def write(folder, contents):
    """All files beside their places first, then each renamed into its own."""
    waiting = []
    try:
        os.makedirs(folder, exist_ok=True)
        mask = os.umask(0)
        os.umask(mask)
        for name, data in contents.items():
            descriptor, temporary = tempfile.mkstemp(prefix=name + '.', dir=folder)
            waiting.append((temporary, os.path.join(folder, name)))
            with os.fdopen(descriptor, 'wb') as file:
                file.write(data)
            os.chmod(temporary, 0o666 & ~mask)
        while waiting:
            os.replace(*waiting[0])
            print(waiting.pop(0)[1])
    except OSError as error:
        raise Bad('%s: cannot be written: %s' % (folder, error.strerror))
    finally:
        for temporary, _ in waiting:
            os.unlink(temporary)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog='plot.py',
        description='Draws what tamis eval passkey, recall, perplexity, eviction, blend, tamis '
        'bench attention,\nthroughput, ttft and gpu_check.sh wrote as JSON: passkey, recall, '
        'sparsity, perplexity, eviction,\nblend, blend-kl, speed, throughput, ttft, gpu, each as '
        'PNG and SVG; ttft-rate where bench ttft\nwas given rates.',
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='example:\n'
        '  tamis eval passkey --model needle.gguf --budget 256,512,1024 --json passkey.json\n'
        '  tamis bench attention --shape llama3-8b --context 8192,32768 --json bench.json\n'
        '  tools/plot.py --out plots passkey.json bench.json\n'
        '  tamis eval blend --model needle.gguf --chunk-tokens 128 --json blend.json\n'
        '  tamis bench ttft --model needle.gguf --chunk-tokens 128 --rate 1,5 --json ttft.json\n'
        '  tools/plot.py --out plots blend.json ttft.json')
    parser.add_argument('--out', required=True, metavar='FOLDER', help='is made if it is not there')
    parser.add_argument('files', nargs='+', metavar='FILE',
                        help='what --json wrote, or gpu_check.json')
    options = parser.parse_args(arguments)
    try:
        with matplotlib.rc_context(STYLE):
            write(options.out, {'%s.%s' % (name, kind): render(figure, kind)
                                for name, figure in figures_of(options.files).items()
                                for kind in KINDS})
    except Bad as error:
        sys.exit('plot.py: %s' % error)


if __name__ == '__main__':
    main()
