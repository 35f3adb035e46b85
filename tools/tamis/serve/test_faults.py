#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""test_faults.py TAMIS DATA_FOLDER [--requests N] [--seed S]: `tamis serve` among clients that err, leave,
stall or are too many. N malformed requests (default 1500) come from the seed (default: the day's), which
is printed where one fails. Exit status 0 if all passed."""
import argparse
import collections
import contextlib
import datetime
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

TEMPLATE = ('{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}'
            '{% if add_generation_prompt %}<assistant>{% endif %}')
# What libmicrohttpd answers by itself, in HTML; then it closes the connection.
LIBRARY = {400, 413, 414, 431, 500, 501, 505}  # 500: a chunk's extension is too long
MANY = 500  # connections on which nothing comes

parser = argparse.ArgumentParser()
parser.add_argument('tamis')
parser.add_argument('data')
parser.add_argument('--requests', type=int, default=1500)
parser.add_argument('--seed', type=int, default=datetime.date.today().toordinal())
options = parser.parse_args()
folder = tempfile.TemporaryDirectory()
needle = os.path.join(options.data, 'needle.gguf')
tiny = os.path.join(folder.name, 'tiny.gguf')
with open(options.tamis, 'rb') as binary:
    instrumented = re.search(rb'__[at]san_init', binary.read()) is not None
slow = 10 if instrumented else 1  # how much longer things may take


def write_model(source, target, template, context):
    """A model file with a chat template and another context."""
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    with open(source, 'rb') as file:
        data = bytearray(file.read())
    n_tensors, n_keys = struct.unpack_from('<QQ', data, 8)

    def text(at):
        n, = struct.unpack_from('<Q', data, at)
        return bytes(data[at + 8:at + 8 + n]), at + 8 + n

    def behind(kind, at):
        if kind == 8:
            return text(at)[1]
        if kind != 9:
            return at + sizes[kind]
        kind, n = struct.unpack_from('<IQ', data, at)
        at += 12
        for _ in range(n):
            at = behind(kind, at)
        return at
    at = 24
    for _ in range(n_keys):
        name, at = text(at)
        if name.endswith(b'.context_length'):
            struct.pack_into('<I', data, at + 4, context)
        at = behind(struct.unpack_from('<I', data, at)[0], at + 4)
    keys_end = at
    for _ in range(n_tensors):
        at = text(at)[1]
        at += 4 + 8 * struct.unpack_from('<I', data, at)[0] + 12
    key = b'tokenizer.chat_template'
    head = data[:8] + struct.pack('<QQ', n_tensors, n_keys + 1) + data[24:keys_end]
    head += struct.pack('<Q', len(key)) + key + struct.pack('<IQ', 8, len(template))
    head += template.encode() + data[keys_end:at]
    with open(target, 'wb') as file:
        file.write(head + bytes(-len(head) % 32) + data[(at + 31) // 32 * 32:])


# ---------------------------------------------------------------- the server

class Server:
    """With `with`: at its end the server must stop by itself, with status 0 and nothing odd said."""

    def __init__(self, model, *flags, port=0, ends=True):
        self.flags = ['--model', model, '--device', 'reference', '--port', str(port), *flags]
        self.ends = ends

    def __enter__(self):
        self.log = tempfile.NamedTemporaryFile('w+', dir=folder.name, delete=False)
        self.process = subprocess.Popen([options.tamis, 'serve', *self.flags], stderr=self.log,
                                        stdin=subprocess.DEVNULL)
        wait(lambda: re.search(r'at http://.*:(\d+)/', self.said()) or self.process.poll() is not None,
             60, self.said)
        found = re.search(r'at http://.*:(\d+)/', self.said())
        assert found, self.said()
        self.port = int(found[1])
        return self

    def __exit__(self, kind, error, trace):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        finally:
            self.process.kill()
        if kind is not None:
            print(self.said()[-8000:], file=sys.stderr)
        elif self.ends:
            assert code == 0, (code, self.said()[-8000:])
        assert not re.search('Sanitizer|runtime error|Fatal', self.said()), self.said()[-8000:]

    def said(self):
        with open(self.log.name, encoding='utf-8', errors='replace') as file:
            return file.read()

    def connect(self, **settings):
        return Client(self.port, **settings)

    def ask(self, path, body=None, timeout=60):
        """Status and body of a whole answer."""
        connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=timeout * slow)
        try:
            if body is None:
                connection.request('GET', path)
            else:
                connection.request('POST', path, json.dumps(body),
                                   {'Content-Type': 'application/json'})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def complete(self, prompt, tokens=8, **more):
        status, body = self.ask('/v1/completions', dict(prompt=prompt, max_tokens=tokens,
                                                        temperature=0, **more))
        assert status == 200, (status, body)
        return json.loads(body)['choices'][0]['text']

    def metric(self, name):
        return int(re.search(r'^tamis_%s (\d+)$' % name, self.ask('/metrics')[1].decode(), re.M)[1])

    def rests(self, names=('requests_running', 'requests_waiting', 'pages_held'), seconds=3):
        """Nothing runs, waits or, unless prompts are kept, holds pages any more."""
        def state():
            return [self.metric(name) for name in names]
        wait(lambda: not any(state()), seconds, state)

    def resident(self):
        """Bytes."""
        with open('/proc/%d/status' % self.process.pid, encoding='ascii') as file:
            return 1024 * int(re.search(r'VmRSS:\s+(\d+)', file.read())[1])


def wait(condition, seconds, why=lambda: ''):
    end = time.monotonic() + seconds * slow
    while not condition():
        assert time.monotonic() < end, ('in vain', why())
        time.sleep(0.01)


class Client:
    """A connection on which bytes are sent as they are."""

    def __init__(self, port, room=None):
        self.socket = socket.socket()
        if room:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        self.socket.settimeout(30 * slow)
        self.socket.connect(('127.0.0.1', port))
        self.got = bytearray()

    def send(self, data):
        with contextlib.suppress(ConnectionError):  # the server may have closed it, and answered
            self.socket.sendall(data)

    def read_to(self, end):
        """Reads until a text has come."""
        while end not in self.got:
            more = self.socket.recv(65536)
            assert more, ('closed before', end, self.got[-400:])
            self.got += more
        return self.got

    def rest(self, silence=None):
        """All that comes until the server closes, or has been silent for some seconds."""
        if silence is not None:
            self.socket.settimeout(silence)
        try:
            while more := self.socket.recv(65536):
                self.got += more
            return True
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        finally:
            self.socket.settimeout(30 * slow)

    def close(self):
        self.socket.close()

    def reset(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        self.socket.close()

    def half(self):
        """Ends its own sending; the server sees a client that leaves."""
        self.socket.shutdown(socket.SHUT_WR)
        self.rest()
        self.socket.close()


def request(body, path='/v1/completions', headers=''):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (f'POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}'
            f'Content-Length: {len(data)}\r\n\r\n').encode() + data


# ---------------------------------------------------------------- answers

class Odd(Exception):
    """An answer that is none."""


def chunks(data):
    """The body of chunks, and what follows; None: it is not whole."""
    body = b''
    while True:
        line, end, data = data.partition(b'\r\n')
        if not end:
            return None, b''
        n = int(line.split(b';')[0], 16)
        if len(data) < n + 2:
            return None, b''
        if n == 0:
            return body, data[2:]
        body, data = body + data[:n], data[n + 2:]


def parsed(body):
    try:
        return json.loads(body)
    except ValueError:
        raise Odd('no JSON', body[:300]) from None


def check_answer(status, headers, body):
    kind = headers.get('content-type', '')
    if status >= 400:
        if not 400 <= status < 500 and status != 503:
            raise Odd('status', status, body[:300])
        error = parsed(body)['error']
        if sorted(error) != ['code', 'message', 'param', 'type'] or not error['message']:
            raise Odd('error', body[:300])
    elif kind == 'application/json':
        if 'error' in parsed(body):
            raise Odd('error with status', status, body[:300])
    elif kind == 'text/event-stream':
        events = body.decode().split('\n\n')
        for event in events[:-2]:
            parsed(event.removeprefix('data: '))
        if events[-2:] != ['data: [DONE]', '']:
            raise Odd('stream', body[-300:])
    elif status not in (200, 204):
        raise Odd('status', status, body[:300])


def check_answers(data, head, cut):
    """The statuses of all answers. `head`: to HEAD, `cut`: the client has left before the end."""
    statuses = []
    while data:
        top, end, data = data.partition(b'\r\n\r\n')
        found = re.match(rb'HTTP/1\.[01] (\d{3}) [^\r\n]*', top)
        if not found or not end:
            if cut and not end:
                break
            raise Odd('no HTTP', top[:300])
        status = int(found[1])
        lines = top.decode('latin-1').split('\r\n')[1:]
        headers = {name.lower(): value for name, value in (line.split(': ', 1) for line in lines)}
        body = b''
        # The library's own answer, before which 0.9.75 sends the head twice for a bad Content-Length.
        if status in LIBRARY and 'content-type' not in headers and headers.get('connection') == 'close':
            statuses.append(status)
            break
        if status >= 200 and not head:
            if headers.get('transfer-encoding') == 'chunked':
                body, data = chunks(data)
            elif 'content-length' in headers:
                n = int(headers['content-length'])
                body, data = (data[:n] if len(data) >= n else None), data[n:]
            else:
                body, data = data, b''
            if body is None:
                if cut:
                    break
                raise Odd('not whole', top[:300])
            check_answer(status, headers, body)
        statuses.append(status)
    return statuses


# ---------------------------------------------------------------- malformed requests

WHOLE = [('/v1/completions', {'prompt': 'And he said', 'max_tokens': 6, 'temperature': 0.5, 'top_p': 0.9,
                              'top_k': 5, 'min_p': 0.1, 'seed': 7, 'n': 2, 'stop': ['x', 'yz'],
                              'logprobs': 2, 'presence_penalty': 0.5, 'frequency_penalty': -0.5,
                              'logit_bias': {'3': 5, '70': -100}, 'echo': False, 'best_of': 1}),
         ('/v1/completions', {'prompt': [[1, 2, 3], [4, 5]], 'max_tokens': 4, 'stream': True,
                              'stream_options': {'include_usage': True}, 'reads': True}),
         ('/v1/chat/completions', {'model': 'tiny', 'messages': [
             {'role': 'system', 'content': 'Be brief'},
             {'role': 'user', 'content': [{'type': 'text', 'text': 'a'},
                                          {'type': 'document', 'text': 'bcd'}]},
             {'role': 'assistant', 'content': 'No'}, {'role': 'user', 'content': 'Why'}],
             'max_completion_tokens': 5, 'logprobs': True, 'top_logprobs': 3, 'tools': [],
             'response_format': {'type': 'text'}, 'user': 'me', 'metadata': {'a': 'b'}}),
         ('/v1/chat/completions', {'messages': [{'role': 'user', 'content': 'Hi'}], 'stream': True,
                                   'max_tokens': 3, 'exact': True}),
         ('/tokenize', {'content': 'In the beginning', 'add_special': True}),
         ('/detokenize', {'tokens': [1, 2, 3, 50]})]
# Texts of JSON, good and bad, that stand where another value stood.
VALUES = ['null', 'true', 'false', '0', '-0', '-1', '1e999', '-1e999', '1e-999', '0.5', '2147483647',
          '2147483648', '4294967296', '9007199254740993', '18446744073709551616', '1' * 400, '01', '+1',
          '1.', '.5', '1e', 'NaN', 'Infinity', '""', '" "', '"a"', r'"\ud800"', r'"\udc00\ud800"',
          r'"\ud83d\ude00"', r'"\u0000"', r'"a\u0000b"', r'"\x"', r'"\u12"', '"\x00"', '"\x01"', '"\x7f"',
          '"\ufeff"', '"\u202e"', '"' + 'a' * 3000 + '"', '"' + '\\' * 3001 + '"', '[]', '{}', '[[]]',
          '[null]', '[1, "a"]', '[-1]', '[1e9]', '[98]', '[' * 900 + ']' * 900, '[' * 5000, '{"a":' * 2000,
          '[' + ','.join(['1'] * 5000) + ']', '[' + ','.join(['"a"'] * 40) + ']', '{"": 1}',
          '{"a": 1, "a": 2}', '{"role": "user"}', '{"type": "text"}', '{"type": "image_url"}',
          '{' + ','.join('"%d": 1' % i for i in range(2000)) + '}', '', ',', ':', '"', '[1,]', '{"a":1,}',
          "'a'", '/**/1', '\ufeff1', '\u00a01', 'tru', 'nul']
NAMES = ['model', 'messages', 'prompt', 'stream', 'stream_options', 'stop', 'seed', 'temperature',
         'top_p', 'top_k', 'min_p', 'max_tokens', 'max_completion_tokens', 'presence_penalty',
         'frequency_penalty', 'logit_bias', 'logprobs', 'top_logprobs', 'n', 'exact', 'reads', 'tools',
         'functions', 'tool_choice', 'function_call', 'response_format', 'modalities', 'echo', 'best_of',
         'user', 'metadata', 'content', 'add_special', 'tokens', 'suffix', '', 'a' * 41, '\u00e9' * 30]


def places(value, at=()):
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) \
        if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, at + (key,))


def another_value(rng, body):
    """A value, of any depth, is another one."""
    body = json.loads(json.dumps(body))
    at = rng.choice([place for place in places(body) if place])
    holder = body
    for key in at[:-1]:
        holder = holder[key]
    holder[at[-1]] = 'HERE'
    return json.dumps(body).replace('"HERE"', rng.choice(VALUES)).encode('utf-8', 'surrogatepass')


def another_field(rng, body):
    """One more field, which may stand there already."""
    text = json.dumps(body)
    field = json.dumps(rng.choice(NAMES)) + ': ' + rng.choice(VALUES)
    return (text[:-1] + ', ' + field + '}' if rng.random() < 0.5 else
            '{' + field + ', ' + text[1:]).encode('utf-8', 'surrogatepass')


def mutate(rng, data):
    """Bytes are deleted, doubled, flipped, put in, or cut off."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        at, n = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 8, 100))
        way = rng.randrange(6)
        if way == 0:
            del data[at:at + n]
        elif way == 1:
            data[at:at] = data[at:at + n]
        elif way == 2 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif way == 3:
            data[at:at] = rng.randbytes(n)
        elif way == 4:
            data[at:at] = rng.choice(b'\0 \r \n \xff \xc3 { } [ ] " \\ : , 0 - e'.split(b' '))
        elif rng.random() < 0.2:
            del data[at:]
    return bytes(data)


def bad_json(rng):
    path, body = rng.choice(WHOLE)
    way = rng.randrange(4)
    if way == 0:
        data = another_value(rng, body)
    elif way == 1:
        data = another_field(rng, body)
    elif way == 2:
        data = mutate(rng, json.dumps(body).encode())
    else:
        data = mutate(rng, another_value(rng, body))
    return request(data, path)


def bad_length(rng, body):
    n = len(body)
    length = rng.choice([0, n - 1, n + 1, n + 100, -n, '+%d' % n, '0x%x' % n, '%d,%d' % (n, n), '',
                         ' ', '%d ' % n, '0' * 30 + str(n), '1e1', 10 ** 19, 2 ** 64, 2 ** 64 + n, 10 ** 40,
                         5 * 10 ** 6, 10 ** 8, '%d\r\nContent-Length: %d' % (n, rng.choice((n, 3))),
                         '%d\r\nTransfer-Encoding: chunked' % n, '%d\r\nContent-Length : 3' % n,
                         '%d\r\nTransfer-Encoding:\x0bchunked' % n])
    return (f'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n'
            f'Content-Length: {length}\r\n\r\n').encode() + body


def bad_chunks(rng, body):
    n = len(body)
    coding = rng.choice(['chunked'] * 6 + ['Chunked', 'xchunked', 'gzip, chunked', 'chunked, chunked',
                                           'chunked\r\nTransfer-Encoding: chunked', 'identity', '', '\t'])
    size = rng.choice(['%x' % n, '%X' % n, '0%x' % n, 'zz', '-1', '', ' %x' % n, '%x ' % n, 'f' * 16,
                       'f' * 17, '1' + '0' * 15, '%x' % (n + 5), '%x' % (n - 5), '%x;a=b' % n,
                       '%x;' % n + 'a' * rng.choice((10, 5000, 60000)), '0x%x' % n, '%x\n' % n, '0'])
    tail = rng.choice([b'\r\n0\r\n\r\n', b'0\r\n\r\n', b'\r\n', b'\r\n0\r\nA: b\r\n\r\n', b'\n0\n\n', b'',
                       b'\r\n0\r\n' + b'A: b\r\n' * 9000, b'\r\n0' + b'0' * 5000])
    return (f'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n'
            f'Transfer-Encoding: {coding}\r\n\r\n{size}\r\n').encode() + body + tail


def bad_head(rng, body):
    n = rng.choice((1, 10, 1000, 30000, 70000))
    method = rng.choice(['POST'] * 8 + ['', 'post', 'PUT', 'HEAD', 'TRACE', 'CONNECT', 'P\0ST', 'A' * n, ' ',
                                        'OPTIONS', 'DELETE', '\xff'])
    path = rng.choice(['/v1/completions'] * 8 + ['', '*', '/' * n, '/' + 'a' * n, '/%00', '/%', '/%zz',
                                                 '/../../etc/passwd', '/v1/models/' + 'a' * n, '/?' + 'a&' * n,
                                                 'http://localhost/health', '/v1/completions#a', '\xff'])
    version = rng.choice(['HTTP/1.1'] * 8 + ['HTTP/1.0', 'HTTP/0.9', 'HTTP/2.0', 'HTTP/9.9', 'HTTP/', 'HTTPS/1.1',
                                             '', 'HTTP/1.1.1', 'HTTP/1.' + '1' * n, 'http/1.1', 'HTTP/1.1 x'])
    line = rng.choice(['Content-Type: application/json'] * 6 +
                      ['Content-Type: text/plain', 'A: ' + 'b' * n, 'a' * n + ': b', 'A', ': b', ' a: b',
                       'A: b\r\n c', 'A : b', 'A:\0', '\0: b', 'A: b\rC: d', 'Host: localhost', 'Host: evil.example',
                       'Origin: http://evil.example', 'Origin: null\r\nOrigin: a', 'Authorization: ' + 'b' * n,
                       'Expect: 100-continue', 'Expect: ' + 'a' * n, 'Connection: close', 'Connection: upgrade, ' * 9,
                       'Upgrade: h2c\r\nConnection: Upgrade', 'Range: bytes=0-', 'Cookie: ' + 'a=b; ' * n,
                       'A: b\r\n' * n + 'C: d', 'X-\xff: \xfe'])
    end = rng.choice(['\r\n'] * 8 + ['\n', '\r', '\r\r\n', '\n\r'])
    head = end.join([f'{method} {path} {version}', 'Host: localhost', line,
                     'Content-Type: application/json', f'Content-Length: {len(body)}', '', ''])
    return head.encode('latin-1') + body


def bad_http(rng):
    path, body = rng.choice(WHOLE)
    whole, way = request(body, path), rng.randrange(8)
    if way == 0:
        return rng.randbytes(rng.choice((1, 10, 100, 5000)))
    if way == 1:
        return whole[:rng.randrange(len(whole))]
    if way == 2:
        return bad_length(rng, json.dumps(WHOLE[0][1]).encode())
    if way == 3:
        return bad_chunks(rng, json.dumps(WHOLE[0][1]).encode())
    if way in (4, 5):
        return bad_head(rng, json.dumps(WHOLE[0][1]).encode())
    if way == 6:
        return whole + mutate(rng, whole) * rng.randrange(1, 4)
    return mutate(rng, whole)


def play(server, data, whole):
    """Sends bytes, reads what comes. Statuses; 0: the connection was closed without an answer."""
    client, cut = server.connect(), False
    client.send(data)
    if whole:
        client.read_to(b'\r\n\r\n')
    if not client.rest(0.02):
        cut = True
        with contextlib.suppress(OSError):
            client.socket.shutdown(socket.SHUT_WR)
        if not client.rest():
            raise Odd('the connection stays open')
    client.close()
    return check_answers(bytes(client.got), data.startswith(b'HEAD '), cut) or [0]


def malformed():
    """Requests that are none."""
    seen = collections.Counter()
    with Server(tiny, '--context', '256', '--name', 'tiny', '--timeout', '20') as server:
        good = server.complete('And he said', 12)
        for path, body in WHOLE:
            status, answer = server.ask(path, body)
            assert status == 200, (body, answer)
        for i in range(options.requests):
            rng = random.Random(options.seed * 1000003 + i)
            whole = i % 2 == 0
            data = bad_json(rng) if whole else bad_http(rng)
            if whole:
                data = data.replace(b'localhost\r\n', b'localhost\r\nConnection: close\r\n', 1)
            try:
                seen.update(play(server, data, whole))
            except (Odd, AssertionError, ValueError, KeyError, IndexError, OSError):
                print('--seed', options.seed, 'request', i, data[:600], file=sys.stderr)
                raise
            if i % 100 == 99:
                assert server.complete('And he said', 12) == good, i
        server.rests(('requests_running', 'requests_waiting'))
    return ' '.join('%s: %d,' % (code or 'closed', count) for code, count in sorted(seen.items()))


def framing():
    """Where two readers could see two ends of a request, it is refused and the connection closed."""
    body = b'{"prompt":"a","max_tokens":1}'
    smuggled = b'GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n'
    heads = ['Content-Length: 29\r\nTransfer-Encoding: chunked', 'Content-Length: 29\r\nContent-Length: 4',
             'Content-Length: 29\r\nHost: localhost', 'Transfer-Encoding: gzip, chunked',
             'Transfer-Encoding: chunked\r\nTransfer-Encoding: identity', 'Transfer-Encoding: xchunked']
    with Server(tiny, '--name', 'tiny') as server:
        for head in heads:
            client = server.connect()
            client.send((f'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n'
                         f'Content-Type: application/json\r\n{head}\r\n\r\n').encode() + body + smuggled)
            assert client.rest(), head
            client.close()
            assert check_answers(bytes(client.got), False, False) == [400], (head, client.got)


# ---------------------------------------------------------------- clients that leave

def leave(server, name):
    """A client that is to leave by one of three ways."""
    client = server.connect()
    return client, {'close': client.close, 'reset': client.reset, 'half': client.half}[name]


def hang_up_early(server, way):
    """Before a request has come whole."""
    whole = request({'prompt': 'And he said', 'max_tokens': 400})
    head = whole.index(b'\r\n\r\n') + 4
    for n in (0, 1, head // 2, head, head + 1, len(whole) - 1):
        client, go = leave(server, way)
        client.send(whole[:n])
        time.sleep(0.01)
        go()


def hang_up_late(server, way, prompt):
    """Within a long prompt, in the midst of a stream, at once behind the request, within an answer."""
    for stage in ('prompt', 'stream', 'sent', 'answer'):
        before = server.metric('requests_hung_up_total')
        client, go = leave(server, way)
        if stage == 'prompt':
            client.send(request({'prompt': prompt, 'max_tokens': 2}))
            wait(lambda: server.metric('requests_running') == 1, 5)
        elif stage == 'stream':
            client.send(request({'prompt': 'And', 'max_tokens': 15000, 'temperature': 0, 'stream': True}))
            client.read_to(b'data: ')
        else:
            client.send(request({'prompt': 'And', 'max_tokens': 15000, 'temperature': 0}))
        if stage == 'answer':
            wait(lambda: server.metric('requests_running') == 1, 5)
        go()
        if stage != 'sent':  # which the server may never have seen
            wait(lambda: server.metric('requests_hung_up_total') > before, 3, lambda: stage)
        server.rests()


def hang_up_queued(server, way):
    """While another one's answer runs."""
    first = server.connect()
    first.send(request({'prompt': 'And', 'max_tokens': 15000, 'temperature': 0, 'stream': True}))
    first.read_to(b'data: ')
    for stream in (False, True):
        client, go = leave(server, way)
        client.send(request({'prompt': 'The', 'max_tokens': 5, 'stream': stream}))
        wait(lambda: server.metric('requests_waiting') == 1, 5)
        go()
        wait(lambda: server.metric('requests_waiting') == 0, 3)
    assert server.metric('requests_running') == 1
    first.close()
    server.rests()


def hang_ups():
    """Clients that leave, at every stage and in every way."""
    prompt = 'and he went unto them, ' * (20 if instrumented else 60)
    with Server(needle, '--running', '1', '--prefix-sharing', 'off') as server:
        good = server.complete('In the beginning')
        for way in ('close', 'reset', 'half'):
            hang_up_early(server, way)
            hang_up_late(server, way, prompt)
            hang_up_queued(server, way)
            assert server.complete('In the beginning') == good, way
        wait(lambda: server.metric('connections') == 1, 3)


# ---------------------------------------------------------------- too many, too slow

def many():
    """Connections on which nothing comes, and more than there may be."""
    with Server(tiny, '--connections', str(MANY + 10), '--timeout', '3') as server:
        good = server.complete('And he said')
        idle = [server.connect() for _ in range(MANY)]
        for _ in range(20):
            assert server.complete('And he said') == good
        idle += [server.connect() for _ in range(40)]
        late = server.connect()
        late.send(request({'prompt': 'And he said', 'max_tokens': 8, 'temperature': 0}))
        assert not late.rest(0.1) and not late.got, 'more connections than there may be'
        for client in idle[:100]:
            client.close()
        assert json.dumps(good).encode() in late.read_to(b'"finish_reason"')
        late.close()
        for client in idle[100:]:
            assert client.rest(8 * slow), 'a connection without a request stays open'
            client.close()
        wait(lambda: server.metric('connections') == 1, 3)


def trickling():
    """A request that comes byte by byte does not live on by that."""
    head = b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n'
    starts = [b'', b'GET /', head, head + b'A: ', head + b'Content-Type: application/json\r\n'
              b'Content-Length: 1000\r\n\r\n', head + b'Content-Length: 1000\r\n\r\n']
    with Server(tiny, '--timeout', '1') as server:
        clients, begun = [server.connect() for _ in starts], time.monotonic()
        kept = http.client.HTTPConnection('127.0.0.1', server.port)
        for client, start in zip(clients, starts):
            client.send(start)
        while clients and time.monotonic() < begun + 4 * slow:
            for client in clients[:]:
                client.send(b'a')
                if client.rest(0.01):
                    assert time.monotonic() > begun + 0.9
                    clients.remove(client)
            if time.monotonic() < begun + 1.8:  # one that asks now and then is not closed
                kept.request('GET', '/health')
                assert kept.getresponse().read() == b'{"status":"ok"}'
            time.sleep(0.1)
        assert not clients, [client.got for client in clients]


def bodies():
    """The bodies of all together have a bound."""
    size = 40 << 20
    with Server(tiny, '--body-limit', '64M') as server:
        clients = [server.connect() for _ in range(6)]
        for client in clients:
            client.send(b'POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n'
                        b'Content-Length: %d\r\n\r\n' % (size + 1))
            client.send(bytes(size))
        clients[-1].send(b' ')
        assert b' 503 ' in clients[-1].read_to(b'"busy"')
        for client in clients:
            client.close()
        wait(lambda: server.metric('connections') == 1, 3)
        assert server.complete('And he said')


def answers():
    """So have answers that nobody reads, with the bodies."""
    with Server(needle, '--body-limit', '16M') as server:
        body, clients = {'tokens': [1] * (4 << 20)}, []  # each an escape of JSON's
        asked = request(body, '/detokenize')
        while not clients or b' 200 ' in clients[-1].got:
            clients.append(server.connect(room=4096))
            clients[-1].send(asked)
            clients[-1].read_to(b'\r\n\r\n')
        size = int(re.search(rb'Content-Length: (\d+)', clients[0].got)[1])
        assert size * len(clients[1:]) in range(200 << 20, (256 << 20) + 1), (len(clients), size)
        clients[-1].read_to(b'"busy"')
        assert server.complete('And he said')
        for client in clients:
            client.close()
        wait(lambda: server.metric('connections') == 1, 3)
        last = server.connect()
        last.send(asked)
        last.read_to(b' 200 ')
        last.close()
        body['tokens'].append(1)
        last = server.connect()
        last.send(request(body, '/detokenize'))
        last.read_to(b'more than 4194304 bytes')
        last.close()


def stall(server, tokens, n, top):
    """A client with little room that reads nothing of a long stream."""
    client = server.connect(room=4096)
    client.send(request({'messages': [{'role': 'user', 'content': 'a'}], 'max_tokens': tokens, 'n': n,
                         'stream': True, 'logprobs': True, 'top_logprobs': top},
                        '/v1/chat/completions'))
    return client


def slow_readers():
    """Clients that read nothing for a while, or never."""
    with Server(tiny, '--timeout', '3', '--running', '16', '--prefix-sharing', 'off') as server:
        good, begun = server.complete('And he said', 200), time.monotonic()
        for _ in range(5):
            server.complete('And he said', 200)
        usual, before = time.monotonic() - begun, server.resident()
        clients, begun = [stall(server, 100, 2, 5) for _ in range(8)], time.monotonic()
        for _ in range(5):
            assert server.complete('And he said', 200) == good
        assert time.monotonic() - begun < (10 * usual + 1) * slow, 'a slow reader delays others'
        server.rests()
        for client in clients[:4]:
            client.read_to(b'data: [DONE]\n\n')
            assert client.got.count(b'"finish_reason":"length"') == 2, client.got[-500:]
            client.close()
        assert instrumented or server.resident() < before + (64 << 20)
        for client in clients[4:]:  # cut, unless the system had room for all of it
            client.close()
        never = stall(server, 300, 16, 20)
        server.rests(seconds=20)
        wait(lambda: server.metric('connections') == 1, 8, lambda: server.metric('connections'))
        assert never.rest() and b'[DONE]' not in never.got
        never.close()


def unread():
    """A client for whom too much of a stream waits is given up, long before the timeout."""
    with Server(tiny, '--running', '16', '--prefix-sharing', 'off', '--cache-tokens', '60000') as server:
        before, good = server.resident(), server.complete('And he said', 200)
        client = stall(server, 2000, 16, 20)
        wait(lambda: server.metric('requests_running') == 16, 5)
        server.rests(seconds=30)
        assert server.metric('requests_hung_up_total') == 1
        assert instrumented or server.resident() < before + (64 << 20)
        assert server.complete('And he said', 200) == good
        assert client.rest() and b'[DONE]' not in client.got
        client.close()


def whole_and_stream():
    """A whole answer tells the probabilities that its stream tells, and keeps nobody waiting for them."""
    body = {'messages': [{'role': 'user', 'content': 'a'}], 'max_tokens': 400, 'n': 4, 'temperature': 0,
            'logprobs': True, 'top_logprobs': 20}
    with Server(tiny, '--cache-tokens', '20000') as server:
        whole = json.loads(server.ask('/v1/chat/completions', body)[1])['choices']
        stream = server.ask('/v1/chat/completions', dict(body, stream=True))[1].decode()
        told = [[] for _ in whole]
        for event in stream.split('\n\n')[:-2]:
            for choice in json.loads(event.removeprefix('data: '))['choices']:
                told[choice['index']] += (choice['logprobs'] or {'content': []})['content']
        assert len(told[0]) == 400 and told == [choice['logprobs']['content'] for choice in whole]


# ---------------------------------------------------------------- many at once

def answers_of(server, prompts, tokens, leaving=0.0):
    """What each of many clients at once is answered; None of one that left."""
    out, rng = [None] * len(prompts), random.Random(options.seed)
    leavers = {i for i in range(len(prompts)) if rng.random() < leaving}
    pauses = [rng.random() * 0.1 for _ in prompts]

    def one(i):
        if i not in leavers:
            out[i] = server.complete(prompts[i], tokens)
            return
        client = server.connect()
        client.send(request({'prompt': prompts[i], 'max_tokens': tokens, 'stream': i % 2 == 0}))
        time.sleep(pauses[i])
        (client.reset if i % 3 else client.close)()
    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((out[i] is None) == (i in leavers) for i in range(len(prompts))), out
    return out


def apart():
    """No text of one answer in another, also where answers have to make room."""
    words = 'And the people went up out of the land with all that they had'.split()
    prompts = ['%s %d: %s' % (words[i % 14], i, ' '.join(words[i % 7:] + words[:i % 5])) for i in range(30)]
    tokens, alone = 200 if slow == 1 else 120, None
    for flags in (['--running', '30'], ['--running', '3', '--cache-tokens', '410', '--host-memory', '1K'],
                  ['--running', '3', '--cache-tokens', '410', '--host-memory', '64M', '--prefix-sharing', 'off']):
        with Server(tiny, '--context', '400', *flags) as server:
            alone = alone or [server.complete(prompt, tokens) for prompt in prompts]
            assert len(set(alone)) > 20, alone
            for leaving in (0.4,) if '3' in flags else (0, 0.4):
                for i, answer in enumerate(answers_of(server, prompts, tokens, leaving)):
                    assert answer is None or answer == alone[i], (flags, i, answer, alone[i])
            if '3' in flags:
                assert server.metric('preemptions_total') > 0, flags
            server.rests(('requests_running', 'requests_waiting'))


# ---------------------------------------------------------------- ends

def killed():
    """After kill -9 the port is there at once."""
    port = 0
    for _ in range(3):
        with Server(tiny, port=port, ends=False) as server:
            port = server.port
            clients = [server.connect() for _ in range(10)]
            for client in clients:
                client.send(request({'prompt': 'a', 'max_tokens': 3000, 'temperature': 0, 'stream': True}))
            clients[0].read_to(b'data: ')
            server.process.kill()
            server.process.wait()
            for client in clients:
                assert client.rest()
                client.close()
    with Server(tiny, port=port) as server:
        assert server.complete('a')


def stopped():
    """SIGTERM while 20 answers run: they end, or are told why not; the port is closed at once."""
    for drain, tokens in (('60', 150), ('0', 15000), ('0', 15000)):
        with Server(needle, '--running', '20', '--drain', drain, '--cache-tokens', '200000') as server:
            clients = [server.connect() for _ in range(20)]
            for i, client in enumerate(clients):
                client.send(request({'prompt': 'And %d' % i, 'max_tokens': tokens, 'temperature': 0,
                                     'stream': True}))
            clients[0].read_to(b'data: ')
            wait(lambda s=server: s.metric('requests_running') == 20, 20)
            idle = server.connect()
            server.process.send_signal(signal.SIGTERM)
            wait(lambda s=server: 'the port is closed' in s.said(), 10)
            try:
                server.connect()
                raise AssertionError('the port is open')
            except ConnectionRefusedError:
                pass
            for client in clients:
                client.rest(60 * slow)
                end = b'data: [DONE]\n\n' if drain == '60' else b'"code":"stopping"}}\n\n'
                assert client.got.endswith(end + b'\r\n0\r\n\r\n'), (drain, client.got[-300:])
                client.close()
            assert idle.rest(20 * slow)
            idle.close()
            server.process.wait(20 * slow)


# ---------------------------------------------------------------- stores that fail

def load(server, fail):
    """Chats with documents from several clients, while the store fails: all are answered, soon."""
    good, wrong, longest, stop = server.complete('And he said'), [], [0], threading.Event()

    def ask(i):
        rng = random.Random(i)
        while not stop.is_set() and not wrong:
            parts = [{'type': 'document', 'text': chr(97 + rng.randrange(20)) * 150} for _ in range(3)]
            begun = time.monotonic()
            status, body = server.ask('/v1/chat/completions', {'max_tokens': 3, 'messages': [
                {'role': 'user', 'content': parts + [{'type': 'text', 'text': 'Why'}]}]})
            longest[0] = max(longest[0], time.monotonic() - begun)
            if status != 200:
                wrong.append(body)
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    try:
        wait(lambda: server.metric('chunks_found_total') > 20, 10)
        fail()
        time.sleep(1)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong, wrong
    assert longest[0] < 5 * slow, longest
    assert server.complete('And he said') == good


def broken_folder():
    """A store whose folder is gone."""
    path = os.path.join(folder.name, 'store')

    def fail():
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError), open(path, 'w', encoding='ascii'):
            pass
    with Server(tiny, '--store', path, '--unchecked', '--store-prefixes', 'on', '--store-memory', '200K') as server:
        load(server, fail)


def full_folder():
    """A store on a disk that is full, where one may be mounted."""
    path = os.path.join(folder.name, 'disk')
    os.mkdir(path)
    if subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=512k', 'none', path], check=False,
                      stderr=subprocess.DEVNULL).returncode != 0:
        return 'skipped: no right to mount'
    try:
        def fail():
            with contextlib.suppress(OSError), open(path + '/rest', 'wb', buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        with Server(tiny, '--store', path + '/store', '--unchecked', '--store-prefixes', 'on') as server:
            load(server, fail)
    finally:
        subprocess.run(['umount', path], check=True)
    return ''


def dead_redis():
    """A Redis server that is killed, and comes again."""
    if shutil.which('redis-server') is None:
        return 'skipped: no redis-server'
    path = os.path.join(folder.name, 'redis.sock')
    start = ['redis-server', '--port', '0', '--unixsocket', path, '--save', '', '--dir', folder.name]
    servers = []

    def begin():
        servers.append(subprocess.Popen(start, stdout=subprocess.DEVNULL))
        wait(lambda: os.path.exists(path), 10)

    def fail():
        servers[-1].kill()
        servers[-1].wait()
        time.sleep(1)
        os.unlink(path)
        begin()
    try:
        begin()
        with Server(tiny, '--redis', path, '--unchecked', '--store-prefixes', 'on', '--store-memory', '200K') as server:
            load(server, fail)
    finally:
        for one in servers:
            one.kill()
            one.wait()
    return ''


write_model(os.path.join(options.data, 'tiny.gguf'), tiny, TEMPLATE, 4096)
for test in (malformed, framing, hang_ups, many, trickling, slow_readers, unread, bodies, answers,
             whole_and_stream, apart, killed, stopped, broken_folder, full_folder, dead_redis):
    if test in (bodies, answers) and instrumented:
        continue  # takes a quarter of a gigabyte, and shadows
    start = time.monotonic()
    told = test()
    print('%-14s %5.1f s  %s' % (test.__name__, time.monotonic() - start, told or ''), flush=True)
