# SPDX-License-Identifier: Apache-2.0
"""What plot.py draws of prompts with stored chunks: `tamis eval blend`, `tamis bench ttft`."""
import math
import re
from collections import namedtuple

from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from plot_read import Bad, interval_around, rows_of
from plot_sheet import (BETWEEN, BUDGET_COLOURS, Sheet, facts_of, grouped, log2_axis, say_empty,
                        share_axis)

# Ways to compute a prompt: colour, marker.
ARMS = {'full': ('#000000', 's'), 'all': ('#7f7f7f', 's'), 'prefix': ('#e69f00', 'D'),
        'reuse': ('#d55e00', 'X'), 'first': ('#009e73', '^'), 'random': ('#a65628', 'v'),
        'question': ('#cc79a7', 'h'), 'hkvd': ('#0072b2', 'o')}
# Of `tamis eval blend`, without and with a share; of `tamis bench ttft`, of which two load nothing.
ASKED, SHARED = ('full', 'prefix', 'reuse'), ('first', 'random', 'question', 'hkvd')
TIMED, COMPUTED = ('full', 'all', 'prefix', 'reuse', 'blend'), ('full', 'all')
SHARES = tuple((colour, 'o') for colour in BUDGET_COLOURS)  # of blend
CHOSEN = '#009e73', '^'  # blend with the share that the controller chose for each source
ASKS = {'one': 'questions about one chunk', 'two': 'questions about two chunks',
        'chain': 'a name in one chunk, its key in another'}
# By the next token: a question about two chunks begins as that about the first of them, and but for
# rounding its next token is the same.
BEGINNINGS = {'one': 'questions about one chunk or two', 'chain': ASKS['chain']}
SOURCES = {None: 'nothing loaded', 'memory': 'from memory', 'cached': 'from the page cache',
           'disk': 'from disk', 'redis': 'from a server'}
UNITS = {'K': 1e3, 'M': 1e6, 'G': 1e9}
ROUNDING = 1e-6  # nats of KL

Quality = namedtuple('Quality', 'seconds accuracy low high kl questions')
Series = namedtuple('Series', 'arm share chosen')  # share: 0 of arms that have none or a chosen one
Time = namedtuple('Time', 'seconds lowest highest speedup share tokens')
Waiting = namedtuple('Waiting', 'mean p95 requests')


# ---- Reading ------------------------------------------------------------------------------------


def known(row, name, names):
    value = row.text(name)
    if value not in names:
        raise row.bad(name, 'is not one of %s' % ', '.join(names))
    return value


def read_blend(points, root):
    """Keys: (device, chunks), ask, arm, share."""
    root.text('model')
    root.count('chunk_tokens')
    points.same(root)
    for row in rows_of(root):
        run = root.text('device_name'), row.count('chunks')
        arm = known(row, 'arm', ASKED + SHARED)
        share = row.number('share', 1e-9, 1) if arm in SHARED else 0
        points.add((run, known(row, 'ask', ASKS), arm, share),
                   Quality(row.number('ttft_seconds', 1e-9),
                           *interval_around(row, 'accuracy', 'ci95'), row.number('kl_mean', 0),
                           row.count('questions')), row)


def read_ttft(points, root):
    """Keys: 'ttft', device, chunks, source, series; and 'rate', (device, chunks), source, series,
    requests a second."""
    root.text('model')
    root.text('select')
    root.count('repeat')
    points.same(root)
    device = root.text('device_name')
    for row in rows_of(root):
        what, chunks = known(row, 'what', ('ttft', 'rate')), row.count('chunks')
        series, source = series_of(row), source_of(row)
        if what == 'rate':
            points.add((what, (device, chunks), source, series, row.number('rate', 1e-9)),
                       Waiting(row.number('ttft_s_mean', 1e-9), row.number('ttft_s_p95', 1e-9),
                               row.count('requests')), row)
            continue
        low, high = row.number('ttft_s_lowest', 1e-9), row.number('ttft_s_highest', 1e-9)
        points.add((what, device, chunks, source, series),
                   Time(row.number('ttft_s', low, high), low, high,
                        row.number('speedup_over_full', 1e-9), share_of(row), row.count('tokens')),
                   row)
    if not any(key[0] == 'ttft' for key in points.by_key):
        raise Bad('%s: "rows": no row of what "ttft"' % root.where)


def share_of(row):
    return row.number('share', 1e-9, 1) if row.text('arm') == 'blend' else 0


def series_of(row):
    arm, chosen = known(row, 'arm', TIMED), row.get('share_chosen')
    if not isinstance(chosen, bool):
        raise row.bad('share_chosen', 'is not true or false')
    return Series(arm, 0 if chosen else share_of(row), chosen)


def source_of(row):
    """None of what loads nothing, a name of SOURCES, or a speed: "100MB/s"."""
    if row.text('arm') in COMPUTED:
        if row.get('source') is not None:
            raise row.bad('source', 'is not null, and %s loads nothing' % row.text('arm'))
        return None
    source = row.text('source')
    if source not in SOURCES and not re.fullmatch('[0-9]{1,9}[KMG]B/s', source):
        raise row.bad('source', 'is not memory, cached, disk, redis or a speed as 100MB/s')
    return source


# ---- Quality by time ----------------------------------------------------------------------------


def draw_blend(points):
    by_key = points.by_key
    if all(arm == 'full' for _, _, arm, _ in by_key):
        raise Bad('no row but those of full')
    facts = facts_of(points, '%s questions a point' % least_to_most(
        quality.questions for quality in by_key.values()), 'larger marks: more is computed')
    chunk_tokens = points.settings['chunk_tokens']
    right = blend_sheet(by_key, chunk_tokens, ASKS, draw_right,
                        'Right answers by time to the first token',
                        facts + BETWEEN + 'bars: 95 % intervals')
    right.label('seconds to the first token', 'right answers')
    by_beginning = {**{(run, 'one', arm, share): quality
                       for (run, ask, arm, share), quality in by_key.items() if ask == 'two'},
                    **{key: quality for key, quality in by_key.items() if key[1] != 'two'}}
    kl = blend_sheet(by_beginning, chunk_tokens, BEGINNINGS, draw_kl,
                     'Divergence of the next token by time to the first', facts)
    kl.label('seconds to the first token', "mean KL from full's, nats")
    kl_axis(kl.panels[0][0], [quality.kl for quality in by_beginning.values()])
    return {'blend': right.figure, 'blend-kl': kl.figure}


def least_to_most(counts):
    counts = sorted(set(counts))
    return ' to '.join(grouped(n) for n in sorted({counts[0], counts[-1]}))


def blend_sheet(by_key, chunk_tokens, titles, draw, title, facts):
    """A section for each device and number of chunks, a panel for each kind of question."""
    runs = sorted({run for run, _, _, _ in by_key})
    asks = [ask for ask in titles if any(key[1] == ask for key in by_key)]
    arms = [arm for arm in ARMS if any(key[2] == arm for key in by_key)]
    sheet = Sheet(title, facts,
                  ['%s chunks of %s tokens, %s' % (grouped(chunks), grouped(chunk_tokens), device)
                   for device, chunks in runs], len(asks),
                  [Line2D([], [], color=ARMS[arm][0], marker=ARMS[arm][1], markeredgewidth=0,
                          label=arm + shares_text(by_key, arm)) for arm in arms], row=2.8)
    for panels, run in zip(sheet.panels, runs):
        for axes, ask in zip(panels, asks):
            axes.set_title(titles[ask])
            if not any(key[:2] == (run, ask) for key in by_key):
                say_empty(axes)
            for arm in arms:
                found = sorted((key[3], value) for key, value in by_key.items()
                               if key[:3] == (run, ask, arm))
                draw(axes, arm, found)
    time_axis(sheet, [quality.seconds for quality in by_key.values()])
    return sheet


def shares_text(by_key, arm):
    shares = sorted({share for _, _, of, share in by_key if of == arm and share > 0})
    return ', %s %%' % ' to '.join('%g' % round(100 * share, 3)
                                   for share in sorted({shares[0], shares[-1]})) if shares else ''


def time_axis(sheet, seconds):
    """Logarithmic: times as often as another are as far from it, wherever they are."""
    axes = sheet.panels[0][0]
    axes.set_xscale('log')
    axes.set_xlim(min(seconds) / 1.25, max(seconds) * 1.25)
    log_axis(axes.xaxis)


def log_axis(axis):
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: '%g' % value))


def draw_marks(axes, arm, xs, ys):
    """A line, and on it marks that grow."""
    colour, marker = ARMS[arm]
    axes.plot(xs, ys, color=colour, linewidth=1.2, clip_on=False, zorder=3)
    for i, (x, y) in enumerate(zip(xs, ys)):
        axes.plot([x], [y], color=colour, marker=marker, markeredgewidth=0, clip_on=False,
                  markersize=4 + 4 * (i + 1) / len(xs) if len(xs) > 1 else 6, zorder=4)


def draw_right(axes, arm, found):
    share_axis(axes)
    xs, ys = [value.seconds for _, value in found], [value.accuracy for _, value in found]
    if arm == 'full':
        for y in ys:
            axes.axhline(y, color='#000000', linewidth=0.8, linestyle=(0, (1, 2)), zorder=2)
    draw_marks(axes, arm, xs, ys)
    axes.errorbar(xs, ys, fmt='none', ecolor=ARMS[arm][0], elinewidth=0.8, capsize=1.5, alpha=0.5,
                  yerr=[[max(value.accuracy - value.low, 0) for _, value in found],
                        [max(value.high - value.accuracy, 0) for _, value in found]], clip_on=False)


def draw_kl(axes, arm, found):
    draw_marks(axes, arm, [value.seconds for _, value in found], [value.kl for _, value in found])


def kl_axis(axes, values):
    """Logarithmic from the power of ten below what is more than rounding; linear below that, for 0
    needs a place."""
    least = min((value for value in values if value > ROUNDING), default=ROUNDING)
    low = math.floor(math.log10(least))
    high = max(math.floor(math.log10(max(*values, least))), low) + 1
    axes.set_yscale('symlog', linthresh=10.0 ** low, linscale=0.6)
    axes.set_ylim(0, 10.0 ** high)
    axes.yaxis.set_major_locator(FixedLocator([0] + [10.0 ** i for i in range(low, high + 1)]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(
        lambda y, _: '$10^{%d}$' % round(math.log10(y)) if y > 0 else '0'))


# ---- Times and queues ---------------------------------------------------------------------------


def draw_ttft(points):
    if all(key[3].arm == 'full' for key in times_of(points)):
        raise Bad('no row but those of full')
    styles = ttft_styles({key[-1] if key[0] == 'ttft' else key[3] for key in points.by_key},
                         points.settings['select'])
    figures = {'ttft': draw_times(points, styles)}
    if any(key[0] == 'rate' for key in points.by_key):
        figures['ttft-rate'] = draw_queues(points, styles)
    return figures


def times_of(points):
    """By (device, chunks, source, series)."""
    return {key[1:]: value for key, value in points.by_key.items() if key[0] == 'ttft'}


def ttft_styles(series, select):
    """{series: (name, colour, marker)} in the order of the legend."""
    shares = sorted(of.share for of in series if of.arm == 'blend' and not of.chosen)
    if len(shares) > len(SHARES):
        raise Bad('%d shares; colours are known for %d' % (len(shares), len(SHARES)))
    of_shares = dict(zip(shares, SHARES[-len(shares):] if shares else ()))
    styles = {}
    for of in sorted(series, key=lambda of: (TIMED.index(of.arm), of.chosen, of.share)):
        if of.arm != 'blend':
            styles[of] = (of.arm,) + ARMS[of.arm]
        elif of.chosen:
            styles[of] = ('%s, share chosen' % select,) + CHOSEN
        else:
            styles[of] = ('%s %g %%' % (select, round(100 * of.share, 3)),) + of_shares[of.share]
    return styles


def by_speed(source):
    """Known places in their order, then from the fastest disk down."""
    if source in SOURCES:
        return list(SOURCES).index(source), 0
    return len(SOURCES), -int(source[:-4]) * UNITS[source[-4]]


def source_text(source):
    return SOURCES[source] if source in SOURCES else 'from a disk of %s' % source


def draw_times(points, styles):
    times = times_of(points)
    devices, counts = sorted({key[0] for key in times}), sorted({key[1] for key in times})
    places = bar_places({key[2:] for key in times}, styles)
    lowest = max(places.values()) + 0.7
    sheet = Sheet('Time to the first token',
                  facts_of(points, rounds_text(points.settings['repeat']),
                           'beside the bars: times as fast as full'),
                  devices, len(counts),
                  [Line2D([], [], color=colour, linewidth=5, label=name)
                   for name, colour, _ in styles.values()], row=max(2.2, 0.17 * lowest), left=1.5)
    for panels, device in zip(sheet.panels, devices):
        for axes, count in zip(panels, counts):
            found = {key[2:]: value for key, value in times.items() if key[:2] == (device, count)}
            draw_bars(axes, found, places, styles)
            tokens = sorted({time.tokens for time in found.values()})
            axes.set_title('%s chunks%s' % (grouped(count), ''.join(
                ', %s tokens' % grouped(n) for n in tokens)))
    axes = sheet.panels[0][0]
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: '%g' % x))
    axes.set_xlim(0, 1.2 * max(time.highest for time in times.values()))
    axes.set_ylim(lowest, -0.7)
    groups = {}
    for (source, _), y in places.items():
        groups.setdefault(source, []).append(y)
    axes.set_yticks([sum(ys) / len(ys) for ys in groups.values()],
                    [source_text(source) for source in groups])
    sheet.label('seconds', '')
    return sheet.figure


def rounds_text(count):
    return 'medians of %s rounds, lowest, highest' % grouped(count) if count > 1 else 'one round'


def bar_places(bars, styles):
    """{(source, series): y}: what one source has stands together, a free place before the next."""
    order, places, y = list(styles), {}, 0
    for source in sorted({source for source, _ in bars}, key=by_speed):
        for series in sorted((of for at, of in bars if at == source), key=order.index):
            places[source, series] = y
            y += 1
        y += 1
    return places


def draw_bars(axes, found, places, styles):
    axes.grid(visible=False, axis='y')
    if not found:
        say_empty(axes)
    for (source, series), time in found.items():
        y = places[source, series]
        axes.barh(y, time.seconds, height=0.8, color=styles[series][1], linewidth=0)
        axes.errorbar([time.seconds], [y], fmt='none', ecolor='#333333', elinewidth=0.8,
                      capsize=1.5, xerr=[[time.seconds - time.lowest],
                                         [time.highest - time.seconds]])
        share = ', %.3g %%' % (100 * time.share) if series.chosen else ''
        if series.arm != 'full':
            axes.text(time.highest, y, '  %.3g ×%s' % (time.speedup, share), size=6.5, va='center')


def draw_queues(points, styles):
    """A section for each device and number of chunks, a panel for each source, and what loads
    nothing in all of them."""
    queues = {key[1:]: value for key, value in points.by_key.items() if key[0] == 'rate'}
    runs = sorted({key[0] for key in queues})
    sources = sorted({key[1] for key in queues} - {None}, key=by_speed) or [None]
    shown = [(series, style) for series, style in styles.items()
             if any(key[2] == series for key in queues)]
    sheet = Sheet('Time to the first token, waiting included, by the rate of requests',
                  facts_of(points, '%s requests, one worker' % least_to_most(
                      queue.requests for queue in queues.values()),
                           'means; broken lines: the time that 95 % stay below'),
                  ['%s chunks, %s' % (grouped(chunks), device) for device, chunks in runs],
                  len(sources),
                  [Line2D([], [], color=colour, marker=marker, markeredgewidth=0, label=name)
                   for _, (name, colour, marker) in shown])
    for panels, run in zip(sheet.panels, runs):
        for axes, source in zip(panels, sources):
            axes.set_title(source_text(source))
            log2_axis(axes.xaxis, [key[3] for key in queues])
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: '%g' % x))
            if not any(key[:2] == (run, source) for key in queues):
                say_empty(axes)
            for series, (_, colour, marker) in shown:
                found = sorted((key[3], value) for key, value in queues.items()
                               if key[0] == run and key[1] in (None, source) and key[2] == series)
                draw_queue(axes, colour, marker, found)
    axes = sheet.panels[0][0]
    axes.set_yscale('log')
    log_axis(axes.yaxis)
    sheet.label('requests a second', 'seconds')
    return sheet.figure


def draw_queue(axes, colour, marker, found):
    rates = [rate for rate, _ in found]
    axes.plot(rates, [queue.mean for _, queue in found], color=colour, marker=marker,
              markeredgewidth=0, clip_on=False, zorder=3)
    axes.plot(rates, [queue.p95 for _, queue in found], color=colour, linewidth=0.9,
              linestyle=(0, (3, 2)), clip_on=False, zorder=2.5)
