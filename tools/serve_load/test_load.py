#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The measurement of load against a pretended server with known delays.

Usage: test_load.py
       test_load.py stub [WORD...]   is the server: takes the port from --port N among the words

STUB_FIRST and STUB_NEXT are its seconds to the first and to each next token; with STUB_REFUSE=N it
refuses every Nth request, with STUB_SERIAL it answers one request at a time, with STUB_BREAK it
ends answers in the middle.
"""
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HERE = os.path.dirname(os.path.abspath(__file__))
FIRST, NEXT, TOKENS = 0.06, 0.015, 6


# ---- The server ----------------------------------------------------------------------------------

def tokens_of(text):
    """A token for each four letters of a word."""
    return [hash_of(word[i:i + 4]) for word in text.split() for i in range(0, len(word), 4)]


def hash_of(text):
    return sum(ord(c) * 131 ** i for i, c in enumerate(text)) % 40009


class Stub(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    count, lock, serial = 0, threading.Lock(), threading.Lock()

    def log_message(self, *_):
        pass

    def say(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header('Content-Length', str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == '/health':
            self.say(503 if time.monotonic() - BEGIN < 0.15 else 200, {})
        else:
            self.say(200, {'data': [{'id': 'stub'}]})

    def chunk(self, data):
        self.wfile.write(b'%x\r\n%s\r\n' % (len(data), data))
        self.wfile.flush()

    def event(self, value):
        """In two chunks, the second begins in the middle of the event."""
        data = b'data: %s\n\n' % json.dumps(value).encode()
        self.chunk(data[:20])
        self.chunk(data[20:])

    def stream(self, chat, body, blended):
        self.send_response(200)
        self.send_header('Transfer-Encoding', 'chunked')
        self.end_headers()
        if chat:
            self.event({'choices': [{'delta': {'role': 'assistant', 'content': None}}]})
        for i in range(body['max_tokens']):
            time.sleep(float(os.environ['STUB_NEXT' if i else 'STUB_FIRST']))
            text = ' w%d' % i if not blended or i < 3 else ' other'
            part = {'delta': {'content': text}} if chat else {'text': text}
            self.event({'choices': [dict(part, finish_reason=None)]})
        if 'STUB_BREAK' not in os.environ:
            self.event({'choices': [{'delta': {}, 'finish_reason': 'length'} if chat else
                                    {'text': '', 'finish_reason': 'length'}]})
            self.event({'choices': [], 'usage': {'completion_tokens': body['max_tokens'],
                                                 'prompt_tokens': 7}})
            self.chunk(b'data: [DONE]\n\n')
        self.chunk(b'')

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        if self.path == '/tokenize':
            return self.say(200, {'tokens': tokens_of(body['content'])})
        with Stub.lock:
            Stub.count += 1
            mine = Stub.count
        if mine % int(os.environ.get('STUB_REFUSE', '1000000')) == 0:
            return self.say(503, {'error': {'message': 'busy'}})
        chat = self.path == '/v1/chat/completions'
        blended = chat and isinstance(body['messages'][0]['content'], list)
        if 'STUB_SERIAL' not in os.environ:
            return self.stream(chat, body, blended)
        with Stub.serial:
            return self.stream(chat, body, blended)


class StubServer(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


def serve(words):
    if '--version' in words:
        print('stub 1')
        return
    StubServer(('127.0.0.1', int(words[words.index('--port') + 1])), Stub).serve_forever()


# ---- The test ------------------------------------------------------------------------------------

failed = 0


def expect(what, right):
    global failed
    if not right:
        failed = 1
        print('FAIL %s' % what)


def near(what, value, wanted, below, above):
    expect('%s: %.4f, wanted %.4f - %.4f + %.4f' % (what, value, wanted, below, above),
           wanted - below <= value <= wanted + above)


class Bench:
    """measure.py with the pretended server as both programs, in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.program = os.path.join(folder, 'stub')
        with open(self.program, 'w', encoding='utf-8') as file:
            file.write('#!/bin/sh\nexec "%s" "%s" stub "$@"\n' % (sys.executable, __file__))
        os.chmod(self.program, 0o755)

    def words(self, out, **options):
        given = {'out': self.out(out), 'model': self.program, 'tamis': self.program,
                 'llama': self.program, 'requests': 10, 'lengths': '5,50', 'tokens': TOKENS,
                 'slots': 4, 'rates': '0.5,1.5', 'arms': 'llama'}
        given.update(options)
        return [sys.executable, os.path.join(HERE, 'measure.py')] + \
            [word for name, value in given.items() for word in ('--' + name, str(value))]

    def out(self, out):
        return os.path.join(self.folder, out)

    def run(self, out, stub=None, **options):
        env = dict(os.environ, STUB_FIRST=str(FIRST), STUB_NEXT=str(NEXT), **(stub or {}))
        done = subprocess.run(self.words(out, **options), env=env, capture_output=True, text=True,
                              timeout=60, check=False)
        return done.returncode, done.stderr

    def result(self, out, name):
        with open(os.path.join(self.out(out), name), encoding='utf-8') as file:
            return json.load(file)

    def table(self, out):
        done = subprocess.run([sys.executable, os.path.join(HERE, 'table.py'), self.out(out)],
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


def cells(table, *begin):
    """The cells of the line of a table that begins with these."""
    for line in table.split('\n'):
        found = [cell.strip() for cell in line.strip('|').split('|')]
        if found[:len(begin)] == list(begin):
            return found
    return [''] * 20


def test_delays(bench):
    """Answers do not wait for each other here, whatever the rate."""
    status, said = bench.run('delays')
    expect('status %d: %s' % (status, said), status == 0)
    for what in ('0.5', '1.5'):
        samples = bench.result('delays', 'llama.1.%s.json' % what)['samples']
        first = statistics.median(s['times'][0] - s['due'] for s in samples)
        between = statistics.median(b - a for s in samples
                                    for a, b in zip(s['times'], s['times'][1:]))
        near('first at ' + what, first, FIRST, 0.001, 0.15)
        near('next at ' + what, between, NEXT, 0.002, 0.04)
        expect('tokens', all(len(s['pieces']) == TOKENS for s in samples))
        expect('ended by length', all(s['finish'] == 'length' for s in samples))
    capacity = bench.result('delays', 'llama.1.capacity.json')['rate']
    # 10 requests, 4 at once: three rounds.
    near('capacity', capacity, 10 / (3 * (FIRST + (TOKENS - 1) * NEXT)), 16, 0.1)
    due = [s['due'] for s in bench.result('delays', 'llama.1.0.5.json')['samples']]
    again = [s['due'] for s in bench.result('delays', 'llama.1.1.5.json')['samples']]
    near('arrivals have one shape', due[-1] / again[-1], 3, 0.001, 0.001)
    prompts = bench.result('delays', 'requests.json')['prompts']
    expect('first tokens differ', len({tokens_of(p['text'])[0] for p in prompts}) == len(prompts))
    expect('lengths', all(5 <= p['tokens'] + 4 and p['tokens'] <= 50 and
                          p['tokens'] == len(tokens_of(p['text'])) for p in prompts))
    status, table = bench.table('delays')
    expect('table: ' + table, status == 0 and cells(table, 'llama', '1.5')[8] == '10 of 10')


def test_resume(bench):
    """A run does what is missing; other settings are an error that names them."""
    path = os.path.join(bench.out('delays'), 'llama.1.%s.json')
    before = os.stat(path % '0.5').st_mtime_ns
    os.remove(path % '1.5')
    status, said = bench.run('delays')
    expect('resumed: ' + said, status == 0 and 'llama: 0.5 is there' in said)
    expect('what was there stays', os.stat(path % '0.5').st_mtime_ns == before)
    expect('what was missing came', os.path.exists(path % '1.5'))
    log = os.path.join(bench.out('delays'), 'llama.1.log')
    before = os.stat(log).st_size
    status, said = bench.run('delays')
    expect('all is there: ' + said, status == 0 and os.stat(log).st_size == before)
    status, said = bench.run('delays', tokens=7)
    expect('tokens: ' + said, status == 1 and 'was measured with tokens 6, and now it is 7' in said)
    status, said = bench.run('delays', slots=5)
    expect('slots: ' + said, status == 1 and 'was measured with slots 4, and now it is 5' in said)
    status, said = bench.run('delays', seed=7)
    expect('seed: ' + said, status == 1 and 'was measured with seed 1, and now it is 7' in said)


def test_refused(bench):
    status, said = bench.run('refused', {'STUB_REFUSE': '5'}, rates='0.5')
    expect('status %d: %s' % (status, said), status == 0)
    samples = bench.result('refused', 'llama.1.0.5.json')['samples']
    expect('refused', [s['status'] for s in samples].count(503) == 2)
    _, table = bench.table('refused')
    expect(table, cells(table, 'llama', '0.5')[8:10] == ['8 of 10', '2'])


def test_queue(bench):
    """The time to the first token counts from when a request was due."""
    status, said = bench.run('queue', {'STUB_SERIAL': '1'}, rates='2', requests=8, tokens=2)
    expect('status %d: %s' % (status, said), status == 0)
    near('capacity', bench.result('queue', 'llama.1.capacity.json')['rate'], 1 / (FIRST + NEXT), 8,
         0.1)
    samples = bench.result('queue', 'llama.1.2.json')['samples']
    busy, last = 0.0, max(samples, key=lambda s: s['times'][0])
    for sample in samples:
        busy = max(busy, sample['due']) + FIRST + NEXT
    near('the last one waited', last['times'][0], busy - NEXT, 0.01, 0.6)


def test_broken(bench):
    status, said = bench.run('broken', {'STUB_BREAK': '1'})
    expect(said, status == 1 and 'ended without [DONE]' in said)
    expect('no result is kept', not os.path.exists(bench.out('broken/llama.1.capacity.json')))
    status, said = bench.run('gone', llama=bench.program + '.none')
    expect(said, status == 1 and 'stub.none' in said)


def test_documents(bench):
    status, said = bench.run('documents', scenario='documents', arms='blend,none', requests=3,
                             tokens=4)
    expect('status %d: %s' % (status, said), status == 0)
    requests = bench.result('documents', 'requests.json')['requests']
    expect('four different ones', all(len(set(r['documents'])) == 4 for r in requests))
    _, table = bench.table('documents')
    expect(table, cells(table, 'blend')[6:9] == ['0.00', '0.75', '3 of 3'])
    expect(table, cells(table, 'none')[6:9] == ['1.00', '1.00', '3 of 3'])


def test_killed(bench):
    """A server ends with the measurement."""
    env = dict(os.environ, STUB_FIRST='5', STUB_NEXT='5')
    with subprocess.Popen(bench.words('killed'), env=env, stderr=subprocess.DEVNULL) as process:
        children = '/proc/%d/task/%d/children' % (process.pid, process.pid)
        until = time.monotonic() + 10
        server = ''
        while not os.path.exists(bench.out('killed/requests.json')) and time.monotonic() < until:
            time.sleep(0.02)
        with open(children, encoding='ascii') as file:
            server = file.read().split()[0]
        process.send_signal(signal.SIGTERM)
        expect('status after SIGTERM', process.wait(15) == 1)
    expect('the server ended', not os.path.exists('/proc/' + server))


def test_usage():
    script = os.path.join(HERE, '..', 'serve_load.sh')
    for words, text in (
            (['--out', 'x', '--rates', '0.5,fast'], '--rates fast: must be a number'),
            (['--out', 'x', '--requests', '1'], '--requests 1: must be a whole number from 2'),
            (['--out', 'x', '--arms', 'full,vllm'], '--arms vllm: must be some of full quest'),
            (['--out', 'x', '--lengths', '9,5'], '--lengths 9,5: must be two numbers'),
            (['--out', 'x', '--scenario', 'chat'], '--scenario chat: must be one of load'),
            (['--rates', '1'], '--out DIR: is needed'),
            (['--speed', '1'], '--speed: no such option'),
            (['--table'], '--table: takes --out DIR')):
        done = subprocess.run(['bash', script] + words, capture_output=True, text=True, check=False)
        expect('%s: %d %s' % (words, done.returncode, done.stderr),
               done.returncode == 2 and text in done.stderr)
    done = subprocess.run(['bash', script, '--table', '--out', HERE], capture_output=True,
                          text=True, check=False)
    expect(done.stderr, done.returncode == 1 and 'has no results' in done.stderr)


def main():
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder)
        test_usage()
        for test in (test_delays, test_resume, test_refused, test_queue, test_broken,
                     test_documents, test_killed):
            test(bench)
    return failed


if __name__ == '__main__':
    if sys.argv[1:2] == ['stub']:
        BEGIN = time.monotonic()
        serve(sys.argv[2:])
    else:
        sys.exit(main())
