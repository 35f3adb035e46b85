# SPDX-License-Identifier: Apache-2.0
"""What plot.py reads: JSON files, field by field, and the points that files make together."""
import json

# (select, score): name, colour (Okabe and Ito's, told apart without red or green), marker.
SERIES = {
    ('full', '-'): ('full', '#000000', None),
    ('oracle', 'mass'): ('oracle', '#cc79a7', 'v'),
    ('quest', 'minmax'): ('quest minmax', '#0072b2', 'o'),
    ('quest', 'meanstd'): ('quest meanstd', '#d55e00', '^'),
    ('quest', 'mean'): ('quest mean', '#009e73', 'D'),
    ('quest-paper', 'minmax'): ('quest-paper minmax', '#56b4e9', 'p'),
    ('quest-paper', 'meanstd'): ('quest-paper meanstd', '#f0a35e', '<'),
    ('quest-paper', 'mean'): ('quest-paper mean', '#7fcfb5', 'd'),
    ('window', '-'): ('window', '#e69f00', 's'),
    ('random', 'random'): ('random', '#7f7f7f', 'X'),
}
# The bench has no scores: what its selections score by.
BENCH_SCORES = {'full': '-', 'oracle': 'mass', 'quest': 'minmax', 'quest-paper': 'minmax',
                'window': '-', 'random': 'random'}

# Kind of eviction, or quest beside them: colour, marker. Options of a kind break its line.
EVICTIONS = {
    'quest': ('#0072b2', 'o'), 'streaming': ('#e69f00', 's'), 'h2o': ('#d55e00', '^'),
    'tova': ('#cc79a7', 'v'), 'snapkv': ('#009e73', 'D'), 'pyramidkv': ('#56b4e9', 'p'),
    'adakv': ('#117733', 'P'), 'criticalkv': ('#882255', 'X'), 'critical-adakv': ('#332288', 'h'),
    'andpro': ('#999933', '<'), 'defensivekv': ('#aa4499', '>'),
    'knorm': ('#a65628', '*'),
}
SERIES.update({(kind, '-'): (kind,) + style for kind, style in EVICTIONS.items()
               if kind != 'quest'})

# Members of a file in which files that share a figure may differ. Small budgets need smaller recent
# and sinks; layers and page_cache_kept are measured.
OWN = {'version', 'commit', 'device', 'device_name', 'driver', 'seed', 'rows', 'recent', 'sinks',
       'layers', 'page_cache_kept'}


class Bad(Exception):
    """One line for the user: names the file and what is wrong in it."""


def shown(value):
    """A value in at most 40 characters."""
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + '...'


class Fields:
    """An object of a JSON file, read field by field; `where` is its place: "a.json: rows[3]"."""

    def __init__(self, value, where):
        if not isinstance(value, dict):
            raise Bad('%s: %s is not an object' % (where, shown(value)))
        self.value, self.where = value, where

    def __contains__(self, name):
        return name in self.value

    def get(self, name):
        if name not in self.value:
            raise Bad('%s: "%s" is missing' % (self.where, name))
        return self.value[name]

    def bad(self, name, what):
        return Bad('%s: "%s": %s %s' % (self.where, name, shown(self.value[name]), what))

    def number(self, name, low, high=1e300):
        value = self.get(name)
        if not is_number(value):
            raise self.bad(name, 'is not a number')
        if not low <= value <= high:
            bound = 'at least %g' % low if high == 1e300 else 'from %g to %g' % (low, high)
            raise self.bad(name, 'is not %s' % bound)
        return value

    def share(self, name):
        """From 0 to 1; sums of many may end a rounding above."""
        return min(self.number(name, 0, 1 + 1e-6), 1)

    def count(self, name, low=1):
        value = self.number(name, low)
        if value != int(value):
            raise self.bad(name, 'is not a whole number')
        return int(value)

    def text(self, name):
        value = self.get(name)
        if not isinstance(value, str):
            raise self.bad(name, 'is not a string')
        return value

    def object(self, name):
        return Fields(self.get(name), '%s: "%s"' % (self.where, name))

    def rows(self, name):
        value = self.get(name)
        if not isinstance(value, list):
            raise self.bad(name, 'is not an array')
        return [Fields(row, '%s: %s[%d]' % (self.where, name, i)) for i, row in enumerate(value)]

    def series(self, scores=None):
        """(select, score), one that has a colour; scores: what a missing score stands for."""
        select = self.text('select')
        if scores is None or 'score' in self:
            score = self.text('score')
        else:
            score = scores.get(select)
        if (select, score) not in SERIES:
            raise Bad('%s: no colour is known for select %s, score %s'
                      % (self.where, shown(select), shown(score)))
        return select, score

    def budget(self, series):
        """None for full, which has none."""
        return None if series[0] == 'full' else self.count('budget')


    def eviction(self):
        """A kind that has a colour, with its options: "andpro+anchor-all"; full as a series."""
        name = self.text('evict')
        if name == 'full':
            return 'full', '-'
        if name.split('+')[0] not in EVICTIONS:
            raise Bad('%s: no colour is known for evict %s' % (self.where, shown(name)))
        return name


def read_json(path):
    """The object in a file."""
    try:
        with open(path, encoding='utf-8') as file:
            return Fields(json.load(file), path)
    except OSError as error:
        raise Bad('%s: cannot be read: %s' % (path, error.strerror)) from error
    except (ValueError, RecursionError) as error:
        raise Bad('%s: is not JSON: %s' % (path, str(error).splitlines()[0])) from error


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def interval_around(row, name, interval):
    """(share, low, high)."""
    accuracy, ends = row.share(name), row.get(interval)
    if not isinstance(ends, list) or len(ends) != 2 or not all(map(is_number, ends)):
        raise row.bad(interval, 'is not [low, high]')
    low, high = ends
    if not -1e-9 <= low <= accuracy + 1e-9 or not accuracy - 1e-9 <= high <= 1 + 1e-9:
        raise row.bad(interval, 'does not hold the accuracy %g' % accuracy)
    return accuracy, low, high


def rows_of(root):
    rows = root.rows('rows')
    if not rows:
        raise Bad('%s: "rows": is empty' % root.where)
    return rows


class Points:
    """The points of all files of one tool, by their keys; a key comes once, but for full, which
    stands in every file and must be the same there."""

    def __init__(self):
        self.by_key, self.origin, self.settings, self.first = {}, {}, None, None

    def add(self, key, value, row):
        if ('full', '-') in key and self.by_key.get(key) == value:
            return
        if key in self.by_key:
            raise Bad('%s: the same point stands in %s' % (row.where, self.origin[key]))
        self.by_key[key], self.origin[key] = value, row.where

    def same(self, root):
        """All files must agree in what is set: in every member but those of OWN."""
        settings = {name: value for name, value in root.value.items() if name not in OWN}
        if self.settings is None:
            self.settings, self.first = settings, root.where
        for name in sorted({**settings, **self.settings}):
            if name not in settings:
                raise Bad('%s: "%s" is missing, which is %s in %s; one figure shows one'
                          % (root.where, name, shown(self.settings[name]), self.first))
            if name not in self.settings:
                raise root.bad(name, 'is not set in %s; one figure shows one' % self.first)
            if settings[name] != self.settings[name]:
                raise root.bad(name, 'differs from %s in %s; one figure shows one'
                               % (shown(self.settings[name]), self.first))
