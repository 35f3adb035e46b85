#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes one self-contained page of what `tamis bench portability --json` wrote on one machine or on
several: cascade plots, a chart for each problem, tables.

Usage: plot_portability.py PAGE.html FILE.json...

Exit status: 0; 1 with one line that names the file and what is wrong in it; 2 for wrong usage.
"""
import os
import sys
import tempfile
from html import escape

from plot_read import Bad, read_json
from portability_read import (KINDS, cascade, cell_text, class_shares, harmonic, letters,
                              read_report, share_text, shares, time_text)

TOOL = 'tamis bench portability'
CLASSES = {'dense': 'dense decode', 'quest': 'quest decode', 'prefill': 'prefill chunk',
           'evict': 'eviction in each step', 'load': "a blend's load",
           'few rows': 'products of few rows', 'many rows': 'products of many rows'}
# Okabe and Ito's, and lighter ones of the same hues.
COLOURS = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#000000', '#7f7f7f',
           '#a65628', '#117733', '#332288', '#999933', '#882255')
STYLE = '''
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 0 auto;
  padding: 1rem; max-width: 75rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
h3 { font-size: 1rem; margin: 0 0 .3rem; }
p, li { max-width: 50rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { border-bottom: 1px solid #ddd; padding: .2rem .6rem; text-align: left;
  vertical-align: top; }
td.n { text-align: right; }
td.n, td:first-child { white-space: nowrap; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(22rem, 100%), 1fr));
  gap: 1.2rem; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr));
  gap: 1.2rem; }
figure { margin: 0; } svg { width: 100%; height: auto; display: block; }
svg text { font: 12px system-ui, sans-serif; fill: #222; } svg text.s { font-size: 11px; fill: #555; }
.key { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }
'''


def colours_of(things):
    return {thing: COLOURS[i % len(COLOURS)] for i, thing in enumerate(things)}


# ---- SVG -----------------------------------------------------------------------------------------


def tag(name, content='', **attributes):
    said = ''.join(' %s="%s"' % (key.strip('_').replace('_', '-'), escape(str(value)))
                   for key, value in attributes.items())
    return '<%s%s>%s</%s>' % (name, said, content, name)


def text(x, y, words, **attributes):
    return tag('text', escape(words), x='%.1f' % x, y='%.1f' % y, **attributes)


def rect(x, y, width, height, fill):
    return tag('rect', x='%.1f' % x, y='%.1f' % y, width='%.1f' % max(width, 0.5),
               height='%.1f' % height, fill=fill)


def line(x1, y1, x2, y2, stroke, width=1):
    return tag('line', x1='%.1f' % x1, y1='%.1f' % y1, x2='%.1f' % x2, y2='%.1f' % y2,
               stroke=stroke, stroke_width=width)


def svg(width, height, title, parts):
    return tag('svg', tag('title', escape(title)) + ''.join(parts), role='img',
               viewBox='0 0 %d %d' % (width, height), xmlns='http://www.w3.org/2000/svg')


def cascade_svg(report, share_kind, title):
    """The metric over the best k platforms, a line for each class; under it which platform comes
    k-th."""
    left, top, high, wide, cell = 172, 10, 220, 380, 18
    n = len(report.platforms)
    step = wide / max(n, 1)
    letter, tint = letters(report.platforms), colours_of(report.platforms)
    line_tint = colours_of(CLASSES)
    def at(k):
        return left + step * (k + 0.5)
    parts = []
    for tenth in range(0, 11, 2):
        y = top + high * (1 - tenth / 10)
        parts += [line(left, y, left + wide, y, '#ddd'),
                  text(left - 6, y + 4, '%.1f' % (tenth / 10), text_anchor='end')]
    for i, kind in enumerate(report.classes()):
        ordered = class_shares(report, kind, share_kind)
        means = cascade(ordered)
        colour = line_tint.get(kind, '#000')
        points = [(at(k), top + high * (1 - mean)) for k, mean in enumerate(means)]
        parts.append(tag('polyline', points=' '.join('%.1f,%.1f' % p for p in points),
                         fill='none', stroke=colour, stroke_width=2))
        parts += [tag('circle', cx='%.1f' % x, cy='%.1f' % y, r=3.5, fill=colour)
                  for x, y in points]
        y = top + high + 14 + i * (cell + 3)
        parts.append(text(left - 18, y + 13, CLASSES.get(kind, kind), text_anchor='end'))
        parts.append(rect(left - 14, y + 4, 10, 10, colour))
        for k, (_, platform) in enumerate(ordered):
            parts.append(rect(left + step * k + 1, y, step - 2, cell, tint[platform]))
            parts.append(text(at(k), y + 13, letter[platform], text_anchor='middle',
                              style='fill:#fff;font-weight:bold'))
    bottom = top + high + 14 + len(report.classes()) * (cell + 3)
    parts.append(text(left + wide / 2, bottom + 14, 'platforms, for each class the best first',
                      text_anchor='middle', class_='s'))
    return svg(left + wide + 10, bottom + 22, title, parts)


def chart_svg(report, problem):
    """A bar of the application efficiency for each platform, from its slow to its fast quartile a
    line; a tick where its architectural efficiency is."""
    left, right, row, top = 20, 96, 24, 4
    wide = 260
    letter, tint = letters(report.platforms), colours_of(report.platforms)
    parts = []
    for quarter in range(5):
        x = left + wide * quarter / 4
        parts.append(line(x, top, x, top + row * len(report.platforms), '#ddd'))
        parts.append(text(x, top + row * len(report.platforms) + 14, '%g' % (quarter / 4),
                          text_anchor='middle', class_='s'))
    for i, platform in enumerate(report.platforms):
        cell, y = report.cell(problem, platform), top + row * i
        parts.append(text(left - 5, y + 16, letter[platform], text_anchor='end',
                          style='font-weight:bold'))
        if cell.state != 'ran':
            parts.append(text(left + 4, y + 16, cell.state, class_='s'))
            continue
        share = cell.application or 0
        parts.append(rect(left, y + 5, wide * share, row - 10, tint[platform]))
        slow, fast = (min(1, share * cell.us / us) for us in (cell.high, cell.low))
        parts.append(line(left + wide * slow, y + row / 2, left + wide * fast, y + row / 2, '#222',
                          1.5))
        if cell.architectural is not None:
            x = left + wide * min(cell.architectural, 1)
            parts.append(line(x, y + 2, x, y + row - 2, '#222', 2.5))
        parts.append(text(left + wide + 6, y + 16, time_text(cell.us), class_='s'))
    return svg(left + wide + right, top + row * len(report.platforms) + 20, problem.name, parts)


# ---- HTML ----------------------------------------------------------------------------------------


def table(head, rows):
    """Cells are HTML; those of rows behind the first are figures."""
    lines = [''.join(tag('th', cell) for cell in head)]
    lines += [''.join(tag('td', cell) if i == 0 else tag('td', cell, class_='n')
                      for i, cell in enumerate(row)) for row in rows]
    return tag('div', tag('table', ''.join(tag('tr', cells) for cells in lines)), class_='wide')


def platform_table(report):
    letter, tint = letters(report.platforms), colours_of(report.platforms)
    rows = []
    for platform in report.platforms:
        key = tag('span', '', class_='key', style='background:' + tint[platform])
        cells = (key + tag('b', letter[platform]), platform.hardware, platform.driver,
                 platform.form, '%s, %d units' % (platform.device, platform.units))
        rows.append(cells[:1] + tuple(escape(cell) for cell in cells[1:]))
    head = ('', 'hardware', 'driver', 'form', 'device')
    lines = [''.join(tag('th', cell) for cell in head)]
    lines += [''.join(tag('td', cell) for cell in row) for row in rows]
    return tag('div', tag('table', ''.join(tag('tr', cells) for cells in lines)), class_='wide')


def metric_table(report):
    rows = []
    for problem in report.problems:
        counted = shares(report.row(problem), 'application')
        rows.append([escape(problem.name), '%d of %d' % (len(counted), len(report.platforms))]
                    + [share_text(harmonic(shares(report.row(problem), kind))) for kind in KINDS]
                    + [escape(problem.ceiling)])
    return table(('problem', 'platforms', 'architectural', 'application', 'ceiling'), rows)


def own_forms(report):
    """The platforms of each form of which there are several drivers on the same hardware."""
    groups = {}
    for platform in report.platforms:
        groups.setdefault((platform.hardware, platform.form), []).append(platform)
    return {key: group for key, group in groups.items() if len(group) > 1}


def drivers_table(report):
    """The drivers of one form beside each other: the time of the fastest over that of each."""
    tables = []
    letter = letters(report.platforms)
    for (hardware, form), group in own_forms(report).items():
        rows = []
        for problem in report.problems:
            cells = [report.cell(problem, platform) for platform in group]
            times = [cell.us for cell in cells if cell.state == 'ran']
            if not times:
                continue
            ratios = [min(times) / cell.us if cell.state == 'ran' else None for cell in cells]
            rows.append([escape(problem.name)] + [share_text(ratio) for ratio in ratios]
                        + [share_text(harmonic([ratio for ratio in ratios if ratio]))])
        head = [escape(problem) for problem in ('problem',)]
        head += [letter[platform] + ', ' + escape(platform.driver) for platform in group]
        tables.append(tag('h3', escape('Form %s, %s' % (form, hardware)))
                      + table(head + ['their metric'], rows))
    return ''.join(tables)


def full_table(report):
    letter = letters(report.platforms)
    rows = [[escape(problem.name)] + [escape(cell_text(cell)) for cell in report.row(problem)]
            for problem in report.problems]
    return table(['problem'] + [letter[platform] for platform in report.platforms], rows)


def reasons(report):
    letter = letters(report.platforms)
    lines = ['%s on %s: %s: %s' % (problem.name, letter[platform], cell.state, cell.reason)
             for problem in report.problems for platform in report.platforms
             for cell in [report.cell(problem, platform)] if cell.state != 'ran']
    lines += ['no platform: ' + line for line in report.refused]
    return tag('ul', ''.join(tag('li', escape(line)) for line in lines)) if lines else ''


def figures(report):
    names = {'application': 'Application efficiency: of the fastest on the same hardware',
             'architectural': 'Architectural efficiency: of what the hardware can do'}
    return tag('div', ''.join(
        tag('figure', tag('h3', names[kind]) + cascade_svg(report, kind, names[kind]))
        for kind in reversed(KINDS)), class_='two')


def charts(report):
    return tag('div', ''.join(
        tag('figure', tag('h3', escape(problem.name)) + chart_svg(report, problem))
        for problem in report.problems), class_='charts')


WORDS = '''<p>A <b>platform</b> is a driver of a device with one form of the kernels. All platforms
run the same problem one after another, and figures are medians of samples.</p>
<ul><li><b>Architectural efficiency</b> is the share of what the hardware can do: decode steps of the
page-read limit, what reads few rows of products, evicts or loads of the read bandwidth, each as the
best driver of the hardware reached it beside the problem; prefill and products of many rows of the
most multiplications and additions a second that any of these reached there.</li>
<li><b>Application efficiency</b> is the shortest time of any platform on the same hardware, over the
platform's time.</li>
<li><b>The metric</b> of Pennycook, Sewall and Lee (2016) is the harmonic mean of efficiencies over
platforms. It is 0 where one of them cannot run the problem. Where a problem was <i>not run</i>, since
one sample would take too long, the platform is left out of the mean, and the number of platforms says
so: such a mean flatters.</li>
<li><b>The cascade plots</b> (Sewall and others, 2020) show the metric over the best platform, the best
two, and so on, a line for each class of problems; a class's efficiency on a platform is the harmonic
mean over its problems. A line that stays high is portable speed; where it falls, the rows below name
the platform that costs it.</li></ul>'''


def page(report, files):
    commits = sorted({file.text('commit') for file in files})
    parts = [
        tag('h1', 'How portable the speed is'),
        tag('p', escape('tamis bench portability at commit %s. %d platforms, %d problems.'
                        % (', '.join(commits), len(report.platforms), len(report.problems)))),
        WORDS,
        tag('h2', 'Platforms'), platform_table(report),
        tag('h2', 'Cascade plots'), figures(report),
        tag('h2', 'The metric'), metric_table(report)]
    if own_forms(report):
        parts += [tag('h2', 'Drivers beside each other'),
                  tag('p', 'The same form on the same hardware: the time of the fastest driver, '
                      'over the time of each.'), drivers_table(report)]
    parts += [
        tag('h2', 'Each problem'),
        tag('p', 'A bar is the application efficiency, the thin line on it spans its quartiles, and '
            'the upright tick is the architectural efficiency. Beside it the median time of one '
            'layer, or of one product of 4096 by 4096.'),
        charts(report),
        tag('h2', 'All figures'),
        tag('p', 'Median time, architectural efficiency, application efficiency.'),
        full_table(report)]
    if reasons(report):
        parts += [tag('h2', 'What was not run'), reasons(report)]
    head = ('<meta charset="utf-8"/><meta name="viewport" content="width=device-width"/>'
            '<title>tamis: how portable the speed is</title>' + tag('style', STYLE))
    return '<!DOCTYPE html>\n%s\n' % tag('html', tag('head', head)
                                         + tag('body', '\n'.join(parts)), lang='en')


# ---- Files ---------------------------------------------------------------------------------------


def write(path, content):
    """Beside its place first, then renamed into it."""
    temporary = None
    try:
        folder = os.path.dirname(path) or '.'
        descriptor, temporary = tempfile.mkstemp(prefix=os.path.basename(path), dir=folder)
        with os.fdopen(descriptor, 'w', encoding='utf-8') as file:
            file.write(content)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except OSError as error:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise Bad('%s: cannot be written: %s' % (path, error.strerror)) from error


def main(arguments):
    if len(arguments) < 2 or any(argument.startswith('-') for argument in arguments):
        print(__doc__.strip(), file=sys.stdout if '--help' in arguments else sys.stderr)
        return 0 if '--help' in arguments else 2
    try:
        files = [read_json(path) for path in arguments[1:]]
        for file in files:
            if file.text('tool') != TOOL:
                raise file.bad('tool', 'is not %s' % TOOL)
        write(arguments[0], page(read_report(files), files))
    except Bad as error:
        print('plot_portability.py: %s' % error, file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
