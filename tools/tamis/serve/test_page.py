#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of `tamis serve` in headless Chromium, used by keyboard.

Usage: test_page.py URL|--mock [--pictures DIR] [unittest's options, -kNAME]

With --mock it asks a small server of its own, which speaks the protocol and also errs and stalls.
With a URL it asks that server, and the tests that need the other's answers are skipped. axe-core,
which finds missing labels and low contrast, comes from PyPI. 77 where Chromium, its driver or PyPI
are not there.
"""
import argparse
import base64
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
import zipfile

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'page')
AXE = 'axe-playwright-python==0.1.8'  # has axe-core 4.12.1; nothing else of it is used
POLICY = ("default-src 'none'; connect-src 'self'; style-src 'self'; script-src 'self'; "
          "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
ENTER, SHIFT, TAB, ESCAPE, RIGHT, HOME = '\ue007', '\ue008', '\ue004', '\ue00c', '\ue014', '\ue011'
NARROW, WIDE = (360, 740), (1280, 860)
LAYERS, TOKENS = 12, 24
LONG = 300, 30  # pages and layers of a long answer
KEY = 'open sesame'
ODD = ('<img src=x onerror="document.title=\'broken\'"> & <b>not bold</b> '
       '— “ça” 漢字 🧮\u2028\u200f')


# ---------------------------------------------------------------- a server to ask

def reads_of(token, pages=40, layers=LAYERS):
    """The field that tells what a token read: sinks, the newest pages, and some that a layer likes.
    Eight tokens fill a page."""
    pages += token // 8
    bins = min(pages, 128)

    def share(layer, bin):
        if bin == 0 or bin >= bins - 2:
            return 9
        near = abs(bin - (11 + 7 * (layer % 4) + token % 5))
        return max(0, 8 - 3 * near, 5 if (bin * 7 + layer * 3) % 29 == 0 else 0)
    return {'of': pages, 'layers': [''.join(str(share(layer, bin)) for bin in range(bins))
                                    for layer in range(layers)]}


def words_of(question):
    if 'odd' in question:
        return [ODD]
    count = 600 if 'slow' in question else 400 if 'long' in question else TOKENS
    text = ('The page that holds the key is read in most layers, and the newest pages are read in '
            'all of them, while the others wait until a query asks for what they hold.').split(' ')
    return [text[i % len(text)] + ' ' for i in range(count)]


class Mock(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    hung_up = threading.Event()

    def log_message(self, *_):
        pass

    def reply(self, status, kind, body):
        self.send_response(status)
        self.send_header('Content-Type', kind)
        self.send_header('Content-Length', str(len(body)))
        self.send_header('Content-Security-Policy', POLICY)
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status, message, param=None):
        error = {'message': message, 'type': 'invalid_request_error', 'param': param, 'code': None}
        self.reply(status, 'application/json', json.dumps({'error': error}).encode())

    def do_GET(self):
        files = {'/': ('page.html', 'text/html; charset=utf-8'),
                 '/page.css': ('page.css', 'text/css; charset=utf-8'),
                 '/page.js': ('page.js', 'text/javascript; charset=utf-8')}
        if self.path == '/v1/models':
            models = {'object': 'list', 'data': [{'id': 'mock-135M', 'object': 'model'}]}
            self.reply(200, 'application/json', json.dumps(models).encode())
        elif self.path in files:
            name, kind = files[self.path]
            with open(os.path.join(PAGE, name), 'rb') as file:
                self.reply(200, kind, file.read())
        else:
            self.refuse(404, 'There is no ' + self.path)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        content = body['messages'][-1]['content']
        question = content if isinstance(content, str) else content[-1]['text']
        if 'refuse' in question:
            return self.refuse(400, 'The prompt has 9000 tokens, 8192 fit', 'messages')
        if 'locked' in question and self.headers['Authorization'] != 'Bearer ' + KEY:
            return self.refuse(401, 'The API key is not known')
        self.send_response(200)
        self.send_header('Content-Type', 'text/event-stream')
        self.send_header('Connection', 'close')
        self.end_headers()
        try:
            self.stream(question, isinstance(content, list))
        except (BrokenPipeError, ConnectionResetError):
            Mock.hung_up.set()

    def stream(self, question, document):
        known = 'plain' not in question  # else it is an older server, which tells no reads
        time.sleep(2 if 'stall' in question else 0.1)
        self.event({'choices': [{'index': 0, 'delta': {'role': 'assistant', 'content': ''}}]})
        for i, word in enumerate(words_of(question)):
            chunk = {'choices': [{'index': 0, 'delta': {'content': word}}]}
            if known:
                reads = reads_of(i, *LONG) if 'long' in question else reads_of(i)
                chunk['tamis'] = {'reads': [reads]}
            self.event(chunk, torn='odd' in question)
            time.sleep(0.001 if 'long' in question else 0.04)
            if 'break' in question and i == 5:
                error = '{"error": {"message": "The cache is full"}}'
                return self.send('event: error\ndata: %s\n\n' % error)
        self.event({'choices': [{'index': 0, 'delta': {}, 'finish_reason': 'stop'}]})
        last = {'choices': [], 'usage': {'prompt_tokens': 640, 'completion_tokens': i + 1,
                                         'total_tokens': 641 + i}}
        if known:
            last['tamis'] = {'first_token_seconds': 0.4213, 'tokens_per_second': 21.34,
                             'pages_read': 1480, 'pages_held': 11520, 'cached_tokens': 1200}
            if document:
                last['tamis']['documents'] = {'loaded': 340, 'computed': 60}
        self.event(last)
        self.send('data: [DONE]\n\n')

    def event(self, chunk, torn=False):
        self.send('data: %s\n\n' % json.dumps(chunk, ensure_ascii=False), torn)

    def send(self, text, torn=False):
        """A torn text comes byte by byte, so that characters and lines are cut."""
        data = text.encode()
        step = 1 if torn else len(data)
        for i in range(0, len(data), step):
            self.wfile.write(data[i:i + step])
            self.wfile.flush()


# ---------------------------------------------------------------- a browser to ask it with

class Browser:
    """What the tests need of WebDriver, which is JSON over HTTP."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def __init__(self, driver, chromium):
        self.process = subprocess.Popen([driver, '--port=0'], stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            port = re.search(r'successfully on port (\d+)', line)
            if port:
                break
        else:
            raise OSError('%s did not start' % driver)
        self.root = 'http://127.0.0.1:%s/session' % port.group(1)
        options = {'binary': chromium, 'args': ['--headless=new', '--no-sandbox', '--disable-gpu',
                                                '--disable-dev-shm-usage', '--no-proxy-server',
                                                '--hide-scrollbars', '--lang=en']}
        wanted = {'goog:chromeOptions': options,
                  'goog:loggingPrefs': {'browser': 'ALL', 'performance': 'ALL'}}
        try:
            session = self.call('', {'capabilities': {'alwaysMatch': wanted}})
        except OSError:
            self.process.terminate()
            raise
        self.root += '/' + session['sessionId']

    def call(self, path, body=None, method='POST'):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.root + path, data, method=method,
                                         headers={'Content-Type': 'application/json'})
        try:
            with self.opener.open(request, timeout=60) as reply:
                return json.load(reply)['value']
        except urllib.error.HTTPError as error:
            raise OSError(json.load(error)['value']['message'].splitlines()[0]) from None

    def quit(self):
        try:
            self.call('', method='DELETE')
        finally:
            self.process.terminate()
            self.process.wait()
            self.process.stdout.close()

    def chrome(self, command, **params):
        return self.call('/goog/cdp/execute', {'cmd': command, 'params': params})

    def js(self, script, *args):
        return self.call('/execute/sync', {'script': script, 'args': list(args)})

    def js_later(self, script):
        return self.call('/execute/async', {'script': script, 'args': []})

    def keys(self, *keys):
        """Presses each key alone; of a tuple, the first ones are held."""
        actions = []
        for key in keys:
            chord = key if isinstance(key, tuple) else (key,)
            actions += [{'type': 'keyDown', 'value': value} for value in chord]
            actions += [{'type': 'keyUp', 'value': value} for value in reversed(chord)]
        self.call('/actions', {'actions': [{'type': 'key', 'id': 'keys', 'actions': actions}]})

    def attach(self, selector, path):
        element = self.call('/element', {'using': 'css selector', 'value': selector})
        self.call('/element/%s/value' % list(element.values())[0], {'text': path})

    def log(self, kind):
        return self.call('/se/log', {'type': kind})

    def size(self, width, height):
        self.chrome('Emulation.setDeviceMetricsOverride', width=width, height=height,
                    deviceScaleFactor=1, mobile=False)

    def picture(self, path):
        data = self.chrome('Page.captureScreenshot')['data']
        with open(path, 'wb') as file:
            file.write(base64.b64decode(data))


# ---------------------------------------------------------------- the tests

class PageTest(unittest.TestCase):
    browser = url = axe = pictures = None
    mock = False

    def setUp(self):
        self.expected = ()  # patterns of messages that the console shall have
        self.browser.chrome('Network.setBlockedURLs', urls=[])
        self.show(WIDE, 'light')
        self.load()

    def tearDown(self):
        self.browser.js('sessionStorage.clear()')
        messages = [entry['message'] for entry in self.browser.log('browser')
                    if entry['level'] in ('SEVERE', 'WARNING')]
        bad = [text for text in messages if not any(re.search(p, text) for p in self.expected)]
        self.assertEqual(bad, [], 'the console')
        elsewhere = [r['url'] for r in self.requests()
                     if not r['url'].startswith((self.url, 'data:', 'chrome:', 'about:'))]
        self.assertEqual(elsewhere, [], 'requests to others')

    # What the tests do and look at

    def load(self):
        self.browser.call('/url', {'url': self.url})
        self.browser.log('performance')
        self.sent = []
        self.wait('document.getElementById("model").textContent')
        if not self.mock:
            self.set('max-tokens', '32')  # a small model would talk on

    def show(self, size, scheme):
        self.browser.size(*size)
        self.browser.chrome('Emulation.setEmulatedMedia', features=[
            {'name': 'prefers-color-scheme', 'value': scheme},
            {'name': 'prefers-reduced-motion', 'value': 'reduce'}])

    def wait(self, script, seconds=20):
        end = time.time() + (seconds if self.mock else 20 * seconds)
        while time.time() < end:
            value = self.browser.js('return ' + script)
            if value:
                return value
            time.sleep(0.01)
        self.fail('never: ' + script)

    def text(self, selector):
        return self.browser.js('return [...document.querySelectorAll(arguments[0])].at(-1)'
                               '?.textContent ?? null', selector)

    def count(self, selector):
        return self.browser.js('return document.querySelectorAll(arguments[0]).length', selector)

    def value(self, name):
        return self.browser.js('return document.getElementById(arguments[0]).value', name)

    def set(self, name, value):
        self.browser.js('document.getElementById(arguments[0]).value = arguments[1]', name, value)

    def focus(self, selector):
        self.browser.js('[...document.querySelectorAll(arguments[0])].at(-1).focus()', selector)

    def ask(self, question, until_end=True):
        self.focus('#question')
        self.browser.keys(*question, ENTER)
        if until_end:
            self.wait('document.getElementById("stop").hidden')

    def open_reads(self):
        self.focus('.open')
        self.browser.keys(ENTER)

    def requests(self):
        events = [json.loads(entry['message'])['message']
                  for entry in self.browser.log('performance')]
        self.sent += [event['params']['request'] for event in events
                      if event['method'] == 'Network.requestWillBeSent']
        return self.sent

    def asked(self):
        """The bodies of the requests for answers."""
        return [json.loads(r['postData']) for r in self.requests() if 'postData' in r]

    def need_mock(self):
        if not self.mock:
            self.skipTest('only the server of the test answers so')

    # Chatting

    def test_answer_comes_piece_by_piece(self):
        self.ask('Tell me about pages', until_end=False)
        self.wait('document.querySelector(".answer .text").textContent')
        lengths = set()
        while self.browser.js('return document.getElementById("stop").hidden') is False:
            lengths.add(len(self.text('.answer .text')))
        if self.mock:  # a small model may be done before it is looked at twice
            self.assertGreater(len(lengths), 2)
        self.assertGreater(self.count('.answer .text span'), 2)
        body = self.asked()[0]
        self.assertEqual(body['messages'], [{'role': 'user', 'content': 'Tell me about pages'}])
        self.assertTrue(body['stream'] and body['stream_options']['include_usage'])
        self.assertTrue(body['reads'])
        self.assertNotIn('temperature', body)
        if self.mock:
            self.assertEqual(self.text('.answer .text'), ''.join(words_of('')))
            cost = self.text('.cost')
            for part in ('24 tokens', '21.3 tokens/s', '0.42 s', '13% of the cache', '1,200 tok'):
                self.assertIn(part, cost)

    def test_each_turn_sends_what_was_said(self):
        self.ask('first')
        first = self.text('.answer .text')
        self.set('system', 'Be brief.')
        self.set('temperature', '0.5')
        self.set('max-tokens', '16')
        self.ask('second')
        body = self.asked()[1]
        roles = [message['role'] for message in body['messages']]
        self.assertEqual(roles, ['system', 'user', 'assistant', 'user'])
        self.assertEqual(body['messages'][2]['content'], first)
        self.assertEqual((body['temperature'], body['max_tokens']), (0.5, 16))
        self.focus('#new')
        self.browser.keys(ENTER)
        self.assertIsNone(self.text('.answer'))
        self.ask('third')
        self.assertEqual(len(self.asked()[2]['messages']), 2)

    def test_shift_enter_begins_a_line(self):
        self.focus('#question')
        self.browser.keys('a', (SHIFT, ENTER), 'b')
        self.assertEqual(self.value('question'), 'a\nb')
        self.assertEqual(self.asked(), [])

    def test_stop_hangs_up(self):
        Mock.hung_up.clear()
        self.set('max-tokens', '')
        self.ask('Count slowly from 1 to 900', until_end=False)
        self.wait('document.querySelector(".answer .text").textContent')
        self.focus('#stop')
        self.browser.keys(ENTER)
        self.wait('document.getElementById("stop").hidden')
        if not self.mock and self.text('.note') != 'Stopped.':
            self.skipTest('the answer had ended before')
        self.assertEqual(self.text('.note'), 'Stopped.')
        self.assertEqual(self.text('#error'), '')
        self.assertEqual(self.browser.js('return document.activeElement.id'), 'question')
        if self.mock:
            self.assertTrue(Mock.hung_up.wait(5), 'the server still answers')
        self.ask('slowly again', until_end=False)
        self.wait('document.querySelectorAll(".answer .text")[1].textContent')
        self.browser.keys(ESCAPE)
        self.wait('document.getElementById("stop").hidden')

    def test_refused_question_stays(self):
        self.need_mock()
        self.expected = ('400',)
        self.ask('please refuse')
        self.assertEqual(self.text('#error'), 'The server answered 400: '
                         'The prompt has 9000 tokens, 8192 fit (messages)')
        self.assertEqual(self.value('question'), 'please refuse')
        self.assertIsNone(self.text('.question'))

    def test_question_stays_without_server(self):
        self.expected = ('ERR_BLOCKED_BY_CLIENT',)
        self.browser.chrome('Network.enable')
        self.browser.chrome('Network.setBlockedURLs', urls=['*/v1/chat/completions'])
        self.ask('anyone?')
        self.assertEqual(self.text('#error'), 'The server cannot be reached.')
        self.assertEqual(self.value('question'), 'anyone?')

    def test_question_stays_when_stopped_early(self):
        self.need_mock()
        self.ask('stall', until_end=False)
        self.wait('document.querySelector(".note").textContent.startsWith("The prompt")')
        self.browser.keys(*'and', ESCAPE)
        self.wait('document.getElementById("stop").hidden')
        self.assertEqual(self.value('question'), 'stall\nand')
        self.assertEqual(self.text('#error'), '')

    def test_broken_answer_stays(self):
        self.need_mock()
        self.ask('please break')
        self.assertEqual(self.text('#error'), 'The cache is full')
        self.assertEqual(self.text('.note'), 'Broken off.')
        self.assertEqual(self.text('.answer .text'), ''.join(words_of('')[:6]))
        self.assertEqual(self.text('.question .text'), 'please break')

    def test_key_is_sent(self):
        self.need_mock()
        self.expected = ('401',)
        self.ask('locked')
        self.assertIn('The API key is not known', self.text('#error'))
        self.browser.js('document.getElementById("settings-part").open = true')
        self.focus('#key')
        self.browser.keys(*KEY, TAB)
        self.focus('#question')
        self.browser.keys(ENTER)
        self.wait('document.querySelector(".cost li")')
        self.assertEqual(self.text('#error'), '')
        kept = self.browser.js('return [sessionStorage.getItem("key"), localStorage.length]')
        self.assertEqual(kept, [KEY, 0])

    def test_odd_text_is_text(self):
        self.need_mock()
        self.ask('odd')
        self.assertEqual(self.text('.answer .text'), ODD)
        self.assertEqual(self.count('main img, main b'), 0)
        self.assertEqual(self.browser.js('return document.title'), 'tamis')

    def test_long_answer(self):
        """The reader stays at the end of it, and more pages than bins are drawn in bins."""
        self.need_mock()
        self.show(NARROW, 'light')
        self.ask('long')
        self.assertEqual(self.text('.answer .text'), ''.join(words_of('long')))
        below = self.browser.js('return document.documentElement.scrollHeight'
                                '- scrollY - innerHeight')
        self.assertLess(below, 2)
        self.open_reads()
        self.assertEqual(self.browser.js('''const canvas = document.querySelector(".map canvas");
            return [canvas.width, canvas.height, document.querySelector(".step input").max]'''),
                         [128, LONG[1], '400'])
        self.assertEqual(self.text('.pages'), 'page 0page 348')

    def test_older_server(self):
        self.need_mock()
        self.ask('plain')
        self.assertEqual(self.text('.cost'), '24 tokens')
        self.assertTrue(self.browser.js('return document.querySelector(".reads").hidden'))

    # A text beside the question

    def test_text_is_a_document(self):
        with tempfile.NamedTemporaryFile('w', suffix='.txt', delete=False) as file:
            file.write('The key is 4711.\n')
        self.addCleanup(os.unlink, file.name)
        self.focus('#text')
        self.browser.keys(*'Typed.')
        self.browser.attach('#file', file.name)
        self.wait('document.getElementById("file-state").textContent')
        self.ask('Which key?')
        text = 'Typed.\n\nThe key is 4711.\n'
        content = [{'type': 'document', 'text': text}, {'type': 'text', 'text': 'Which key?'}]
        self.assertEqual(self.asked()[0]['messages'][0]['content'], content)
        self.assertTrue(self.browser.js('return document.getElementById("text").readOnly'))
        self.ask('And now?')
        self.assertEqual(self.asked()[1]['messages'][0]['content'], content)
        self.assertEqual(self.asked()[1]['messages'][2]['content'], 'And now?')
        if self.mock:
            self.assertIn('340 tokens of the text loaded', self.browser.js(
                'return document.querySelector(".cost").textContent'))

    def test_files_that_are_no_text(self):
        for data, reason in ((b'\xff\xfe\x00', 'is not a text in UTF-8'),
                             (b'a' * (2 ** 20 + 1), 'is larger than 1 MB')):
            with tempfile.NamedTemporaryFile(suffix='.txt', delete=False) as file:
                file.write(data)
            self.addCleanup(os.unlink, file.name)
            self.browser.attach('#file', file.name)
            self.wait('document.getElementById("file-state").textContent.includes("%s")' % reason)
        self.assertEqual(self.value('text'), '')

    # What was read

    def test_reads_by_keyboard(self):
        self.ask('What was read?')
        if self.browser.js('return document.querySelector(".reads").hidden'):
            self.skipTest('the server tells no reads')
        self.assertEqual(self.browser.js('return document.querySelector(".strip").height'), 1)
        self.open_reads()
        state = self.browser.js('''const open = document.querySelector(".open");
            const panel = document.getElementById(open.getAttribute("aria-controls"));
            const canvas = panel.querySelector("canvas");
            return [open.getAttribute("aria-expanded"), panel.hidden,
                    canvas.height, canvas.width]''')
        self.assertEqual(state[:2], ['true', False])
        if self.mock:
            self.assertEqual(state[2:], [LAYERS, 40 + (TOKENS - 1) // 8])
        self.browser.keys(TAB)
        self.browser.keys(RIGHT, RIGHT)
        spoken = self.browser.js('const slider = document.activeElement; return [slider.type, '
                                 'slider.value, slider.getAttribute("aria-valuetext")]')
        self.assertEqual(spoken[:2], ['range', '2'])
        self.assertRegex(spoken[2], '^2 of ')
        if self.mock:
            self.assertEqual(spoken[2], '2 of 24: “page ”')
            self.assertEqual(self.text('.marked'), 'page ')
        self.browser.keys(TAB, ENTER)  # the table
        self.wait('document.querySelector(".panel tbody tr")')
        if self.mock:
            self.check_table(reads_of(1))
        self.browser.keys((SHIFT, TAB), HOME)
        self.wait('document.querySelector(".which").textContent.startsWith("all")')

    def check_table(self, reads):
        """The table's shares are those of this token, over the pages that it held."""
        rows = self.browser.js('return [...document.querySelectorAll(".panel tbody tr")].map('
                               'row => [...row.children].map(cell => cell.textContent))')
        self.assertEqual(len(rows), LAYERS)
        for layer, (name, share, *parts) in enumerate(rows):
            digits = [int(digit) / 9 for digit in reads['layers'][layer]]
            self.assertEqual(name, str(layer))
            self.assertAlmostEqual(float(share[:-1]), 100 * sum(digits) / len(digits), delta=0.51)
            self.assertEqual(len(parts), 4)

    def test_colours_tell_what_was_read(self):
        """In the light scheme the first page, read by all, is darker than one that none read."""
        self.need_mock()
        self.ask('colours')
        self.open_reads()
        first, other = self.browser.js('''const canvas = document.querySelector(".map canvas");
            const {data} = canvas.getContext("2d").getImageData(0, 0, 4, 1);
            const sum = x => data[4 * x] + data[4 * x + 1] + data[4 * x + 2];
            return [sum(0), sum(3)]''')
        self.assertLess(first, other - 200)

    # The page for all readers

    def test_tab_reaches_everything_and_shows_where(self):
        self.browser.js('document.getElementById("settings-part").open = true')
        fields = ['skip', 'new', 'SUMMARY', 'text', 'file', 'SUMMARY', 'system', 'temperature',
                  'max-tokens', 'key']
        self.assertEqual(self.tab_stops(), fields + ['question', 'send'])
        self.ask('tab')
        fields.remove('file')  # the text is sent already
        stops = self.tab_stops()
        if self.mock:
            self.assertEqual(stops, fields + ['open', 'question', 'send'])

    def tab_stops(self):
        self.focus('.skip')
        seen = []
        for _ in range(30):
            name, ring = self.browser.js(
                'const e = document.activeElement; return [e.id || e.className || e.tagName,'
                ' e === document.body || getComputedStyle(e).outlineStyle !== "none"]')
            if name == 'BODY':
                break
            if name == 'skip' and seen:
                break
            self.assertTrue(ring, name + ' shows no focus')
            seen.append(name)
            self.browser.keys(TAB)
        return seen

    def test_widths_and_schemes(self):
        """Empty and full, nothing is wider than the screen, and axe finds nothing."""
        for size in (NARROW, WIDE):
            for scheme in ('light', 'dark'):
                with self.subTest(width=size[0], scheme=scheme):
                    self.show(size, scheme)
                    self.load()
                    self.look('empty', size, scheme)
                    self.fill()
                    self.look('full', size, scheme)

    def fill(self):
        self.expected = ('400', '401')
        self.set('text', 'A text. ' * 40)
        self.ask('What does the text say about pages, and which of them were read?')
        if self.mock:
            self.ask('odd, and ' + 'w' * 50)
            self.open_reads()
            self.browser.keys(TAB, RIGHT, TAB, ENTER)
            self.ask('refuse')
        self.browser.js('document.querySelectorAll("aside details").forEach(d => d.open = true)')

    def look(self, name, size, scheme):
        width = self.browser.js('return [document.documentElement.scrollWidth, '
                                'document.body.scrollWidth]')
        self.assertLessEqual(max(width), size[0], 'scrolls sideways')
        if self.pictures:
            path = '%s-%d-%s.png' % (name, size[0], scheme)
            height = self.browser.js('return document.documentElement.scrollHeight')
            self.browser.size(size[0], max(size[1], height))  # so that all of the page is seen
            self.browser.picture(os.path.join(self.pictures, path))
            self.browser.size(*size)
        self.browser.js(self.axe)
        found = self.browser.js_later('const done = arguments[0]; axe.run().then('
                                      'found => done(found.violations), e => done([String(e)]))')
        short = ['%s: %s: %s' % (v['impact'], v['id'], [n['html'][:120] for n in v['nodes'][:3]])
                 if isinstance(v, dict) else v for v in found]
        self.assertEqual(short, [])


def get_axe(folder):
    command = [sys.executable, '-m', 'pip', 'download', '--disable-pip-version-check',
               '--retries', '1', '--no-deps', '--only-binary', ':all:', '--dest', folder, AXE]
    if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        return None
    wheel, = os.listdir(folder)
    with zipfile.ZipFile(os.path.join(folder, wheel)) as archive:
        return archive.read('axe_playwright_python/axe.min.js').decode()


def skip(reason):
    print('skipped:', reason)
    sys.exit(77)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('url', nargs='?', help='of the server, e.g. http://127.0.0.1:8080/')
    parser.add_argument('--mock', action='store_true', help='ask a server of the test')
    parser.add_argument('--pictures', metavar='DIR', help='where PNGs of the page are put')
    args, rest = parser.parse_known_args()
    if args.mock == bool(args.url):
        parser.error('give either a URL or --mock')
    chromium = shutil.which('chromium') or shutil.which('google-chrome')
    driver = shutil.which('chromedriver')
    if not chromium or not driver:
        skip('no Chromium with its driver (apt-get install chromium chromium-driver)')
    with tempfile.TemporaryDirectory() as folder:
        PageTest.axe = get_axe(folder) or skip('%s is not to be had from PyPI' % AXE)
    if args.pictures:
        os.makedirs(args.pictures, exist_ok=True)
    PageTest.pictures, PageTest.mock = args.pictures, args.mock
    PageTest.url = (args.url or '').rstrip('/') + '/'
    if args.mock:
        server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Mock)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        PageTest.url = 'http://127.0.0.1:%d/' % server.server_port
    PageTest.browser = Browser(driver, chromium)
    try:
        unittest.main(argv=sys.argv[:1] + rest)
    finally:
        PageTest.browser.quit()


if __name__ == '__main__':
    main()
