#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Documents in prompts of `tamis serve`: what is stored, loaded and computed, on a folder and a server
that others share, and where these fail.

Usage: test_documents.py TAMIS DATA [unittest's options, -kNAME]

Redis and HAProxy are used where they are installed; a full file system where one may be mounted.
"""
import concurrent.futures
import glob
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
# Nothing stands before the first message, so that a document which begins it stands where it was
# computed: what is loaded of it is exact. The tag is a text to the vocabulary, which has no others.
TEMPLATE = ("{% for m in messages %}{{ m.content }}{% if m.role == 'user' %}[/INST]{% endif %}"
            "{% endfor %}")
CACHE = ['--cache-dtype', 'f32']
F32 = ['--store-dtype', 'f32', *CACHE]
REDIS_SECONDS = 1.0  # redis_timeout_ms, of which tamis serve has the default
QUESTION = ' And the name of the man is'


def document(text):
    return {'type': 'document', 'text': text}


def text(words):
    return {'type': 'text', 'text': words}


def wait_for(what, seconds=20):
    """What a function says, once it is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        said = what()
        if said:
            return said
        time.sleep(0.01)
    raise AssertionError('nothing has come of %s' % what)


def free_port():
    with socket.socket() as one:
        one.bind(('127.0.0.1', 0))
        return one.getsockname()[1]


class Port:
    """What answers at a port of this machine."""

    def __init__(self, port):
        self.port = port

    def send(self, method, path, body=None, key=None):
        line = http.client.HTTPConnection('127.0.0.1', self.port, timeout=60)
        headers = {'Content-Type': 'application/json'}
        if key:
            headers['Authorization'] = 'Bearer ' + key
        line.request(method, path, None if body is None else json.dumps(body), headers)
        reply = line.getresponse()
        said = reply.read().decode()
        line.close()
        return reply.status, said

    def chat(self, content, key=None, **fields):
        messages = content if content and 'role' in content[0] else \
            [{'role': 'user', 'content': content}]
        body = {'messages': messages, 'max_tokens': 8, 'temperature': 0, 'logprobs': True, **fields}
        status, said = self.send('POST', '/v1/chat/completions', body, key)
        return Answer(status, json.loads(said))

    def metrics(self, key=None):
        lines = self.send('GET', '/metrics', key=key)[1].splitlines()
        return {name: float(value) for name, value in
                (line.rsplit(' ', 1) for line in lines if not line.startswith('#'))}


class Answer:
    def __init__(self, status, said):
        self.status, self.said = status, said
        if status != 200:
            return
        self.tokens = said['choices'][0]['logprobs']['content']
        self.text = said['choices'][0]['message']['content']
        self.usage = said['usage']
        self.cached = self.usage['prompt_tokens_details']['cached_tokens']
        self.documents = said['tamis'].get('documents')

    def same(self, other):
        """The same tokens, which were as likely: what no approximation gives."""
        return (self.status == other.status == 200 and len(self.tokens) == len(other.tokens) and
                all(a['bytes'] == b['bytes'] and abs(a['logprob'] - b['logprob']) < 1e-3
                    for a, b in zip(self.tokens, other.tokens)))


class Server(Port):
    """`tamis serve`, once it answers."""

    def __init__(self, *arguments, before=(), **options):
        command = [*before, TAMIS, 'serve', '--port', '0', '--model', MODEL, '--device', DEVICE,
                   *map(str, arguments)]
        if '--context' not in command:
            command += ['--context', '4096']
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            said = re.search(r' at http://127\.0\.0\.1:(\d+)/', line)
            if said:
                break
        else:
            raise AssertionError('no server: ' + ''.join(self.lines))
        super().__init__(int(said[1]))
        self.listener = threading.Thread(target=self.listen, daemon=True)
        self.listener.start()

    def listen(self):
        for line in self.process.stderr:
            self.lines.append(line)

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.listener.join()
        self.process.stderr.close()
        return code

    def says(self, pattern):
        return [line for line in self.lines if re.search(pattern, line)]


class Test(unittest.TestCase):
    plain, known = None, {}  # the server without a store, and what it has answered

    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=WORK)
        self.store = os.path.join(self.folder, 'store')
        self.servers = []

    def tearDown(self):
        for server in self.servers:
            if server.process.poll() is None:
                self.assertEqual(server.end(), 0, server.lines)

    def serve(self, *arguments, **options):
        self.servers.append(Server('--unchecked', *arguments, **options))
        return self.servers[-1]

    def stored(self, number, folder=None):
        """Waits until there are so many records."""
        wait_for(lambda: len(glob.glob((folder or self.store) + '/*.kv')) == number)

    def computed(self, content, **fields):
        """What a server without a store answers to the same parts."""
        key = json.dumps([content, fields])
        if key not in Test.known:
            Test.plain = Test.plain or Server(*CACHE)
            Test.known[key] = Test.plain.chat(content, **fields)
        return Test.known[key]

    def check(self, answer, loaded, of, recorded=0):
        """Tokens of documents: how many were loaded, of how many, and recorded for it."""
        self.assertEqual(answer.status, 200, answer.said)
        self.assertEqual(answer.documents, {'loaded': loaded, 'computed': of - loaded,
                                            'recorded': recorded})
        self.assertEqual(answer.cached, max(loaded - recorded, 0))
        self.assertEqual(answer.said['tamis']['cached_tokens'], answer.cached)

    def same(self, answer, content, **fields):
        self.assertTrue(answer.same(self.computed(content, **fields)),
                        (answer.said, self.computed(content, **fields).said))


def tearDownModule():
    if Test.plain:
        assert Test.plain.end() == 0, Test.plain.lines


def some(first, count=120):
    """A document of so many bytes, which are its tokens."""
    return TEXT[first * 400:first * 400 + count]


# ---------------------------------------------------------------- what is loaded

class Loaded(Test):
    def test_stored_first_and_found_then(self):
        server = self.serve('--store', self.store, *F32)
        asked = [text('Read: '), document(some(1)), document(some(2)), text(QUESTION)]
        first = server.chat(asked)
        # 15 % of 240, of which the last of 4 layers still has 1.1 times as many.
        self.check(first, 240 - 40, 240, recorded=240)
        self.assertEqual(first.usage['prompt_tokens'], self.computed(asked).usage['prompt_tokens'])
        self.stored(2)
        again = server.chat(asked)
        self.check(again, 200, 240)
        self.assertTrue(again.same(first), 'the answer depends on what came before')
        self.assertFalse(again.same(self.computed(asked)), 'nothing was blended')
        other = [document(some(2)), document(some(1)), document(some(3)), text(QUESTION)]
        self.check(server.chat(other), 120 + 240 - 40, 360, recorded=120)  # the first one is exact
        self.check(server.chat([text('x'), document(some(3)), text('y'), document(some(3)),
                                text(QUESTION)]), 200, 240)
        metrics = server.metrics()
        self.assertEqual([metrics['tamis_chunks_%s_total' % one] for one in ('found', 'missed')],
                         [2 + 2 + 2, 2 + 1])
        self.assertEqual(metrics['tamis_chunk_tokens_loaded_total'], 200 + 200 + 320 + 200)
        self.assertEqual(metrics['tamis_blend_seconds_count'], 4)
        wait_for(lambda: server.metrics()['tamis_pages_held'] == 0)
        self.assertEqual(metrics['tamis_store_failures_total'], 0)

    def test_what_stands_where_it_was_computed_is_exact(self):
        server = self.serve('--store', self.store, *F32)
        asked = [document(some(1)), text(QUESTION)]
        first = server.chat(asked)
        self.check(first, 120, 120, recorded=120)
        self.same(first, asked)
        for fields in ({}, {'n': 3, 'temperature': 0.7, 'seed': 5}, {'stream': False, 'top_p': 0.5}):
            answer = server.chat(asked, **fields)
            self.check(answer, 120, 120)  # whatever n is
            expected = self.computed(asked, **fields)
            self.assertEqual([c['message'] for c in answer.said['choices']],
                             [c['message'] for c in expected.said['choices']])
            self.same(answer, asked, **fields)
        self.assertEqual(server.metrics()['tamis_chunk_tokens_loaded_total'], 4 * 120)
        wait_for(lambda: server.metrics()['tamis_pages_held'] == 0)

    def test_streams_tell_it_at_their_end(self):
        server = self.serve('--store', self.store)
        body = {'messages': [{'role': 'user', 'content': [document(some(1)), text(QUESTION)]}],
                'max_tokens': 4, 'temperature': 0, 'stream': True,
                'stream_options': {'include_usage': True}}
        for cached in (0, 120):
            said = server.send('POST', '/v1/chat/completions', body)[1]
            last = json.loads(re.findall('data: ({.*})', said)[-1])
            self.assertEqual(last['usage']['prompt_tokens_details']['cached_tokens'], cached)
            self.assertEqual(last['tamis']['documents'],
                             {'loaded': 120, 'computed': 0, 'recorded': 120 - cached})

    def test_selectors(self):
        asked = [text('Read: '), document(some(1)), document(some(2)), text(QUESTION)]
        for flags, loaded in ((['--blend', 'all'], 0), (['--share', '100'], 0),
                              (['--blend', 'none'], 240),
                              (['--blend', 'question', '--share', '50'], 108)):
            with self.subTest(flags):
                server = self.serve('--store', self.store, *F32, *flags)
                server.chat(asked)
                answer = server.chat(asked)
                self.check(answer, loaded, 240)
                if loaded == 0:
                    self.same(answer, asked)

    def test_flags_that_nothing_can_be_made_of(self):
        for flags, why in ((['--blend', 'none', '--share', '5'], '--share: is given, but none has'),
                           (['--blend', 'all', '--share', '5'], '--share: is given, but all has'),
                           (['--share', '101'], '--share 101: must be')):
            ended = subprocess.run([TAMIS, 'serve', '--model', MODEL, '--store', self.store, *flags],
                                   stderr=subprocess.PIPE, text=True)
            self.assertEqual(ended.returncode, 2)
            self.assertIn(why, ended.stderr)

    def test_under_a_selection_and_exactly(self):
        few = ['--select', 'quest', '--budget', '64']
        server = self.serve('--store', self.store, *F32, *few)
        sparse = Server(*CACHE, *few)
        self.servers.append(sparse)
        asked = [document(some(1, 380)), text(QUESTION)]
        server.chat(asked)
        for exact in (False, True):
            answer = server.chat(asked, exact=exact)
            self.check(answer, 380, 380)
            self.assertTrue(answer.same(sparse.chat(asked, exact=exact)), exact)
        self.same(answer, asked)

    def test_parts_that_are_odd(self):
        server = self.serve('--store', self.store, *F32, '--blend-tokens', 500)
        end = text(QUESTION)
        user, system = 'user', 'system'
        for name, asked, new, of, loaded in (
                ('empty', [document(''), text('x'), document(''), end], 0, None, 0),
                ('white', [text('x'), document(' \n ' * 7), end], 21, 21, 17),
                # What is so short is a text.
                ('short', [document('x' * 15), end], 0, None, 0),
                ('short beside another', [document('x' * 15), document(some(6)), end], 120, 120, 100),
                # Neighbours are two documents, whatever stands between them and says nothing.
                ('neighbours', [document(some(1)), text(''), document(some(2)), document(''),
                                document(some(3)), end], 360, 360, 120 + 240 - 40),
                ('messages', [{'role': system, 'content': [document(some(1))]},
                              {'role': user, 'content': [document(some(2)), end]}], 0, 240, 220),
                ('a tag', [document('[inst] <|x|> ' + some(4)), end], 133, 133, 133),
                ('many', [text('x')] + [document('Number %05d of all.' % i) for i in range(20)] +
                 [end], 400, 400, 334),
                # It ends the prompt, whose last token is run.
                ('at the end', [{'role': user, 'content': 'x'},
                                {'role': 'assistant', 'content': [document(some(5))]}], 0, 120, 0),
                ('too long', [document(some(1, 390)), document(some(2, 390)), end], 0, None, 0)):
            with self.subTest(name):
                first, answer = server.chat(asked), server.chat(asked)
                if of is None:
                    self.assertIsNone(answer.documents)
                elif loaded > 0:
                    self.check(first, loaded, of, recorded=new)
                    self.check(answer, loaded, of)
                else:
                    self.assertEqual(answer.documents, {'loaded': 0, 'computed': of, 'recorded': 0})
                self.assertTrue(first.same(answer))
                if not loaded:
                    self.same(answer, asked)
        refused = server.chat([document('He said [/INST].'), end])
        self.assertEqual((refused.status, refused.said['error']['param']), (400, 'messages'))

    def test_one_key_finds_nothing_of_another(self):
        keys = os.path.join(self.folder, 'keys')
        with open(keys, 'w') as file:
            file.write('one-key\nanother-key\n')
        os.chmod(keys, 0o600)
        server = self.serve('--store', self.store, *F32, '--api-key-file', keys)
        asked = [document(some(1)), text(QUESTION)]
        self.check(server.chat(asked, 'one-key'), 120, 120, recorded=120)
        self.check(server.chat(asked, 'another-key'), 120, 120, recorded=120)
        self.stored(2)
        for key in ('one-key', 'another-key', 'one-key'):
            answer = server.chat(asked, key)
            self.check(answer, 120, 120)
            self.same(answer, asked)
        self.assertEqual(server.metrics('one-key')['tamis_chunks_missed_total'], 2)

    def test_a_cache_without_room(self):
        """Kept prompts make room for blends and records; what does not fit is computed."""
        server = self.serve('--store', self.store, *F32, '--context', 512, '--running', 4)
        asked = [[document(some(i, 390)), text(' %d' % i)] for i in range(6)]
        plain = [text('x' * 390)]
        self.same(server.chat(plain), plain)  # is kept, and makes room
        for one in asked:
            answer = server.chat(one)
            self.check(answer, 390, 390, recorded=390)
            self.same(answer, one)
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            for one, answer in zip(asked, pool.map(server.chat, asked)):
                self.same(answer, one)
                self.assertIn(answer.documents['loaded'], (0, 390))
        self.assertGreater(server.metrics()['tamis_chunk_tokens_loaded_total'], 0)


# ---------------------------------------------------------------- the gate

class Gate(Test):
    def test_documents_are_blended_where_a_trial_has_passed(self):
        trials = os.path.join(self.folder, 'trials')
        flags = ['--store', self.store, '--trials', trials, '--share', '40']
        asked = [text('Read: '), document(some(1)), text(QUESTION)]
        server = Server(*flags)
        self.servers.append(server)
        self.assertTrue(server.says('documents are computed: .*there is no entry .*tamis blend trial'))
        for _ in range(2):
            answer = server.chat(asked)
            self.assertIsNone(answer.documents)
            self.assertEqual(answer.text, self.computed(asked).text)
        self.assertEqual(os.listdir(self.store), [])
        subprocess.run([TAMIS, 'blend', 'trial', '--model', MODEL, '--text', DATA + '/text.txt',
                        '--device', DEVICE, '--chunks', '2', '--chunk-tokens', '64', '--prompts', '1',
                        '--share', '40', '--trials', trials], check=True, capture_output=True)
        passed = Server(*flags)
        self.servers.append(passed)
        self.assertFalse(passed.says('documents are computed'))
        self.assertGreater(passed.chat(asked).documents['loaded'], 0)


# ---------------------------------------------------------------- what is shared

class Shared(Test):
    def test_on_a_folder(self):
        """Behind a restart, and by two servers at a time."""
        asked = [document(some(1)), text(QUESTION)]
        first = self.serve('--store', self.store, *F32)
        first.chat(asked)
        self.assertEqual(first.end(), 0)
        one, two = (self.serve('--store', self.store, *F32) for _ in range(2))
        more = [document(some(2)), text(QUESTION)]
        for server in (one, two):
            answer = server.chat(asked)
            self.check(answer, 120, 120)
            self.same(answer, asked)
        two.chat(more)
        self.check(one.chat(more), 120, 120)

    def test_prefixes_behind_a_restart(self):
        flags = ['--store', self.store, *F32, '--store-prefixes', 'on', '--prefix-page', 64]
        asked = [text(some(1, 390)), text(QUESTION)]
        first = self.serve(*flags)
        self.assertEqual(first.chat(asked).cached, 0)
        self.stored(6)
        self.assertEqual(first.end(), 0)
        again = self.serve(*flags).chat(asked)
        self.assertEqual(again.cached, 384)
        self.assertIsNone(again.documents)
        self.same(again, asked)
        # A blend is no prefix: neither is stored, nor does it begin with one.
        before = self.servers[-1].metrics()['tamis_prefix_pages_put_total']
        asked[1:1] = [document(some(2))]
        for recorded in (120, 0):
            answer = self.servers[-1].chat(asked)
            self.check(answer, 100, 120, recorded)
        self.assertEqual(self.servers[-1].metrics()['tamis_prefix_pages_put_total'], before)

    def test_by_a_proxy(self):
        """In turns: what one server has read, the other one loads."""
        if not shutil.which('haproxy', path=PATHS):
            self.skipTest('haproxy is not installed')
        servers = [self.serve('--store', self.store, *F32) for _ in range(2)]
        port = free_port()
        settings = os.path.join(self.folder, 'haproxy.cfg')
        with open(settings, 'w') as file:
            file.write('defaults\n mode http\n timeout connect 5s\n timeout client 60s\n'
                       ' timeout server 60s\nfrontend front\n bind 127.0.0.1:%d\n'
                       ' default_backend back\nbackend back\n balance roundrobin\n' % port)
            file.writelines(' server s%d 127.0.0.1:%d\n' % (i, s.port)
                            for i, s in enumerate(servers))
        proxy = subprocess.Popen([shutil.which('haproxy', path=PATHS), '-q', '-db', '-f', settings])
        try:
            front = Port(port)
            wait_for(lambda: is_open(port))
            asked = [[document(some(i)), text(QUESTION)] for i in range(3)]
            for one in asked:
                self.same(front.chat(one), one)
            # An even number of requests would lead each to the server that has read it.
            for one in asked:
                answer = front.chat(one)
                self.check(answer, 120, 120)
                self.same(answer, one)
            counts = [s.metrics()['tamis_chunks_%s_total' % of] for of in ('missed', 'found')
                      for s in servers]
            self.assertEqual(sorted(counts[:2]), [1, 2])
            self.assertEqual(sorted(counts[2:]), [1, 2])
        finally:
            proxy.terminate()
            proxy.wait(20)


def is_open(port):
    with socket.socket() as one:
        return one.connect_ex(('127.0.0.1', port)) == 0


# ---------------------------------------------------------------- a server of Redis

class Redis:
    def __init__(self, folder):
        self.path = os.path.join(folder, 'redis')
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [redis_program(), '--port', '0', '--unixsocket', self.path, '--save', '', '--appendonly',
             'no', '--logfile', '/dev/null', '--dir', '/tmp'], stdout=subprocess.DEVNULL)
        wait_for(self.answers)

    def answers(self):
        with socket.socket(socket.AF_UNIX) as one:
            try:
                one.connect(self.path)
                one.sendall(b'PING\r\n')
                return one.recv(16).startswith(b'+PONG')
            except OSError:
                return False

    def send(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.wait(20)


def redis_program():
    return shutil.which('redis-server', path=PATHS) or shutil.which('valkey-server', path=PATHS)


class OnRedis(Test):
    def setUp(self):
        super().setUp()
        if not redis_program():
            self.skipTest('redis-server is not installed')
        self.redis = Redis(tempfile.mkdtemp(dir=WORK))

    def tearDown(self):
        super().tearDown()
        if redis_program():
            self.redis.kill()

    def test_shared_by_two_servers(self):
        asked = [document(some(1)), text(QUESTION)]
        one, two = (self.serve('--redis', self.redis.path, *F32) for _ in range(2))
        self.check(one.chat(asked), 120, 120, recorded=120)
        answer = two.chat(asked)
        self.check(answer, 120, 120)
        self.same(answer, asked)

    def test_killed_under_load(self):
        server = self.serve('--redis', self.redis.path, *F32, '--store-memory', '0')
        load = Load(self, server)
        with load:
            wait_for(lambda: load.loaded > 6)
            self.redis.kill()
            load.more(12)
            failed = wait_for(lambda: server.metrics()['tamis_store_failures_total'])
            self.redis.start()  # empty; it is asked again 5 s later at most
            before = load.loaded
            wait_for(lambda: load.loaded > before)
        self.assertGreater(failed, 0)
        self.assertEqual(len(server.says('is not stored')), 1)

    def test_hanging_under_load(self):
        server = self.serve('--redis', self.redis.path, *F32, '--store-memory', '0')
        load = Load(self, server)
        with load:
            wait_for(lambda: load.loaded > 6)
            usual = load.worst
            self.redis.send(signal.SIGSTOP)
            load.more(12)
            worst = load.worst
            self.redis.send(signal.SIGCONT)
            before = load.loaded
            wait_for(lambda: load.loaded > before)
        # The server is left alone for 0.1 s behind the first command that waits, then for twice as long,
        # up to 5 s; so of a request that takes a second, four may wait, its own or others'.
        self.assertLess(worst, 4 * usual + 5 * REDIS_SECONDS)
        print('redis hangs: a request took at most %.2f s, before %.2f s' % (worst, usual))

    def test_beside_a_folder(self):
        """A folder goes on alone."""
        server = self.serve('--redis', self.redis.path, '--store', self.store, *F32)
        self.redis.kill()
        asked = [document(some(1)), text(QUESTION)]
        for recorded in (120, 0):
            answer = server.chat(asked)
            self.check(answer, 120, 120, recorded)
            self.same(answer, asked)


# ---------------------------------------------------------------- faults

class Load:
    """Six clients that ask for documents which stand where they were computed, so that each answer is
    known; every one is compared."""

    def __init__(self, test, server, documents=6):
        self.test, self.server = test, server
        self.asked = [[document(some(10 + i)), text(QUESTION)] for i in range(documents)]
        for one in self.asked:
            test.computed(one)
        self.count = self.loaded = 0
        self.worst = 0.0
        self.lock = threading.Lock()
        self.wrong = []
        self.stops = False

    def ask(self, client):
        turn = client
        while not self.stops:
            one = self.asked[turn % len(self.asked)]
            begun = time.monotonic()
            try:
                answer = self.server.chat(one)
                right = answer.same(self.test.computed(one))
            except Exception as error:
                answer, right = error, False
            with self.lock:
                self.count += 1
                self.worst = max(self.worst, time.monotonic() - begun)
                if not right:
                    self.wrong.append(getattr(answer, 'said', answer))
                    return
                self.loaded += answer.documents['loaded'] > 0
            turn += 1

    def more(self, number):
        """Waits for so many more answers; forgets what the ones before took."""
        with self.lock:
            self.worst = 0.0
        end = self.count + number
        wait_for(lambda: self.count >= end or self.wrong, 40)

    def __enter__(self):
        self.threads = [threading.Thread(target=self.ask, args=(i,)) for i in range(6)]
        for one in self.threads:
            one.start()
        return self

    def __exit__(self, *_):
        self.stops = True
        for one in self.threads:
            one.join()
        self.test.assertEqual(self.wrong, [])
        self.test.assertIsNone(self.server.process.poll())


class Faults(Test):
    def full(self, server):
        load = Load(self, server)
        with load:
            load.more(18)
        self.assertGreater(server.metrics()['tamis_store_failures_total'], 0)
        self.assertEqual(len(server.says('a document of 120 tokens is not stored: ')), 1)
        self.assertEqual(glob.glob(self.store + '/*.tmp'), [])

    def test_files_that_may_not_grow(self):
        server = self.serve('--store', self.store, *F32)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (50000, 50000))
        self.full(server)

    def test_a_full_file_system(self):
        """It has room for one document of 480 KB."""
        own = ['unshare', '--mount'] + ([] if os.geteuid() == 0 else ['--map-root-user'])
        mount = 'mount -t tmpfs -o size=700k none "$0" && exec "$@"'
        os.mkdir(self.store)
        if subprocess.run([*own, 'sh', '-c', mount, self.store, 'true'],
                          stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest('nothing may be mounted')
        self.full(self.serve('--store', self.store, *F32, '--store-memory', '0',
                             before=[*own, 'sh', '-c', mount, self.store]))

    def test_what_is_damaged_is_computed(self):
        server = self.serve('--store', self.store, *F32, '--store-memory', '0', '--store-bytes', '0')
        asked = [document(some(1)), text(QUESTION)]
        server.chat(asked)
        self.check(server.chat(asked), 120, 120)
        record, = glob.glob(self.store + '/*.kv')
        with open(record, 'r+b') as file:
            file.seek(-5000, os.SEEK_END)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 64]))
        answer = server.chat(asked)
        self.check(answer, 0, 120)
        self.same(answer, asked)
        self.assertEqual(server.metrics()['tamis_store_damaged_total'], 1)
        for recorded in (120, 0):  # it is stored again
            answer = server.chat(asked)
            self.check(answer, 120, 120, recorded)
            self.same(answer, asked)

    def test_a_server_that_is_killed(self):
        """While it stores; the next one finds whole records or none."""
        for turn in range(2):
            server = self.serve('--store', self.store, *F32)
            asked = [[document(some(i, 390)), text(QUESTION)] for i in range(6)]
            threads = [threading.Thread(target=lambda one=one: quietly(server, one)) for one in asked]
            for one in threads:
                one.start()
            wait_for(lambda: os.listdir(self.store))
            time.sleep(0.01 * turn)
            server.end(signal.SIGKILL)
            for one in threads:
                one.join()
            after = self.serve('--store', self.store, *F32)
            self.assertEqual(glob.glob(self.store + '/*.tmp'), [])
            for one in asked:
                answer = after.chat(one)
                self.same(answer, one)
                self.assertIn(answer.documents['loaded'], (0, 390))
            self.assertEqual(after.metrics()['tamis_store_damaged_total'], 0)
            self.assertEqual(after.end(), 0)
            shutil.rmtree(self.store)


    def long(self, first):
        """Ten documents, which fill a prompt."""
        return [document(some(first + i, 390)) for i in range(10)] + [text(QUESTION)]

    def test_clients_that_leave(self):
        """While their documents are stored, blended or read: nothing of them is left."""
        server = self.serve('--store', self.store, *F32)
        for turn in range(8):
            line = http.client.HTTPConnection('127.0.0.1', server.port, timeout=60)
            body = {'messages': [{'role': 'user', 'content': self.long(10 * turn)}], 'n': 3}
            line.request('POST', '/v1/chat/completions', json.dumps(body),
                         {'Content-Type': 'application/json'})
            time.sleep(0.01 * turn)
            line.close()
        wait_for(lambda: server.metrics()['tamis_requests_hung_up_total'] >= 4)
        wait_for(lambda: server.metrics()['tamis_pages_held'] == 0)
        asked = [document(some(1)), text(QUESTION)]
        self.same(server.chat(asked), asked)

    def test_stops_at_once(self):
        """Documents of what waits need not be stored before a server ends."""
        server = self.serve('--store', self.store, *F32, '--drain', 0)
        threads = [threading.Thread(target=quietly, args=(server, self.long(10 * i)))
                   for i in range(8)]
        for one in threads:
            one.start()
        wait_for(lambda: os.listdir(self.store))
        time.sleep(0.1)  # all have come
        self.assertEqual(server.end(), 0)
        for one in threads:
            one.join()
        self.assertLess(len(os.listdir(self.store)), 80)


def quietly(server, asked):
    try:
        server.chat(asked)
    except (OSError, http.client.HTTPException):
        pass


# ---------------------------------------------------------------- what others wait for

class Waiting(Test):
    def test_a_blend_is_one_gap_of_a_stream(self):
        """Blends that are asked for at once are made one by one, a step between two of them."""
        size = 3000 if DEVICE != 'reference' else 900
        flags = ['--store', self.store, '--blend', 'question', '--share', '90', '--context', 16384]
        server = self.serve(*flags)
        asked = [[text('x'), document(TEXT[1000 * i:1000 * i + size]), text(QUESTION)]
                 for i in range(4)]
        for one in asked:
            server.chat(one, max_tokens=1)
        self.assertEqual(server.end(), 0)
        server = self.serve(*flags)
        ends = threading.Event()
        stream = threading.Thread(target=run_stream, args=(server, ends))
        stream.start()
        wait_for(lambda: server.metrics()['tamis_next_token_seconds_count'] > 8)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for answer in pool.map(lambda one: server.chat(one, max_tokens=1), asked):
                self.assertGreater(answer.documents['loaded'], 0)
        self.assertTrue(stream.is_alive(), 'the stream has ended before')
        metrics = server.metrics()
        ends.set()
        stream.join()
        # The largest bound that no blend stays below.
        bounds = [float(one) for one in re.findall(r'tamis_blend_seconds_bucket{le="([\d.]+)"}',
                                                   '\n'.join(metrics))]
        below = lambda name, le: metrics['tamis_%s_seconds_bucket{le="%g"}' % (name, le)]
        self.assertEqual(metrics['tamis_blend_seconds_count'], 4)
        most = max(le for le in bounds if below('blend', le) == 0)
        long = metrics['tamis_next_token_seconds_count'] - below('next_token', most)
        self.assertGreaterEqual(long, 4, 'gaps above %g s: %d' % (most, long))


def run_stream(server, ends):
    line = http.client.HTTPConnection('127.0.0.1', server.port, timeout=60)
    body = {'messages': [{'role': 'user', 'content': 'x'}], 'stream': True, 'max_tokens': 16000}
    line.request('POST', '/v1/chat/completions', json.dumps(body),
                 {'Content-Type': 'application/json'})
    reply = line.getresponse()
    while not ends.is_set() and reply.readline():
        pass
    line.close()


def fastest_device():
    said = subprocess.run([TAMIS, 'devices'], capture_output=True, text=True).stdout
    return 'opencl:0' if re.search(r'^opencl:0 .* usable', said, re.M) else 'reference'


if __name__ == '__main__':
    TAMIS, DATA = map(os.path.abspath, sys.argv[1:3])
    PATHS = os.environ.get('PATH', '') + ':/usr/sbin:/usr/local/sbin'
    WORK = tempfile.mkdtemp()
    for name in ('TAMIS_DEVICE', 'TAMIS_LOG', 'TAMIS_API_KEY', 'TAMIS_REDIS_PASSWORD'):
        os.environ.pop(name, None)
    os.environ['TAMIS_SETTINGS'] = 'none'
    os.environ['TAMIS_CUDA_DRIVER'] = WORK + '/none'
    MODEL = os.path.join(WORK, 'chat.gguf')
    subprocess.run([sys.executable, os.path.join(HERE, '../cli/gguf_keys.py'), DATA + '/needle.gguf',
                    MODEL, 'tokenizer.chat_template=' + TEMPLATE], check=True)
    with open(DATA + '/text.txt') as file:
        TEXT = file.read()
    DEVICE = fastest_device()
    try:
        unittest.main(argv=sys.argv[:1] + sys.argv[3:])
    finally:
        shutil.rmtree(WORK)
