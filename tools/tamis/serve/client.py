# SPDX-License-Identifier: Apache-2.0
"""What tests of `tamis serve` share: the program as a server, HTTP to it, its metrics, models."""
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = 100  # seconds that anything may take
given = types.SimpleNamespace()  # tamis, data, folder: of the test; model: its model; book: a text
JSON = {'Content-Type': 'application/json'}
CHAT, TEXT = '/v1/chat/completions', '/v1/completions'
PROMPT = 'And the name of the man was'
USER = [{'role': 'user', 'content': 'And the name of'}]

# As Mistral's first: tags are text, the system text is a part of the first question.
TEMPLATE = ("{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\\n\\n' %}"
            "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
            "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
            "{{ '[INST] ' + (system if loop.first else '') + m.content + ' [/INST]' }}"
            "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}")


def environment(**more):
    """Without what the user has set for the program."""
    keep = {name: value for name, value in os.environ.items()
            if name not in ('TAMIS_DEVICE', 'TAMIS_LOG', 'TAMIS_API_KEY')}
    return {**keep, 'TAMIS_SETTINGS': 'none', 'TAMIS_CUDA_DRIVER': '/nonexistent', **more}


def chat_model(data, folder):
    """A copy of the needle model, whose tokens are bytes, with bos, eos and a template."""
    path = os.path.join(folder, 'chat.gguf')
    subprocess.run([sys.executable, os.path.join(HERE, '../cli/gguf_keys.py'),
                    os.path.join(data, 'needle.gguf'), path, 'tokenizer.ggml.bos_token_id=1',
                    'tokenizer.ggml.eos_token_id=2', 'tokenizer.chat_template=' + TEMPLATE],
                   check=True)
    return path


def word_model(data, folder):
    """A random model whose tokens are of several bytes, and of less than a character. None without
    NumPy."""
    path = os.path.join(folder, 'words.gguf')
    made = subprocess.run([sys.executable, os.path.join(data, '../tools/random_model.py'),
                           os.path.join(data, 'tokens/spm.gguf'), path], capture_output=True)
    return path if made.returncode == 0 else None


class Answer:
    """Status, headers and body of a response."""

    def __init__(self, response):
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    @property
    def json(self):
        return json.loads(self.body, object_pairs_hook=no_duplicates)

    @property
    def error(self):
        """Of OpenAI's shape, which is checked."""
        error = self.json['error']
        assert sorted(error) == ['code', 'message', 'param', 'type'] and error['message'], error
        return error

    @property
    def events(self):
        """Objects of a stream, which ends with [DONE] or an error."""
        blocks = self.body.decode().split('\n\n')
        assert blocks.pop() == '', self.body[-200:]
        assert all(block.startswith('data: ') for block in blocks), blocks
        texts = [block[len('data: '):] for block in blocks]
        out = [json.loads(text) for text in texts if text != '[DONE]']
        assert texts.count('[DONE]') == (0 if out and 'error' in out[-1] else 1), texts[-2:]
        return out


def no_duplicates(pairs):
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


class Server:
    """`tamis serve` at a free port."""

    def __init__(self, tamis, model, *options, device='reference', **variables):
        self.process = subprocess.Popen(
            [tamis, 'serve', '--model', model, '--device', device, '--port', '0', *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=environment(**variables))
        self.lines, self.told = [], threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()
        line = self.wait_for(r'at http://127\.0\.0\.1:(\d+)/$')
        self.port = int(re.search(r':(\d+)/$', line).group(1))
        self.name = os.path.basename(model)[:-len('.gguf')]

    def read(self):
        with self.process.stderr as stderr:
            for line in stderr:
                with self.told:
                    self.lines.append(line.rstrip('\n'))
                    self.told.notify_all()
        with self.told:
            self.lines.append(None)
            self.told.notify_all()

    def wait_for(self, pattern):
        """The first line of stderr that has the pattern."""
        def found():
            return next((line for line in self.lines
                         if line is None or re.search(pattern, line)), 0)
        with self.told:
            assert self.told.wait_for(lambda: found() != 0, LIMIT), (pattern, self.lines)
            assert found() is not None, (pattern, self.lines)
            return found()

    def signal(self, number):
        self.process.send_signal(number)

    def ended(self):
        """The exit status, and what stderr said."""
        code = self.process.wait(LIMIT)
        with self.told:
            assert self.told.wait_for(lambda: self.lines[-1:] == [None], LIMIT)
        return code, '\n'.join(self.lines[:-1])

    def close(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        """The server ends by itself, and has nothing to complain of."""
        try:
            self.signal(signal.SIGTERM)
            code, said = self.ended()
            assert code == 0 and said.endswith('the port is closed'), (code, said)
        finally:
            self.close()

    def connect(self):
        return http.client.HTTPConnection('127.0.0.1', self.port, timeout=LIMIT)

    def ask(self, path, body=None, method=None, headers=(), connection=None, **fields):
        """The answer to a POST of fields, or of a body as it is, else to a GET. The connection,
        where there is one, stays open."""
        if fields:
            body = {'model': self.name, **fields}
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        headers = {**(JSON if body is not None else {}), **dict(headers)}
        own = connection or self.connect()
        try:
            own.request(method or ('POST' if body is not None else 'GET'), path, body,
                        {name: value for name, value in headers.items() if value is not None})
            return Answer(own.getresponse())
        finally:
            if connection is None:
                own.close()

    def good(self, path, **fields):
        answer = self.ask(path, **fields)
        assert answer.status == 200, (fields, answer.body)
        return answer.json

    def text(self, prompt, **fields):
        """The greedy continuation of a prompt, or as the fields say."""
        fields = {'temperature': 0, **fields}
        return self.good(TEXT, prompt=prompt, **fields)['choices'][0]['text']

    def begin(self, path, **fields):
        """A stream of which the first event has come: its connection, and its response."""
        connection = self.connect()
        body = json.dumps({'model': self.name, 'stream': True, **fields})
        connection.request('POST', path, body, JSON)
        response = connection.getresponse()
        assert response.status == 200 and response.peek(1), response.status
        return connection, response

    def raw(self, data):
        """All that comes until the server closes the connection."""
        with socket.create_connection(('127.0.0.1', self.port), LIMIT) as end:
            end.sendall(data)
            return b''.join(iter(lambda: end.recv(65536), b''))

    def metrics(self, **options):
        answer = self.ask('/metrics', **options)
        assert answer.status == 200 and \
            answer.headers['Content-Type'] == 'text/plain; version=0.0.4', answer.headers
        return Metrics(answer.body.decode())

    def wait_until(self, holds):
        """The metrics, once they hold."""
        end = time.monotonic() + LIMIT
        while not holds(metrics := self.metrics()):
            assert time.monotonic() < end, metrics.values
        return metrics


class Metrics:
    """Prometheus' text format 0.0.4, read strictly."""

    def __init__(self, text):
        assert text.endswith('\n') and '\n\n' not in text
        self.types, self.values, helped, family = {}, {}, set(), None
        for line in text[:-1].split('\n'):
            kind, _, rest = line.partition(' ')
            if kind == '#':
                what, name, value = rest.split(' ', 2)
                if what == 'HELP':
                    assert name not in helped and value, line
                    helped.add(name)
                else:
                    assert what == 'TYPE' and name in helped and name not in self.types, line
                    assert value in ('counter', 'gauge', 'histogram'), line
                    self.types[name] = value
                    family = name
                continue
            self.take(line, family)
        assert helped == set(self.types)
        for name in (name for name, kind in self.types.items() if kind == 'histogram'):
            self.check_histogram(name)

    def take(self, line, family):
        match = re.fullmatch(r'([a-zA-Z_:][\w:]*)(?:\{((?:\w+="[^"\\\n]*",?)*)\})? (\S+)', line)
        assert match, line
        name, labels, value = match.groups()
        suffixes = ('_bucket', '_sum', '_count') if self.types[family] == 'histogram' else ('',)
        assert name in [family + suffix for suffix in suffixes], (name, family)
        key = name, tuple(re.findall(r'(\w+)="([^"]*)"', labels or ''))
        assert key not in self.values and float(value) >= 0, line
        self.values[key] = float(value)

    def check_histogram(self, name):
        buckets = [(float(labels[0][1]), value) for (of, labels), value in self.values.items()
                   if of == name + '_bucket']
        assert buckets == sorted(buckets) and buckets[-1][0] == float('inf'), buckets
        counts = [value for _, value in buckets]
        assert counts == sorted(counts) and counts[-1] == self[name + '_count'], buckets
        assert (self[name + '_sum'] > 0) == (counts[-1] > 0)

    def __getitem__(self, name):
        return self.values[name, ()]

    def answered(self, path, code):
        key = 'tamis_http_requests_total', (('path', path), ('code', str(code)))
        return self.values.get(key, 0)


@contextlib.contextmanager
def serving(*arguments, **options):
    server = Server(*arguments, **options)
    try:
        yield server
        server.end()
    finally:
        server.close()


class Case(unittest.TestCase):
    """Asks a server that is shared by all tests with these options."""
    options = ('--context', '512', '--running', '16')

    @classmethod
    def setUpClass(cls):
        cls.server = shared(*cls.options)

    def refused(self, status, pattern, path, fields=None, server=None, param=None, code=None,
                **ask):
        answer = (server or self.server).ask(path, **(fields or {}), **ask)
        self.assertEqual(answer.status, status, (fields or ask, answer.body))
        self.assertRegex(answer.error['message'], pattern)
        for name, wanted in (('param', param), ('code', code)):
            if wanted is not None:
                self.assertEqual(answer.error[name], wanted)
        return answer


def shared(*options, servers={}):
    """The server of these options, which lives as long as the tests."""
    if options not in servers:
        servers[options] = Server(given.tamis, given.model, *options)
        unittest.addModuleCleanup(servers[options].end)
    return servers[options]


def main(before=None):
    """Tests of the module that is run: TEST.py TAMIS DATA_FOLDER [unittest's options]."""
    given.tamis, given.data = sys.argv[1:3]
    with open(os.path.join(given.data, 'text.txt')) as file:
        given.book = file.read()
    with tempfile.TemporaryDirectory() as given.folder:
        given.model = chat_model(given.data, given.folder)
        if before is not None:
            before()
        result = unittest.main(argv=sys.argv[:1] + sys.argv[3:], exit=False).result
    for test, reason in result.skipped:
        print('skipped: %s: %s' % (test, reason))
    # Tests of a class that is skipped as a whole are not counted.
    done = result.testsRun - sum(isinstance(test, unittest.TestCase) for test, _ in result.skipped)
    if result.wasSuccessful() and done == 0:
        sys.exit(77)
    sys.exit(not result.wasSuccessful())
