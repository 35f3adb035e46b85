#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""test_chat_templates.py PROGRAM: what chat templates make of conversations, beside jinja2 as
transformers sets it up. Where jinja2 is not installed, its recorded answers serve; with --record
they are written anew. The templates in tests/data/templates write the formats of well-known models
in wordings of our own, and play parts of the language.

test_chat_templates.py PROGRAM FOLDER: the same for the templates in a folder, models' own for
instance, each with a line that says whether both are the same over plain conversations."""
import collections
import datetime
import hashlib
import json
import os
import subprocess
import sys

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'data', 'templates')
RECORDED = FOLDER + '.json'


def read_templates():
    """The text of each by its name; line ends stay as they are."""
    out = {}
    for name in sorted(os.listdir(FOLDER)):
        if name.endswith('.jinja'):
            with open(os.path.join(FOLDER, name), newline='') as file:
                out[name[:-len('.jinja')]] = file.read()
    return out


TEMPLATES = read_templates()
DATE = '2026-03-07'

WORDS = ['<|im_start|>', '[INST] x [/INST]', '{{ 1 }} {% if %}', '"quoted" and \'quoted\'',
         ' both ends ', '\n\nlines\n\n', '', '<<SYS>>\nx\n<</SYS>>', 'a\\nb', '</s><|eot_id|>',
         'gr\u00fc\u00dfe \u4e16\u754c', '\u00a0wide\u3000', '{# c #}', '<think>\nx\n</think>\n\ny',
         '[', 'a]b[c', '<tool_response>x</tool_response>']


def conversations():
    """With and without a system message, of one and several turns, with each word in each place."""
    out = []
    for word in WORDS:
        for system in ([], [['system', 'Be good.']], [['system', word]]):
            one = system + [['user', word]]
            out += [one, one + [['assistant', 'An answer.'], ['user', ' More? ']],
                    system + [['user', 'Hello']] + [['assistant', word], ['user', word]] * 2]
    out.append([['user', 'a'], ['user', 'b']])
    return out


def generation(nodes, extension, pass_eval_context):
    """What transformers marks answers with."""
    class Generation(extension):
        tags = {'generation'}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(['name:endgeneration'], drop_needle=True)
            return nodes.CallBlock(self.call_method('write'), [], [], body).set_lineno(line)

        @pass_eval_context
        def write(self, _, caller):
            return caller()
    return Generation


def jinja():
    """What renders as transformers does, or None."""
    try:
        from jinja2 import ext, nodes, pass_eval_context
        from jinja2.exceptions import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        return None
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True,
        extensions=[generation(nodes, ext.Extension, pass_eval_context), ext.loopcontrols])

    def raise_exception(message):
        raise TemplateError(message)
    env.globals['raise_exception'] = raise_exception
    env.globals['strftime_now'] = datetime.date.fromisoformat(DATE).strftime
    env.filters['tojson'] = lambda value, ensure_ascii=False, **options: json.dumps(
        value, ensure_ascii=ensure_ascii, **options)

    known = {}

    def render(template, messages, prompt):
        if template not in known:
            known[template] = env.from_string(template)
        try:
            return known[template].render(
                messages=[{'role': r, 'content': c} for r, c in messages], tools=None,
                documents=None, add_generation_prompt=prompt, bos_token='<s>', eos_token='</s>')
        except (TemplateError, TypeError):
            return None
    return render


def digest(texts):
    """Of what is rendered without and with a prompt for an answer; None of an error."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:8]


def case(template, messages, prompt):
    """What the program reads."""
    texts = [text.encode() for text in (template, '<s>', '</s>', DATE)]
    out = b'%d %d %d %d %d %d\n' % (*map(len, texts), prompt, len(messages)) + b''.join(texts)
    for message in messages:
        parts = [part.encode() for part in message]
        out += b'%d %d\n' % (len(parts[0]), len(parts[1])) + b''.join(parts)
    return out


def ours(program, cases):
    """The text of each case, None where it is refused, and the error."""
    run = subprocess.run([program], input=b''.join(case(*c) for c in cases), stdout=subprocess.PIPE,
                         check=True)
    data, out = run.stdout, []
    for _ in cases:
        head, data = data.split(b'\n', 1)
        status, count = map(int, head.split())
        text, data = data[:count].decode(), data[count:]
        out.append((text if status == 0 else None, text))
    return out


# What is no part of the language here, or leads nowhere: refused, with a reason.
LOOP = '{% for i in range(9999) %}'
END = '{% endfor %}'


def grown(count):
    """Makes ns.a and ns.b texts of 2 ** count characters."""
    return ('{% set ns = namespace(a="a", b="b") %}{% for i in range(' + str(count)
            + ') %}{% set ns.a = ns.a + ns.a %}{% set ns.b = ns.b + ns.b %}' + END)


TALK = [['user', 'Hello']]
REFUSED = {
    '{{ messages | tojson(ensure_ascii=false, indent=2) }}': "'tojson' with the argument 'indent'",
    '{{ "\u00e9" | tojson(ensure_ascii=true) }}': "with the argument 'ensure_ascii'",
    '{{ range | tojson }}': 'a function as JSON',
    '{{ 1.5 }}': 'a number with a point',
    '{{ 7 / 2 }}': 'numbers with points',
    '{{ 2 ** 3 }}': '**',
    '{{ 1 / 0 }}': 'a division by 0',
    '{{ x.y }}': "'y' of what is undefined",
    '{{ f() }}': "the function 'f' is not known",
    '{% block a %}{% endblock %}': "the statement 'block' is not known",
    '{% if 1 %}': 'endif',
    '{% macro f(x) %}a{% endmacro %}{{ f(1, 2) }}': "the macro 'f' with 1 arguments",
    '{% macro f(x) %}a{% endmacro %}{{ f(1, x=2) }}': "the macro 'f' with 1 arguments",
    '{% macro f(x) %}a{% endmacro %}{{ f(y=2) }}': "the macro 'f' with 1 arguments",
    '{% macro f() %}{{ varargs }}{% endmacro %}{{ f() }}': "'varargs' is not known",
    '{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}': 'levels',
    '{% macro f() %}' + '{% if 1 %}' * 60 + '{{ f() }}' + '{% endif %}' * 60
    + '{% endmacro %}{{ f() }}': 'levels',
    '{% macro f() %}' + LOOP + END + '{% endmacro %}' + LOOP + '{{ f() }}' + END: 'takes more than',
    '{% for m in messages %}{% macro f() %}{% endmacro %}{% endfor %}': "'f' stands where no macro",
    '{% macro f() %}{% macro g() %}{% endmacro %}{% endmacro %}': "'g' stands where no macro",
    '{% macro f(x %}{% endmacro %}': "'%}' stands where , is expected",
    '{{ range }}': 'a function is printed',
    '{{ range.x }}': "'x' of a function",
    '{{ range == range }}': 'a function is not compared',
    '{{ joiner() }}': "the function 'joiner' is not known",
    '{% set x %}a': 'endset',
    '{% set x | trim %}a{% endset %}': "'|' stands where =",
    '{% break %}': 'a loop around it',
    '{% for m in messages %}{% set x %}{% continue %}{% endset %}{% endfor %}': 'a loop around it',
    '{% set x = {none: 1} %}': "'{}' of none",
    '{{ {"a": 1, 2: 3} | dictsort }}': "'dictsort' of a text and an integer",
    '{{ "{:>4}".format(1) }}': "the format '{:>4}' with 1 arguments",
    '{{ "{} {}".format(1) }}': "the format '{} {}' with 1 arguments",
    '{{ "}".format(1) }}': "the format '}' with 1 arguments",
    '{{ "7" | int }}': "the filter 'int' of a text",
    '{{ strftime_now("%H:%M") }}': "the date in the form '%H:%M'",
    '{{ strftime_now("%") }}': "the date in the form '%'",
    '{% for m in messages recursive %}{% endfor %}': "'recursive'",
    '{{ 1 < 2 < 3 }}': 'one comparison',
    '{{ +1 }}': "'+' stands where a name is expected",
    '{{ "\\q" }}': 'the escape',
    '{{ "\\012" }}': "the escape '\\0'",
    '{{ 007 }}': "the number '007'",
    '{{ x is defined is true }}': 'one test',
    '{{ messages[0].items is defined }}': "the method 'items' as a value",
    '{% for loop in messages %}{% endfor %}': "'loop' stands where another name",
    '{% for m in messages %}{% set m.content = "" %}{% endfor %}': "'content' of a map is set",
    '{% for m in messages %}{% set loop.index = 1 %}{% endfor %}': "'index' of a loop is set",
    '{{ namespace(a=1) | length }}': "'length' of a namespace",
    '{{ "a" in namespace(a=1) }}': "'in' of a text and a namespace",
    '{{ [1] in {"a": 1} }}': "'in' of a list and a map",
    '{{ "a': 'a string does not end',
    '{# a': 'a comment does not end',
    '{{ a': 'a tag does not end',
    '{{ messages }}': 'a list is printed',
    '{{ messages[0].content.title() }}': "the method 'title'",
    '{{ 1 + "a" }}': "'+' of an integer and a text",
    '{{ raise_exception("no\x1b[2J") }}': 'this: no?[2J',
    '{{ 1 | \x1b }}': "'?' in a tag",
    '{% for i in range(1000000) %}{% endfor %}': 'a range of more than',
    LOOP + LOOP + END + END: 'takes more than',
    grown(99): 'bytes',
    grown(17) + LOOP + '{{ ns.a == ns.a }}{{ ns.a | length }}' + END: 'steps',
    grown(20) + '{{ ns.b.strip(ns.a + "b") }}': 'steps',
    grown(18) + '{% set m = {' + ', '.join('ns.a + "%d": 1' % i for i in range(10, 30)) + '} %}'
    + '{% set k = ns.a + "xx" %}' + LOOP + '{{ k in m }}' + END: 'steps',
    '{% set ns = namespace(a=[]) %}{% for i in range(3000) %}{% set ns.a = ' + '[' * 40 + 'ns.a'
    + ']' * 40 + ' %}' + END + '{{ ns.a == ns.a }}': 'levels',
    '{{ -(1099511627776 * -8388608) }}': 'the number 1099511627776; up to',
    '{{ 2147483647 + 2 }}': 'the number 2147483649; up to',
    '{{ ' + '(' * 5000 + '1' + ')' * 5000 + ' }}': 'levels',
    '{{ ' + '-' * 5000 + '1 }}': 'levels',
    '{{ ' + 'not ' * 5000 + '1 }}': 'levels',
    '{% if 1 %}' * 5000: 'levels',
    '{% if 0 %}' + '{% elif 0 %}' * 5000 + '{% endif %}': 'levels',
    '{{ ' + '[' * 5000 + '}}': 'levels',
    '{{ 1' + ' + 1' * 99999 + ' }}': 'levels',
    '{{ x' + '.x' * 99999 + ' }}': 'levels',
    '{{ 1' + ' | string' * 99999 + ' }}': 'levels',
    '{{ 1' + ' if 1' * 99999 + ' }}': 'levels',
}


# What long texts become, which are built in steps, and what stands at the language's borders.
WRITTEN = {
    grown(16) + '{% set b = ns.a.replace("a", "xyz") %}{{ b | length }} {{ b[-2:] }}': '196608 yz',
    grown(16) + '{{ ns.a.split("a") | join("xy") | length }}': '131072',
    grown(16) + '{{ (ns.a + "bc")[1:] | length }} {{ (ns.a + "bc")[::-2][:3] }}': '65537 caa',
    '{{ messages[0].content }}' + '{{ "a" }}' * 9999: 'Hello' + 'a' * 9999,
    'a {#-#} b{#+#}\nc': 'a bc',
    '\u00a0{%- if 1 -%}\x1cx\u3000{%- endif -%} y\n\u00a0{% if 1 %}z{% endif %}': 'xy\nz',
    '{% for m in messages %}{{ loop.depth }}{{ loop is mapping }}{% endfor %}': '1False',
    '{{ x is sequence }}{{ namespace() is iterable }}{{ dict(a=1) is mapping }}': 'TrueFalseTrue',
    '{{ "set" if namespace() }}': 'set',
    '{{ range is defined }}{{ strftime_now is defined }}{{ "y" if dict }}': 'TrueTruey',
    '{{ "b" is in "abc" }}{{ "c" is in {"a": 1} }}{{ "" is in x }}': 'TrueFalseFalse',
}


def check_written(program, render):
    """The texts themselves, and by jinja2, too, where it is installed."""
    failures = 0
    for (template, wanted), (text, error) in zip(
            WRITTEN.items(), ours(program, [(template, TALK, 0) for template in WRITTEN])):
        assert render is None or render(template, TALK, 0) == wanted, template
        if text != wanted:
            failures += 1
            print('FAIL', template[-80:], repr(text), error)
    return failures


def check_refused(program):
    failures = 0
    for (template, reason), (text, error) in zip(
            REFUSED.items(), ours(program, [(template, TALK, 0) for template in REFUSED])):
        if text is not None or reason not in error or not error.startswith('line 1: '):
            failures += 1
            print('FAIL', template[:80], repr(text), error)
    return failures


# Plain conversations.
PLAIN = [[['user', ' What is 2 + 2?']],
         [['system', 'Be terse.\n'], ['user', 'What is 2 + 2?']],
         [['user', 'Hello'], ['assistant', 'Four.\n'], ['user', '<b>"3" + 3?\u4e16</b>']],
         [['system', 'Be terse.'], ['user', 'Hello'],
          ['assistant', '<think>\nHm.\n</think>\n\nFour.'], ['user', "It's"],
          ['assistant', 'So.'], ['user', 'Yes']],
         [['user', 'Hello'], ['assistant', 'Four.']]]


def compare(program, render, folder):
    """How a folder's templates fare."""
    words, count = collections.Counter(), 0
    for name in sorted(os.listdir(folder)):
        if not name.endswith('.jinja'):
            continue
        with open(os.path.join(folder, name), newline='') as file:
            template = file.read()
        cases = [(template, talk, prompt) for talk in PLAIN for prompt in (0, 1)]
        found, why = collections.Counter(), set()
        for one, (text, error) in zip(cases, ours(program, cases)):
            wanted = render(*one)
            word = ('different' if None not in (text, wanted) else
                    'refused here' if text is None else 'refused by jinja2')
            found['refused by both' if text is wanted is None else
                  'same' if text == wanted else word] += 1
            why |= {error} if text is None else set()
        count += not {'different', 'refused here', 'refused by jinja2'} & set(found)
        words.update(found)
        print(name, dict(found), *sorted(why))
    print(count, 'templates are the same;', dict(words))


def main():
    render = jinja()
    if len(sys.argv) == 3:
        compare(sys.argv[1], render, sys.argv[2])
        return
    talks = conversations()
    answers = {name: [digest([render(template, talk, prompt) for prompt in (0, 1)])
                      for talk in talks]
               for name, template in TEMPLATES.items()} if render else None
    if sys.argv[1:] == ['--record']:
        with open(RECORDED, 'w') as file:
            json.dump(answers, file, indent=0)
        return
    with open(RECORDED) as file:
        recorded = json.load(file)
    assert answers in (None, recorded), 'the recorded answers are not those of this jinja2'
    failures = check_refused(sys.argv[1]) + check_written(sys.argv[1], render)
    for name, template in TEMPLATES.items():
        got = ours(sys.argv[1], [(template, talk, prompt) for talk in talks for prompt in (0, 1)])
        assert len(recorded[name]) == len(talks)
        for i, (talk, wanted) in enumerate(zip(talks, recorded[name])):
            pair = got[2 * i:2 * i + 2]
            if digest([text for text, _ in pair]) != wanted:
                failures += 1
                if failures < 10:
                    print('FAIL', name, talk, pair)
    print(failures, 'failed, beside', 'jinja2' if render else 'its recorded answers')
    sys.exit(failures > 0)


if __name__ == '__main__':
    main()
