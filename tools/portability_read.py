# SPDX-License-Identifier: Apache-2.0
"""What `tamis bench portability` wrote, of one machine or of several: platforms, problems, what each
problem took on each platform, and Pennycook's metric."""
from collections import namedtuple

from plot_read import Bad, rows_of

STATES = ('ran', 'not run', 'cannot run')
KINDS = ('architectural', 'application')

Platform = namedtuple('Platform', 'hardware driver form device units')
Problem = namedtuple('Problem', 'name kind ceiling')
# us to reason are None where they say nothing.
Cell = namedtuple('Cell', 'state us low high samples architectural application reason')


class Report:
    """Cells by (problem, platform), both in the order in which the files name them."""

    def __init__(self):
        self.platforms, self.problems, self.cells, self.refused = [], [], {}, []
        self.origin = {}

    def add(self, root):
        for line in root.get('no_platforms'):
            if line not in self.refused:
                self.refused.append(line)
        for row in rows_of(root):
            problem = Problem(row.text('problem'), row.text('class'), row.text('ceiling'))
            platform = Platform(row.text('hardware'), row.text('driver'), row.text('form'),
                                row.text('device_name'), row.count('units', 0))
            key = problem, platform
            if key in self.origin:
                raise Bad('%s: the same problem on the same platform stands in %s'
                          % (row.where, self.origin[key]))
            self.origin[key] = row.where
            self.cells[key] = cell_of(row)
            for one, known in ((problem, self.problems), (platform, self.platforms)):
                if one not in known:
                    known.append(one)

    def cell(self, problem, platform):
        """A machine that was not asked has not run it."""
        absent = Cell('not run', None, None, None, None, None, None, 'not measured')
        return self.cells.get((problem, platform), absent)

    def row(self, problem):
        return [self.cell(problem, platform) for platform in self.platforms]

    def classes(self):
        return list(dict.fromkeys(problem.kind for problem in self.problems))

    def of_class(self, kind):
        return [problem for problem in self.problems if problem.kind == kind]


def optional(row, name):
    return None if row.get(name) is None else row.number(name, 1e-12)


def cell_of(row):
    state = row.text('state')
    if state not in STATES:
        raise row.bad('state', 'is not one of %s' % ', '.join(STATES))
    if state != 'ran':
        return Cell(state, None, None, None, None, None, None, row.text('reason'))
    us = row.number('us', 1e-9)
    return Cell(state, us, row.number('low_us', 1e-9, us), row.number('high_us', us),
                row.count('samples'), optional(row, 'architectural'),
                optional(row, 'application'), None)


def read_report(files):
    report = Report()
    for root in files:
        report.add(root)
    return report


# ---- Pennycook's metric --------------------------------------------------------------------------


def shares(cells, kind):
    """Efficiencies, at most 1, of the platforms that count; of one that cannot run a problem 0."""
    found = []
    for cell in cells:
        if cell.state == 'cannot run':
            found.append(0)
        elif cell.state == 'ran' and getattr(cell, kind) is not None:
            found.append(min(getattr(cell, kind), 1))
    return found


def harmonic(values):
    """None of nothing."""
    if not values:
        return None
    return 0 if 0 in values else len(values) / sum(1 / value for value in values)


def class_shares(report, kind, share_kind):
    """[(efficiency, platform)]: the harmonic mean over the class's problems that ran there; the best
    platforms first."""
    found = []
    for platform in report.platforms:
        cells = [report.cell(problem, platform) for problem in report.of_class(kind)]
        mean = harmonic(shares(cells, share_kind))
        if mean is not None:
            found.append((mean, platform))
    return sorted(found, key=lambda pair: -pair[0])


def cascade(ordered):
    """The metric over the first platform, the first two, and so on."""
    return [harmonic([share for share, _ in ordered[:n + 1]]) for n in range(len(ordered))]


# ---- Text ----------------------------------------------------------------------------------------


def letters(platforms):
    return {platform: chr(ord('A') + i % 26) * (1 + i // 26)
            for i, platform in enumerate(platforms)}


def share_text(value):
    return '-' if value is None else '%.2f' % value if value >= 0.1 else '%.3f' % value


def time_text(us):
    return '{:,.0f} us'.format(us) if us < 1e5 else '{:,.0f} ms'.format(us / 1e3)


def cell_text(cell):
    if cell.state != 'ran':
        return cell.state
    return '%s, %s, %s' % (time_text(cell.us), share_text(cell.architectural),
                           share_text(cell.application))


def platform_text(platform):
    return '%s, %s, %s' % (platform.hardware, platform.driver, platform.form)
