#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`tamis serve` where it answers nothing: refusals, HTTP, keys, limits, and how it ends.

Usage: test_http.py TAMIS DATA_FOLDER [unittest's options, -kNAME]
"""
import os
import shutil
import signal
import socket
import subprocess
import unittest

from client import (CHAT, JSON, LIMIT, PROMPT, TEXT, USER, Case, Server, environment, given, main,
                    serving)

# ---------------------------------------------------------------- refusals

NO_LIST = ['', 5, True, {}, [5], ['x', None], ['x', '']]
IMAGE = {'type': 'image_url', 'image_url': {'url': 'data:,'}}
REFUSED = [  # endpoint, fields, field that is named, what is said
    (CHAT, {'model': 5}, 'model', 'must be a text'),
    (CHAT, {'messages': None}, 'messages', 'is missing'),
    (CHAT, {'messages': []}, 'messages', 'must be a list of 1 to'),
    (CHAT, {'messages': 'Hi'}, 'messages', 'must be a list of 1 to'),
    (CHAT, {'messages': ['Hi']}, 'messages[0]', 'must be an object'),
    (CHAT, {'messages': [{'content': 'x'}]}, 'messages[0]', 'has no "role"'),
    (CHAT, {'messages': [{'role': 'user'}]}, 'messages[0]', '"content" must be'),
    (CHAT, {'messages': [{'role': 'user', 'content': 5}]}, 'messages[0]', '"content" must be'),
    (CHAT, {'messages': [*USER, {'role': 'tool', 'content': 'x'}]}, 'messages[1]', "'tool' must"),
    (CHAT, {'messages': [{'role': 'user', 'content': 'x', 'name': 'me'}]}, 'messages[0]', "'name'"),
    (CHAT, {'messages': [{'role': 'assistant', 'content': '', 'tool_calls': [{}]}]}, 'messages[0]',
     "'tool_calls' is not supported"),
    (CHAT, {'messages': [{'role': 'user', 'content': [IMAGE]}]}, 'messages[0]', "type 'image_url'"),
    (CHAT, {'messages': [{'role': 'user', 'content': ['x']}]}, 'messages[0]', 'has no "type"'),
    (CHAT, {'messages': [{'role': 'user', 'content': [{'type': 'text'}]}]}, 'messages[0]',
     'no "text"'),
    (CHAT, {'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': 'x', 'frob': 1}]}]},
     'messages[0]', "unknown field 'frob'"),
    (CHAT, {'messages': [{'role': 'system', 'content': 'x'}]}, 'messages', 'what message 0 says'),
    (CHAT, {'messages': [{'role': 'system', 'content': [{'type': 'document', 'text': 'x'}]}]},
     'messages', 'leaves out 1 of 1 documents'),
    (CHAT, {'prompt': 'x'}, 'prompt', 'unknown or unsupported'),
    (CHAT, {'tools': [{'type': 'function'}]}, 'tools', 'is not supported'),
    (CHAT, {'functions': [{}]}, 'functions', 'is not supported'),
    (CHAT, {'tool_choice': 'auto'}, 'tool_choice', 'only "none"'),
    (CHAT, {'function_call': {'name': 'x'}}, 'function_call', 'only "none"'),
    (CHAT, {'response_format': {'type': 'json_object'}}, 'response_format', 'is not supported'),
    (CHAT, {'response_format': {'type': 'text', 'x': 1}}, 'response_format', 'only'),
    (CHAT, {'modalities': ['text', 'audio']}, 'modalities', 'is not supported'),
    (CHAT, {'audio': {'voice': 'x'}}, 'audio', 'unsupported field'),
    (CHAT, {'reasoning_effort': 'low'}, 'reasoning_effort', 'unsupported field'),
    (CHAT, {'logprobs': 5}, 'logprobs', 'must be true or false'),
    (CHAT, {'logprobs': True, 'top_logprobs': 21}, 'top_logprobs', '21 must be from 0 to 20'),
    (CHAT, {'top_logprobs': 2}, 'top_logprobs', 'without logprobs'),
    (CHAT, {'max_tokens': 5, 'max_completion_tokens': 6}, 'max_completion_tokens', '5 and 6'),
    (TEXT, {'prompt': None}, 'prompt', 'is missing'),
    (TEXT, {'prompt': ''}, 'prompt', 'has no tokens'),
    (TEXT, {'prompt': []}, 'prompt', 'has no tokens'),
    (TEXT, {'prompt': {}}, 'prompt', 'must be a text'),
    (TEXT, {'prompt': True}, 'prompt', 'must be a text'),
    (TEXT, {'prompt': ['x', 5]}, 'prompt', 'must be a text'),
    (TEXT, {'prompt': [5, 'x']}, 'prompt', 'must be numbers'),
    (TEXT, {'prompt': [256]}, 'prompt', '256 is no token, they are 0 to 255'),
    (TEXT, {'prompt': [-1]}, 'prompt', '-1 is no token'),
    (TEXT, {'prompt': [1.5]}, 'prompt', '1.5 is no token'),
    (TEXT, {'prompt': ['x'] * 17}, 'prompt', 'has 17 prompts; 16 are the most'),
    (TEXT, {'prompt': ['x'] * 6, 'n': 3}, 'n', '3 answers to 6 prompts exceed the 16'),
    (TEXT, {'messages': USER}, 'messages', 'unknown or unsupported'),
    (TEXT, {'suffix': 'x'}, 'suffix', 'unsupported field'),
    (TEXT, {'echo': True}, 'echo', 'is not supported'),
    (TEXT, {'best_of': 2}, 'best_of', 'only 1'),
    (TEXT, {'logprobs': 6}, 'logprobs', '6 must be from 0 to 5'),
    (TEXT, {'logprobs': True}, 'logprobs', 'must be a number'),
    (TEXT, {'frob': 1}, 'frob', "unknown or unsupported field 'frob'"),
    (TEXT, {'stream': 'yes'}, 'stream', 'must be true or false'),
    (TEXT, {'stream_options': {'include_usage': True}}, 'stream_options', 'without stream'),
    (TEXT, {'stream': True, 'stream_options': {'frob': 1}}, 'stream_options', "'frob'"),
    (TEXT, {'stream': True, 'stream_options': []}, 'stream_options', 'must be an object'),
    (TEXT, {'temperature': 2.5}, 'temperature', '2.5 must be from 0 to 2'),
    (TEXT, {'temperature': -0.1}, 'temperature', '-0.1 must be from 0 to 2'),
    (TEXT, {'temperature': '1'}, 'temperature', 'must be a number'),
    (TEXT, {'top_p': 1.5}, 'top_p', '1.5 must be from 0 to 1'),
    (TEXT, {'min_p': -1}, 'min_p', '-1 must be from 0 to 1'),
    (TEXT, {'top_k': -1}, 'top_k', '-1 must be from 0'),
    (TEXT, {'top_k': 1.5}, 'top_k', '1.5 must be a whole number'),
    (TEXT, {'seed': 1.5}, 'seed', '1.5 must be a whole number'),
    (TEXT, {'seed': 2 ** 53}, 'seed', 'must be from'),
    (TEXT, {'max_tokens': 0}, 'max_tokens', '0 must be from 1'),
    (TEXT, {'n': 0}, 'n', '0 must be from 1 to 16'),
    (TEXT, {'n': 17}, 'n', '17 must be from 1 to 16'),
    (TEXT, {'presence_penalty': 2.1}, 'presence_penalty', '2.1.* must be from -2 to 2'),
    (TEXT, {'frequency_penalty': -3}, 'frequency_penalty', '-3 must be from -2 to 2'),
    (TEXT, {'logit_bias': []}, 'logit_bias', 'must be an object'),
    (TEXT, {'logit_bias': {'x': 1}}, 'logit_bias', "'x' is no token, they are 0 to 255"),
    (TEXT, {'logit_bias': {'256': 1}}, 'logit_bias', "'256' is no token"),
    (TEXT, {'logit_bias': {'-1': 1}}, 'logit_bias', "'-1' is no token"),
    (TEXT, {'logit_bias': {'1': 101}}, 'logit_bias', '101 must be from -100 to 100'),
    (TEXT, {'logit_bias': {'1': None}}, 'logit_bias', 'must be a number'),
    (TEXT, {'stop': ['x'] * 17}, 'stop', 'at most 16 texts'),
    (TEXT, {'stop': 'x' * 1025}, 'stop', 'at most 1024 bytes'),
    *((TEXT, {'stop': stop}, 'stop', 'must be a text that is not empty') for stop in NO_LIST),
]
BODIES = [  # no object of JSON that can be read
    (b'', 'no JSON from byte 0'), (b' ', 'no JSON'), (b'[]', 'must be a JSON object'),
    (b'"x"', 'must be a JSON object'), (b'{"model"', 'no JSON'), (b'{} x', 'no JSON from byte 3'),
    (b'{}{}', 'no JSON from byte 2'), (b'{"user": "a\\u0000b"}', 'NUL'), (b'{"a\0": 1}', 'NUL'),
    (b'{"user": "\xff"}', 'no UTF-8 from byte 10'), (b'{"user": "\xc3"}', 'no UTF-8 from byte 10'),
    (b'{"user": "\xed\xa0\x80"}', 'no UTF-8'), (b'{"user": "\\ud800"}', 'no JSON'),
    (b'{"prompt": "a", "prompt": "b"}', 'prompt: stands there twice'),
    (b'\xef\xbb\xbf{', 'no JSON'),
    (b'{"prompt": ' + b'[' * 5000 + b']' * 5000 + b'}', 'no JSON'),
    (b'{"temperature": 1e999, "prompt": "a"}', 'temperature: '), (b"{'prompt': 'a'}", 'no JSON'),
    (b'{"%s": 1}' % (b'x' * 200), "unknown field 'x{40}'"), (b'{"seed": NaN}', 'no JSON'),
    (b'{%s}' % b','.join(b'"f%d": 1' % i for i in range(70)), 'unknown'),
]


class Refusals(Case):
    def test_fields(self):
        for path, fields, param, pattern in REFUSED:
            asked = {'messages': USER} if path == CHAT else {'prompt': 'x'}
            with self.subTest(path=path, **fields):
                self.refused(400, pattern, path, {**asked, **fields}, param=param)

    def test_bodies(self):
        for body, pattern in BODIES:
            with self.subTest(body=body[:60]):
                self.refused(400, pattern, TEXT, body=body)

    def test_models(self):
        for path, fields in ((TEXT, {'prompt': 'x'}), (CHAT, {'messages': USER})):
            self.refused(404, "'gpt-5' is not served here, 'chat' is", path,
                         {**fields, 'model': 'gpt-5'}, param='model', code='model_not_found')
        self.assertEqual(self.server.ask(TEXT, body={'prompt': 'x'}).status, 200)

    def test_contexts(self):
        code = 'context_length_exceeded'
        self.refused(400, 'has 513 tokens; 512 are the most', TEXT, {'prompt': 'x' * 513},
                     code=code)
        self.refused(400, 'of 500 tokens and an answer of 14 exceed the context of 512', TEXT,
                     {'prompt': 'x' * 500, 'max_tokens': 14}, code=code)
        self.refused(400, 'tokens; 512 are the most', CHAT, code=code,
                     fields={'messages': [{'role': 'user', 'content': 'x' * 600}]})
        for path, fields in ((TEXT, {'prompt': 'x' * 3000000}),
                             (CHAT, {'messages': [{'role': 'user', 'content': '[A]' * 999999}]})):
            self.refused(400, 'tokens; 512 are the most', path, fields, code=code)
        for n in (500, 512):
            answer = self.server.good(TEXT, prompt='x' * n, max_tokens=513 - n)
            self.assertEqual(answer['usage']['total_tokens'], 513)

    def test_embeddings(self):
        self.refused(400, 'makes no embeddings', '/v1/embeddings', {'input': 'x'})


# ---------------------------------------------------------------- HTTP

class Http(Case):
    def test_hosts(self):
        port = self.server.port
        for host, status in (('127.0.0.1:%d' % port, 200), ('localhost', 200), ('[::1]:80', 200),
                             ('192.168.1.7', 200), ('example.org', 403), ('box.lan', 403),
                             ('localhost.example.org', 403), ('localhost:x', 400), ('[::1', 400),
                             (':80', 400)):
            answer = self.server.ask('/health', headers={'Host': host})
            self.assertEqual(answer.status, status, host)
        bare = self.server.raw(b'GET /health HTTP/1.0\r\n\r\n')
        self.assertRegex(bare, rb'^HTTP/1\.[01] 400 ')

    def test_origins(self):
        host = '127.0.0.1:%d' % self.server.port
        for origin, status in (('http://' + host, 200), ('https://' + host, 200), ('null', 403),
                               ('http://127.0.0.1', 403), ('http://example.org', 403), ('', 403)):
            answer = self.server.ask('/v1/models', headers={'Origin': origin})
            self.assertEqual(answer.status, status, origin)
            self.assertIsNone(answer.headers['Access-Control-Allow-Origin'])
        self.refused(405, 'OPTIONS', TEXT, method='OPTIONS')

    def test_types(self):
        body = b'{"prompt": "x"}'
        for kind, status in (('application/json', 200), ('Application/JSON; charset=utf-8', 200),
                             ('text/plain', 415), ('application/jsonl', 415), ('', 415),
                             (None, 415),
                             ('application/x-www-form-urlencoded', 415)):
            answer = self.server.ask(TEXT, body=body, headers={'Content-Type': kind})
            self.assertEqual(answer.status, status, kind)

    def test_paths(self):
        for method, path, status in (
                ('GET', '/v1/frob', 404), ('GET', '/v1', 404), ('POST', '/v1/models', 405),
                ('GET', TEXT, 405), ('PUT', TEXT, 405), ('DELETE', '/v1/models/chat', 405),
                ('GET', '/v1/models/', 404), ('GET', '//', 404), ('GET', '/health/', 404)):
            answer = self.server.ask(path, method=method, body=b'{}' if method != 'GET' else None)
            self.assertEqual((answer.status, len(answer.error)), (status, 4), (method, path))
            allowed = 'POST' if path == TEXT else 'GET, HEAD'
            self.assertEqual(answer.headers['Allow'], allowed if status == 405 else None)
        for path in ('/', '/page.css', '/page.js', '/health', '/metrics', '/v1/models'):
            got, head = self.server.ask(path), self.server.ask(path, method='HEAD')
            self.assertEqual((got.status, head.status, head.body), (200, 200, b''))
            self.assertEqual(got.headers['Content-Type'], head.headers['Content-Type'])
            self.assertEqual(got.headers['X-Content-Type-Options'], 'nosniff')
        self.assertEqual(self.server.ask(TEXT, method='HEAD').status, 405)
        self.assertEqual(self.server.ask('/health').json, {'status': 'ok'})

    def test_connections_stay(self):
        connection = self.server.connect()
        connection.connect()
        end = connection.sock
        asked = [dict(path='/health'), dict(path=TEXT, prompt='x'), dict(path=TEXT, prompt=5),
                 dict(path='/v1/frob'), dict(path=TEXT, body=b'{'),
                 dict(path='/v1/frob', body=b'x' * 9999),
                 dict(path=TEXT, body=b'{}', headers={'Content-Type': 'text/plain'}),
                 dict(path='/health', headers={'Host': 'example.org'}),
                 dict(path=TEXT, prompt='x', stream=True), dict(path=TEXT, prompt='x')]
        statuses = [self.server.ask(connection=connection, **ask).status for ask in asked]
        self.assertEqual(statuses, [200, 200, 400, 404, 400, 404, 415, 403, 200, 200])
        self.assertIs(connection.sock, end)
        connection.close()

    def test_one_after_another(self):
        """Requests that are sent before the first is answered; an old client's stream."""
        body = b'{"prompt": "x", "max_tokens": 3}'
        head = b'POST %s HTTP/1.%d\r\nHost: localhost\r\nContent-Type: application/json\r\n%s'
        end = b'Content-Length: %d\r\n\r\n%s' % (len(body), body)
        path = TEXT.encode()
        last = b'Connection: close\r\n' + end
        said = self.server.raw(head % (path, 1, end) + head % (path, 1, last))
        self.assertEqual(said.count(b'HTTP/1.1 200 OK\r\n'), 2)
        body = body.replace(b'}', b', "stream": true}')
        end = b'Content-Length: %d\r\n\r\n%s' % (len(body), body)
        said = self.server.raw(head % (path, 0, end))
        self.assertNotIn(b'chunked', said)
        self.assertTrue(said.endswith(b'data: [DONE]\n\n'), said)

    def test_chunked_bodies(self):
        body = iter([b'{"prompt": ', b'"x", ', b'"max_tokens": 3}'])
        connection = self.server.connect()
        connection.request('POST', TEXT, body, JSON, encode_chunked=True)
        self.assertEqual(connection.getresponse().status, 200)
        connection.close()

    def test_metrics(self):
        before = self.server.metrics()
        self.server.good(TEXT, prompt='y' * 40, max_tokens=9, temperature=0)
        self.server.ask(TEXT, prompt=5)
        self.server.ask('/frob')
        name = 'tamis_request_seconds_count'
        after = self.server.wait_until(lambda m: m[name] > before[name] and (
            m['tamis_requests_running'], m['tamis_connections']) == (0, 1))

        def more(name):
            return after['tamis_' + name] - before['tamis_' + name]
        self.assertEqual([more(name) for name in (
            'prompt_tokens_total', 'generated_tokens_total', 'first_token_seconds_count',
            'next_token_seconds_count', 'request_seconds_count')], [40, 9, 1, 8, 1])
        for path, code in ((TEXT, 200), (TEXT, 400), ('other', 404)):
            asked = after.answered(path, code) - before.answered(path, code)
            self.assertEqual(asked, 1, (path, code))
        self.assertGreaterEqual(more('steps_total'), 9)
        self.assertEqual(more('rows_total') + more('cached_tokens_total'), 40 + 8)
        self.assertGreater(after['tamis_pages'], 0)

    @unittest.skipUnless(shutil.which('curl'), 'no curl')
    def test_curl(self):
        def curl(*arguments, **streams):
            return subprocess.run(['curl', '-s', '--noproxy', '*', *arguments], capture_output=True,
                                  timeout=LIMIT, check=True, **streams).stdout.decode()
        url = 'http://127.0.0.1:%d' % self.server.port
        body = '{"model": "chat", "stream": true, "temperature": 0, "prompt": "%s"}' % PROMPT
        said = curl('-N', url + TEXT, '-H', 'Content-Type: application/json', '-d', body)
        self.assertTrue(said.endswith('data: [DONE]\n\n'))
        self.assertRegex(curl('-I', url + '/health'), '^HTTP/1.1 200')
        said = curl('-o', '/dev/null', '-w', '%{http_code}', url + TEXT, '-d', body)
        self.assertEqual(said, '415')
        # The server says that it does not want the body before curl has sent it.
        said = curl('-o', '/dev/null', '-w', '%{http_code} %{size_upload}', url + TEXT, '-H',
                    'Content-Type: application/json', '-H', 'Expect: 100-continue', '-d', '@-',
                    input=b'x' * 5000000)
        self.assertEqual(said, '413 0')


class Keys(Case):
    @classmethod
    def setUpClass(cls):
        cls.path = os.path.join(given.folder, 'keys')
        with open(cls.path, 'w', opener=lambda *a: os.open(*a, 0o600)) as file:
            file.write('first-key\r\n\nsecond-key\n')
        cls.server = Server(given.tamis, given.model, '--context', '512', '--api-key-file',
                            cls.path, '--cors-origin', 'https://example.org', '--allow-host',
                            'box.lan', '--name', 'a name', TAMIS_API_KEY='third-key')
        cls.addClassCleanup(cls.server.end)

    def asked(self, path, key, **ask):
        headers = {**ask.pop('headers', {}), **({'Authorization': key} if key is not None else {})}
        return self.server.ask(path, headers=headers, **ask)

    def test_who_may_ask(self):
        for key, status in (('Bearer first-key', 200), ('bearer second-key', 200),
                            ('Bearer third-key', 200), ('Bearer first-ke', 401), ('Bearer ', 401),
                            ('Bearer first-key2', 401), ('first-key', 401),
                            ('Basic first-key', 401), ('Bearer ' + 'x' * 999, 401), (None, 401)):
            answer = self.asked('/v1/models', key)
            self.assertEqual(answer.status, status, key)
            if status == 401:
                self.assertEqual(answer.error['code'], 'invalid_api_key')
                self.assertEqual(answer.headers['WWW-Authenticate'], 'Bearer')
                self.assertNotIn('key2', answer.error['message'])
        for path, status in (('/health', 200), ('/', 200), ('/page.css', 200), ('/page.js', 200),
                             ('/metrics', 401), ('/v1/models/a', 401), ('/frob', 401)):
            self.assertEqual(self.asked(path, None).status, status, path)
        self.assertEqual(self.asked('/tokenize', None, body={'content': 'x'}).status, 401)
        self.assertEqual(self.asked('/frob', 'Bearer first-key').status, 404)
        self.assertEqual(self.asked('/v1/models/a%20name', 'Bearer first-key').status, 200)

    def test_prefixes_are_a_key_s_own(self):
        def cached(key, prompt):
            answer = self.asked(TEXT, 'Bearer ' + key, body={'prompt': prompt, 'max_tokens': 2})
            return answer.json['usage']['prompt_tokens_details']['cached_tokens']
        prompt = given.book[:200]
        self.assertEqual(cached('first-key', prompt), 0)
        self.assertGreaterEqual(cached('first-key', prompt), 176)
        self.assertEqual(cached('second-key', prompt), 0)
        self.assertEqual(cached('third-key', prompt), 0)
        self.assertGreaterEqual(cached('second-key', prompt), 176)
        self.assertEqual(cached('first-key', given.book[1:200]), 0)

    def test_other_origins(self):
        site = {'Origin': 'https://example.org'}
        answer = self.asked('/v1/models', 'Bearer first-key', headers=site)
        self.assertEqual((answer.status, answer.headers['Access-Control-Allow-Origin'],
                          answer.headers['Vary']), (200, site['Origin'], 'Origin'))
        self.assertEqual(answer.headers['Access-Control-Expose-Headers'], 'Retry-After')
        self.assertEqual(self.asked('/v1/models', None, headers=site)
                         .headers['Access-Control-Allow-Origin'], site['Origin'])
        asks = {**site, 'Access-Control-Request-Method': 'POST',
                'Access-Control-Request-Headers': 'authorization,content-type,x-stainless-os'}
        answer = self.asked(TEXT, None, method='OPTIONS', headers=asks)
        self.assertEqual((answer.status, answer.body), (204, b''))
        self.assertEqual(answer.headers['Access-Control-Allow-Origin'], site['Origin'])
        # OpenAI's package for JavaScript sends headers of its own.
        plain = 'Authorization, Content-Type'
        for asked, told in ((asks['Access-Control-Request-Headers'],) * 2, ('x-a, X-b',) * 2,
                            ('x: y', plain), ('x\xe9', plain), ('', plain), (None, plain)):
            answer = self.asked(TEXT, None, method='OPTIONS',
                                headers={**asks, 'Access-Control-Request-Headers': asked})
            self.assertEqual((answer.status, answer.headers['Access-Control-Allow-Headers']),
                             (204, told))
        self.assertIn('POST', answer.headers['Access-Control-Allow-Methods'])
        for origin in ('http://example.org', 'https://example.org:8443', 'https://x.example.org'):
            answer = self.asked(TEXT, None, method='OPTIONS', headers={**asks, 'Origin': origin})
            self.assertEqual(answer.status, 403)
            self.assertIsNone(answer.headers['Access-Control-Allow-Origin'])
        self.assertEqual(self.asked('/frob', None, method='OPTIONS', headers=asks).status, 404)
        self.assertEqual(self.asked('/health', None, headers={'Host': 'box.lan:80'}).status, 200)

    def test_starts(self):
        def start(*options, status=1, **variables):
            done = subprocess.run([given.tamis, 'serve', '--model', given.model, '--device',
                                   'reference', *options], capture_output=True, timeout=LIMIT,
                                  env=environment(**variables), encoding='utf-8')
            self.assertEqual(done.returncode, status, (options, done.stderr))
            return done.stderr
        for mode, text, pattern in (
                (0o604, 'k\n', 'everybody may read it'), (0o600, '\n', 'has no key'),
                (0o600, 'a b\n', 'byte 1 of key 1'), (0o600, 'x' * 513, 'at most')):
            path = os.path.join(given.folder, 'other-keys')
            with open(path, 'w') as file:
                file.write(text)
            os.chmod(path, mode)
            self.assertRegex(start('--api-key-file', path), pattern)
        self.assertRegex(start('--api-key-file', given.folder + '/none'), 'No such file')
        self.assertRegex(start('--port', str(self.server.port)), 'on: Address already in use')
        self.assertRegex(start('--host', 'nowhere'), 'is no IP address')
        self.assertRegex(start('--cache-tokens', '100'), 'less than the context')
        self.assertRegex(start('--body-limit', 'x', status=2), '--body-limit')
        self.assertRegex(start('--store', given.folder, '--blend', 'all', '--share', '5', status=2),
                         '--share: is given, but all has none')


# ---------------------------------------------------------------- limits and the end

class Limits(Case):
    options = ('--time-limit', '2', '--timeout', '1', '--body-limit', '2K')

    def test_bodies(self):
        self.refused(413, 'the body has 3000 bytes; 2048 are the most', TEXT, body=b'x' * 3000)
        connection = self.server.connect()
        connection.request('POST', TEXT, iter([b'x' * 999] * 3), JSON, encode_chunked=True)
        answer = connection.getresponse()
        self.assertEqual(answer.status, 413)
        self.assertIn(b'more than 2048', answer.read())
        self.assertEqual(self.server.ask('/health', connection=connection).status, 200)
        self.assertEqual(self.server.ask(TEXT, body=b' ' * 2032 + b'{"prompt": "xy"}').status, 200)

    def test_times(self):
        """Answers that would take too long; connections may well be silent in the meantime."""
        asked = {'prompt': given.book[:1000], 'max_tokens': 15000, 'n': 4}
        before = self.server.metrics()['tamis_requests_cut_total']
        connection, response = self.server.begin(TEXT, **asked)
        self.refused(503, 'took more than 2 seconds', TEXT, asked, code='time_limit')
        events = response.read().decode()
        self.assertRegex(events.split('data: ')[-1], '"code":"time_limit"')
        connection.close()
        self.assertEqual(self.server.metrics()['tamis_requests_cut_total'], before + 2)

    def test_silence(self):
        head = b'POST %s HTTP/1.1\r\nHost: localhost\r\n' % TEXT.encode()
        rest = b'Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{'
        for data in (b'', head, head + rest):
            self.assertRegex(self.server.raw(data), rb'^(HTTP/1\.1 408 .*)?$|^$')

    def test_nonsense(self):
        negative = b'POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n'
        long = b'GET /health HTTP/1.1\r\nHost: localhost\r\nX: %s\r\n\r\n' % (b'x' * 70000)
        for data in (b'\r\n' * 9 + b'\0' * 99 + b'\r\n\r\n', b'GET\r\n\r\n',
                     b'\x16\x03\x01\x02\0\r\n\r\n', negative % TEXT.encode(), long):
            self.assertRegex(self.server.raw(data), rb'^(HTTP/1\.[01] [45]\d\d |$)', data[:40])
        self.assertEqual(self.server.ask('/health').status, 200)

    def test_queue(self):
        with serving(given.tamis, given.model, '--running', '1', '--queue', '0') as server:
            connection, response = server.begin(TEXT, prompt='x', max_tokens=16000)
            answer = self.refused(503, '1 answers run or wait; 1 are the most', TEXT,
                                  {'prompt': 'y'}, server=server, code='queue_full')
            self.assertIn(int(answer.headers['Retry-After']), range(1, 61))
            self.refused(400, '2 must be from 1 to 1', TEXT, {'prompt': 'y', 'n': 2}, server=server)
            # A client that leaves makes room.
            response.close()
            connection.close()
            server.wait_until(lambda m: m['tamis_requests_hung_up_total'] == 1)
            server.wait_until(lambda _: server.ask(TEXT, prompt='y').status == 200)


class Ends(unittest.TestCase):
    """What happens when the server stops while it answers."""

    def started(self, *options):
        server = Server(given.tamis, given.model, *options)
        self.addCleanup(server.close)
        return server

    def is_closed(self, server):
        server.wait_for('stopping; the port is closed')
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(('127.0.0.1', server.port), LIMIT)

    def test_answers_go_on(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            server = self.started()
            connection, response = server.begin(TEXT, prompt=PROMPT, max_tokens=1000, temperature=0)
            server.signal(number)
            self.is_closed(server)
            body = response.read().decode()
            self.assertTrue(body.endswith('data: [DONE]\n\n'), body[-200:])
            self.assertEqual(body.count('"finish_reason":"length"'), 1)
            self.assertEqual(server.ended()[0], 0)
            connection.close()

    def test_answers_are_cut(self):
        for seconds in ('0', '1'):
            server = self.started('--drain', seconds)
            connection, response = server.begin(TEXT, prompt='x', max_tokens=16000)
            server.signal(signal.SIGTERM)
            self.is_closed(server)
            body = response.read().decode()
            self.assertRegex(body.split('data: ')[-1], '"code":"stopping"')
            self.assertEqual(server.ended()[0], 0)
            connection.close()

    def test_second_signal(self):
        for first, second in ((signal.SIGINT, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)):
            server = self.started()
            before = server.connect()
            self.assertEqual(server.ask('/health', connection=before).status, 200)
            connection, _ = server.begin(TEXT, prompt='x', max_tokens=16000)
            server.signal(first)
            self.is_closed(server)
            # A connection that was there before is told so.
            answer = server.ask(TEXT, prompt='x', connection=before)
            self.assertEqual((answer.status, answer.error['code']), (503, 'stopping'))
            self.assertEqual(server.ask('/health', connection=before).status, 503)
            server.signal(second)
            self.assertEqual(server.ended()[0], -second)
            connection.close()
            before.close()

    def test_nothing_to_do(self):
        server = self.started()
        server.signal(signal.SIGINT)
        code, said = server.ended()
        self.assertEqual((code, said.split('\n')[1:]),
                         (0, ['tamis serve: stopping; the port is closed']))


if __name__ == '__main__':
    main()
