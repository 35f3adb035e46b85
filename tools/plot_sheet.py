# SPDX-License-Identifier: Apache-2.0
"""The sheet on which plot.py's figures are drawn: panels, headings, axes, a legend."""
import math
import os

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

WIDTH = 8.3  # inches; 830 CSS pixels at 100 a inch, the width of a README
BETWEEN = '  ·  '  # facts
FACTS_AN_INCH = 15.5  # characters of facts
# Amounts of one kind, from light to dark.
BUDGET_COLOURS = ('#9ecae1', '#5ba3cf', '#2171b5', '#08306b')


def grouped(number):
    return '{:,}'.format(number)


def folded(facts, width):
    """In lines that a width has room for, if none of the facts is longer."""
    lines = []
    for fact in facts.split(BETWEEN):
        if lines and len(lines[-1] + BETWEEN + fact) <= width * FACTS_AN_INCH:
            lines[-1] += BETWEEN + fact
        else:
            lines.append(fact)
    return lines


class Sheet:
    """A figure: title, a line of facts, sections of panels with a heading each, a legend below.
    `panels` holds a list for each section; up to three stand side by side. All axes are shared, the
    y axes unless share_y says no. `row` is a panel's height, `left` the
    room for labels beside it, in inches."""

    def __init__(self, title, facts, headings, n_panels, handles, share_y=True, row=2.2,
                 left=0.7):
        columns = min(n_panels, 3)
        section_rows = -(-n_panels // columns)
        n_rows = len(headings) * section_rows
        legend_rows = -(-len(handles) // 5)
        width = WIDTH if columns > 1 else 6.2
        top, facts = 1.05 if any(headings) else 0.82, folded(facts, width)
        gap, foot = top - 0.25, 0.62 + 0.22 * legend_rows
        top += 0.15 * (len(facts) - 1)
        height = top + n_rows * row + (n_rows - 1) * gap + foot
        self.figure = Figure(figsize=(width, height), facecolor='white')
        self.figure.subplots_adjust(left=left / width, right=1 - 0.2 / width, top=1 - top / height,
                                    bottom=foot / height, hspace=gap / row,
                                    wspace=0.16 if share_y else 0.24)
        self.grid = self.figure.subplots(n_rows, columns, sharex=True, sharey=share_y,
                                         squeeze=False)
        write = lambda x, y, text, **how: self.figure.text(x / width, 1 - y / height, text, **how)
        write(0.12, 0.13, title, size=11, weight='bold', va='top')
        write(0.12, 0.36, '\n'.join(facts), size=8, color='#555555', va='top')
        self.panels = []
        for i, heading in enumerate(headings):
            first = i * section_rows
            write(left, top + first * (row + gap) - 0.32, heading, weight='bold', va='bottom')
            cells = list(self.grid[first:first + section_rows].flat)
            self.panels.append(cells[:n_panels])
            for axes in cells[n_panels:]:
                axes.set_visible(False)
        self.figure.legend(handles=handles, loc='lower center', borderaxespad=0.3,
                           columnspacing=1.6, handlelength=1.8,
                           ncol=-(-len(handles) // legend_rows))

    def label(self, x, y):
        """x under the lowest panel of each column, y beside the first of each row."""
        for column in self.grid.T:
            lowest = [axes for axes in column if axes.get_visible()][-1]
            lowest.set_xlabel(x)
            lowest.tick_params(labelbottom=True)
        for axes in self.grid[:, 0]:
            axes.set_ylabel(y)


def say_empty(axes):
    axes.text(0.5, 0.5, 'not measured', transform=axes.transAxes, ha='center', color='#777777')


def log2_axis(axis, values):
    """Ticks at the values that occur, from the largest down, as far as their labels have room."""
    low, high = min(values) / 1.25, max(values) * 1.25
    room = math.log2(high / low) / 6
    ticks = []
    for value in sorted(set(values), reverse=True):
        if not ticks or math.log2(ticks[-1] / value) >= room:
            ticks.append(value)
    axis.axes.set_xscale('log', base=2)
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda x, _: grouped(round(x))))
    axis.axes.set_xlim(low, high)


def share_axis(axes):
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: '%.0f %%' % (100 * y)))


def facts_of(points, *more):
    """The model's file name, not its folder, and what else there is to say."""
    return BETWEEN.join((os.path.basename(points.settings['model']),) + more)
