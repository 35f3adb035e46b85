#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers of `tamis serve`: what is asked for is done, and they are those of `tamis run`.

Usage: test_serve.py TAMIS DATA_FOLDER [unittest's options, -kNAME]

Most of it asks by Python's own HTTP. The package openai comes from PyPI into a temporary folder;
where it does not come, its tests are skipped.
"""
import concurrent.futures
import itertools
import math
import os
import re
import subprocess
import sys
import tempfile
import unittest

from client import (CHAT, LIMIT, PROMPT, TEXT, USER, Case, environment, given, main, serving,
                    shared, word_model)

OPENAI = 'openai==3.57.0'
BOS, EOS = 1, 2  # tokens are bytes
SAID = '\x01[INST] And the name of [/INST]'  # what the template makes of USER
EVERY = {'model', 'id', 'object', 'created', 'choices', 'usage', 'tamis'}


def run(*arguments, model=None, device='reference', prompt=None, tokens=24, **streams):
    """The answer of `tamis run`, or the answers, without the line's end."""
    own = ['--prompt', prompt] if prompt is not None else []
    streams.setdefault('input', '')
    return subprocess.run(
        [given.tamis, 'run', '--model', model or given.model, '--device', device, *own, '--tokens',
         str(tokens), *arguments], capture_output=True, check=True, timeout=LIMIT,
        env=environment(), encoding='utf-8', **streams).stdout[:-1]


def device_of(pattern):
    """The first device that fits; None: there is none."""
    said = subprocess.run([given.tamis, 'devices'], capture_output=True, encoding='utf-8',
                          env=environment()).stdout
    found = re.search(pattern, said)
    return found and found.group()


def text_of(events, index=0):
    """The text of a stream's answer."""
    said = [choice for event in events for choice in event['choices'] if choice['index'] == index]
    return ''.join(choice['text'] if 'text' in choice else choice['delta'].get('content', '')
                   for choice in said)


def finishes(events):
    return [choice['finish_reason'] for event in events for choice in event['choices']
            if choice['finish_reason']]


def cut(text, *stops):
    """The text before the stop that is complete first, of these the longest."""
    ends = [(text.index(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    return text[:sum(min(ends))] if ends else text


def likely(top):
    return sum(math.exp(logprob) for logprob in top)


# ---------------------------------------------------------------- answers

class Answers(Case):
    def test_models(self):
        models = self.server.good('/v1/models')
        self.assertEqual([m['id'] for m in models['data']], ['chat'])
        one = self.server.good('/v1/models/chat')
        self.assertEqual(one, models['data'][0])
        self.assertEqual((one['object'], one['context']), ('model', 512))
        self.refused(404, "'other' is not served", '/v1/models/other', code='model_not_found')

    def test_chat(self):
        whole = self.server.good(CHAT, messages=USER, temperature=0, max_tokens=24)
        self.assertEqual(set(whole), EVERY)
        self.assertEqual(whole['object'], 'chat.completion')
        choice, = whole['choices']
        text = choice['message']['content']
        self.assertEqual(choice, {
            'index': 0, 'finish_reason': 'length', 'logprobs': None,
            'message': {'role': 'assistant', 'content': text, 'refusal': None}})
        self.assertEqual(whole['usage']['prompt_tokens'], len(SAID))
        self.assertEqual(text, self.server.text(SAID, max_tokens=24))
        events = self.server.ask(CHAT, messages=USER, temperature=0, max_tokens=24,
                                 stream=True).events
        self.assertEqual(events[0]['choices'][0]['delta'], {'role': 'assistant', 'content': ''})
        self.assertEqual({e['object'] for e in events}, {'chat.completion.chunk'})
        self.assertEqual(len({e['id'] for e in events}), 1)
        self.assertEqual((text_of(events), finishes(events)), (text, ['length']))
        self.assertFalse(any('usage' in e for e in events))

    def test_completions(self):
        whole = self.server.good(TEXT, prompt=PROMPT, temperature=0)
        text = whole['choices'][0]['text']
        self.assertEqual((set(whole), len(text)), (EVERY, 16))  # 16 tokens is the default
        answer = self.server.ask(TEXT, prompt=PROMPT, temperature=0, stream=True,
                                 stream_options={'include_usage': True})
        self.assertEqual(answer.headers['Content-Type'], 'text/event-stream')
        *events, last = answer.events
        self.assertEqual((text_of(events), finishes(events)), (text, ['length']))
        self.assertTrue(all(e['usage'] is None for e in events))
        self.assertEqual(last['choices'], [])
        for usage in (last['usage'], whole['usage']):
            self.assertEqual((usage['prompt_tokens'], usage['completion_tokens'],
                              usage['total_tokens']), (len(PROMPT), 16, len(PROMPT) + 16))

    def test_lengths(self):
        for name in ('max_tokens', 'max_completion_tokens'):
            answer = self.server.good(CHAT, messages=USER, temperature=0, **{name: 5})
            self.assertEqual(answer['usage']['completion_tokens'], 5)
        answer = self.server.good(CHAT, messages=USER, temperature=0, logit_bias={EOS: -100})
        self.assertEqual(answer['usage']['total_tokens'], 513)  # the last token is not run
        self.assertEqual(answer['choices'][0]['finish_reason'], 'length')
        answer = self.server.good(CHAT, messages=USER, logit_bias={EOS: 100})
        choice = answer['choices'][0]
        self.assertEqual((choice['message']['content'], choice['finish_reason']), ('', 'stop'))
        self.assertEqual(answer['usage']['completion_tokens'], 1)

    def check_stops(self, server, text, stops, **fields):
        wanted = cut(text, *([stops] if isinstance(stops, str) else stops))
        whole = server.good(TEXT, temperature=0, stop=stops, **fields)['choices'][0]
        self.assertEqual(whole['text'], wanted, stops)
        self.assertEqual(whole['finish_reason'], 'stop' if len(wanted) < len(text) else 'length')
        events = server.ask(TEXT, temperature=0, stop=stops, stream=True, **fields).events
        self.assertEqual(text_of(events), wanted, stops)

    def test_stops(self):
        asked = {'prompt': PROMPT, 'max_tokens': 32}
        text = self.server.text(**asked)
        for stops in (text[0], text[5], text[5:9], text[2:32], 'no such text', text[5:9] + '\n',
                      [text[20:24], text[9:11]], [text[9:12], text[11], 'x'],
                      [text[8:12], text[9:12]],
                      ['%d' % i for i in range(15)] + [text[12:14]]):
            self.check_stops(self.server, text, stops, **asked)
        for nothing in (None, []):
            self.assertEqual(self.server.text(**asked, stop=nothing), text)

    def test_sampling(self):
        def drawn(**fields):
            asked = {'temperature': 1, 'max_tokens': 40, 'seed': 5, **fields}
            return self.server.text(PROMPT, **asked)
        greedy = self.server.text(PROMPT, max_tokens=40)
        self.assertEqual(drawn(), drawn())
        self.assertEqual(drawn(seed=-1), drawn(seed=-1))
        self.assertNotEqual(drawn(), drawn(seed=6))
        self.assertNotEqual(drawn(seed=None, temperature=2), drawn(seed=None, temperature=2))
        self.assertEqual({drawn(top_k=1), drawn(top_p=0), drawn(min_p=1), drawn(temperature=0)},
                         {greedy})
        flags = '--temperature', '1', '--seed', '5', '--top-k', '9', '--top-p', '0.95'
        self.assertEqual(drawn(top_k=9, top_p=0.95), run(*flags, prompt=PROMPT, tokens=40))

    def test_several_answers(self):
        def answers(**fields):
            asked = {'messages': USER, 'n': 3, 'max_tokens': 32, 'logit_bias': {EOS: -100},
                     **fields}
            whole = self.server.good(CHAT, **asked)
            events = self.server.ask(CHAT, **asked, stream=True).events
            texts = [choice['message']['content'] for choice in whole['choices']]
            self.assertEqual([choice['index'] for choice in whole['choices']], [0, 1, 2])
            self.assertEqual(whole['usage']['completion_tokens'], 96)
            self.assertEqual(whole['usage']['prompt_tokens'], len(SAID))
            self.assertEqual([text_of(events, i) for i in range(3)], texts)
            self.assertEqual(finishes(events), ['length'] * 3)
            return texts
        self.assertEqual(len(set(answers(temperature=0))), 1)
        drawn = answers(temperature=1.5, seed=3)
        self.assertEqual(len(set(drawn)), 3)
        one = self.server.good(CHAT, messages=USER, temperature=1.5, seed=5, max_tokens=32,
                               logit_bias={EOS: -100})
        self.assertEqual(one['choices'][0]['message']['content'], drawn[2])

    def test_prompts(self):
        texts = ['And the name of', 'And it came to pass']
        alone = [self.server.text(text) for text in texts]
        tokens = [list(text.encode()) for text in texts]
        for prompt, wanted in ((tokens[0], alone[:1]), (texts, alone), (tokens, alone),
                               ([texts[0], tokens[1]], alone), (texts[:1], alone[:1])):
            answer = self.server.good(TEXT, prompt=prompt, temperature=0)
            self.assertEqual([c['text'] for c in answer['choices']], wanted)
        answer = self.server.good(TEXT, prompt=texts, n=2, temperature=0)
        self.assertEqual([c['text'] for c in answer['choices']], [alone[0]] * 2 + [alone[1]] * 2)
        self.assertEqual(answer['usage']['prompt_tokens'], sum(map(len, texts)))

    def test_tokens(self):
        text = 'In the beginning'
        tokens = self.server.good('/tokenize', body={'content': text})['tokens']
        self.assertEqual(tokens, list(text.encode()))
        self.assertEqual(self.server.good('/detokenize', body={'tokens': tokens}),
                         {'content': text})
        broken = self.server.good('/detokenize', body={'tokens': [65, 0xc3, 66, 0xc3, 0xa9, 0]})
        self.assertEqual(broken['content'], 'A\ufffdB\u00e9\ufffd')
        for path, fields, pattern in (
                ('/tokenize', {'content': 5}, 'content: must be a text'),
                ('/tokenize', {'content': 'x', 'add_special': 1}, 'add_special: must be true or'),
                ('/tokenize', {'content': 'x', 'frob': 1}, "unknown field 'frob'"),
                ('/detokenize', {'tokens': 5}, 'tokens: must be a list'),
                ('/detokenize', {'tokens': ['x']}, 'tokens: tokens must be numbers'),
                ('/detokenize', {'tokens': [256]}, 'tokens: 256 is no token, they are 0 to 255'),
                ('/detokenize', {'tokens': [1.5]}, 'tokens: 1.5 is no token')):
            self.refused(400, pattern, path, body=fields)

    def test_messages(self):
        def content(parts):
            asked = [{'role': 'user', 'content': parts}]
            answer = self.server.good(CHAT, messages=asked, temperature=0, max_tokens=8)
            return answer['choices'][0]['message']['content'], answer['usage']['prompt_tokens']
        plain = content('Book. Question?')
        self.assertEqual(content([{'type': 'text', 'text': 'Book. '},
                                  {'type': 'text', 'text': 'Question?'}]), plain)
        self.assertEqual(content([{'type': 'document', 'text': 'Book.'},
                                  {'type': 'text', 'text': ' Question?'}]), plain)
        talk = [{'role': 'developer', 'content': 'Be good.'}, *USER,
                {'role': 'assistant', 'content': 'Ruth', 'refusal': None, 'tool_calls': [],
                 'audio': None}, *USER]
        said = ('\x01[INST] Be good.\n\nAnd the name of [/INST] Ruth\x02'
                '[INST] And the name of [/INST]')
        answer = self.server.good(CHAT, messages=talk, temperature=0, max_tokens=16)
        self.assertEqual(answer['choices'][0]['message']['content'], self.server.text(said))
        talk[0]['role'] = 'system'
        self.assertEqual(self.server.good(CHAT, messages=talk, temperature=0, max_tokens=16)
                         ['choices'], answer['choices'])

    def test_what_changes_nothing(self):
        plain = self.server.text(PROMPT)
        for fields in ({'user': 'me', 'metadata': {'a': 'b'}, 'service_tier': 'auto'},
                       {'echo': False, 'best_of': 1, 'prompt_cache_key': 'x'},
                       {'safety_identifier': 'y', 'prompt_cache_retention': '24h'},
                       {'echo': None, 'n': None, 'stop': None, 'logprobs': None, 'stream': None,
                        'suffix': None, 'top_k': None, 'frob': None, 'logit_bias': None}):
            self.assertEqual(self.server.text(PROMPT, **fields), plain)
        plain = self.server.good(CHAT, messages=USER, temperature=0, max_tokens=9)['choices']
        for fields in ({'store': True, 'user': 'me', 'metadata': {}, 'parallel_tool_calls': True},
                       {'tools': [], 'functions': [], 'tool_choice': 'none'},
                       {'modalities': ['text'], 'response_format': {'type': 'text'}},
                       {'function_call': 'none', 'audio': None, 'logit_bias': {}},
                       {'max_completion_tokens': 9, 'stream_options': None, 'top_logprobs': None}):
            answer = self.server.good(CHAT, messages=USER, temperature=0, max_tokens=9, **fields)
            self.assertEqual(answer['choices'], plain)


class Characters(Case):
    """Tokens that are parts of characters."""

    def test_bytes(self):
        """Of random bytes, most are no UTF-8: a stream says what a whole answer says."""
        bias = {str(byte): 20 for byte in (0xc3, 0xa9, 0xe2, 0x82, 0xac)}
        for seed in range(4):
            asked = {'prompt': PROMPT, 'temperature': 2, 'seed': seed, 'max_tokens': 64,
                     'logit_bias': bias, 'logprobs': 5}
            whole = self.server.good(TEXT, **asked)['choices'][0]
            events = self.server.ask(TEXT, **asked, stream=True).events
            self.assertEqual(text_of(events), whole['text'])
            self.assertRegex(whole['text'], '[\u00e9\ufffd]')
            told = [e['choices'][0]['logprobs'] for e in events]
            # Offsets count characters: a token that begins one shows it there.
            for token, at in zip(whole['logprobs']['tokens'], whole['logprobs']['text_offset']):
                shown = whole['text'][at:at + 1]
                self.assertTrue(shown > '\x7f' or shown == '' if token.startswith('bytes:')
                                else shown == token, (token, shown))
            for name, values in whole['logprobs'].items():
                self.assertEqual([v for some in told if some for v in some[name]], values)
            # Tokens that are no characters have names of their own.
            for token in whole['logprobs']['tokens']:
                self.assertRegex(token, r'^(bytes:\\x[089a-f][0-9a-f]|[\0-\x7f])$')

    def test_words(self):
        model = word_model(given.data, given.folder)
        if model is None:
            self.skipTest('no NumPy')
        with serving(given.tamis, model, '--context', '512') as server:
            asked = {'prompt': 'And he said unto them', 'max_tokens': 48, 'logit_bias': {EOS: -100}}
            first = server.good(TEXT, temperature=0, logprobs=0, **asked)['choices'][0]
            text, tokens = first['text'], first['logprobs']['tokens']
            self.assertGreater(max(map(len, tokens)), 1)
            self.assertEqual(text, run(model=model, prompt=asked['prompt'], tokens=48))
            parts = [text[i:i + n] for i, n in itertools.product(range(0, 40, 7), (1, 2, 5))]
            for part in parts:
                if '\ufffd' not in part:
                    Answers.check_stops(self, server, text, part, **asked)
                    if text.isascii():
                        Probabilities.check_stopped(self, TEXT, part, max(map(len, tokens)), server,
                                                    **asked)
            tokens = server.good('/tokenize', body={'content': 'and the'})['tokens']
            special = server.good('/tokenize', body={'content': 'and the',
                                                     'add_special': True})['tokens']
            self.assertEqual(special, [BOS] + tokens)
            self.assertEqual(server.good(TEXT, prompt='and the')['usage']['prompt_tokens'],
                             len(special))
            # A model without a template answers prompts alone.
            server.wait_for('no chat: ')
            self.refused(400, '/v1/completions takes a prompt', CHAT, {'messages': USER},
                         server=server, code='no_chat_template')


# ---------------------------------------------------------------- probabilities

class Probabilities(Case):
    def chat(self, **fields):
        """Tokens as bytes, with all that is told of them."""
        asked = {'messages': USER, 'temperature': 0, 'max_tokens': 24, 'logprobs': True,
                 'top_logprobs': 20, 'logit_bias': {}, **fields}
        choice = self.server.good(CHAT, **asked)['choices'][0]
        entries = choice['logprobs']['content']
        said = b''.join(bytes(entry['bytes']) for entry in entries)
        self.assertEqual(said.decode(), choice['message']['content'])
        events = self.server.ask(CHAT, **asked, stream=True).events
        told = [e['choices'][0]['logprobs'] for e in events]
        self.assertEqual([entry for some in told if some for entry in some['content']], entries)
        return entries

    def test_of_chats(self):
        for entry in self.chat():
            top = entry.pop('top_logprobs')
            self.assertEqual((len(top), top[0]), (20, entry))
            self.assertEqual(bytes(entry['bytes']).decode(), entry['token'])
            logprobs = [other['logprob'] for other in top]
            self.assertEqual(logprobs, sorted(logprobs, reverse=True))
            self.assertLessEqual(likely(logprobs), 1 + 1e-5)
            self.assertEqual(len({tuple(other['bytes']) for other in top}), 20)
        self.assertEqual([entry['top_logprobs'] for entry in self.chat(top_logprobs=0)], [[]] * 24)
        plain = self.server.good(CHAT, messages=USER, temperature=0, max_tokens=24)['choices'][0]
        self.assertEqual(b''.join(bytes(entry['bytes']) for entry in self.chat()).decode(),
                         plain['message']['content'])

    def test_of_completions(self):
        whole = self.server.good(TEXT, prompt=PROMPT, temperature=0, logprobs=5)['choices'][0]
        told = whole['logprobs']
        self.assertEqual(''.join(told['tokens']), whole['text'])
        self.assertEqual(told['text_offset'], list(range(16)))
        for token, logprob, top in zip(*(told[name] for name in (
                'tokens', 'token_logprobs', 'top_logprobs'))):
            self.assertEqual((len(top), max(top, key=top.get), top[token]), (5, token, logprob))
            self.assertLessEqual(likely(top.values()), 1 + 1e-5)
        drawn = self.server.good(TEXT, prompt=PROMPT, temperature=1.5, seed=1, logprobs=0,
                                 max_tokens=40)['choices'][0]['logprobs']
        self.assertEqual(drawn['top_logprobs'], [{}] * 40)
        self.assertTrue(all(logprob <= 0 for logprob in drawn['token_logprobs']))

    def check_stopped(self, path, stop, longest, server, **fields):
        """Tokens are told of as far as their text is, in each event of a stream, too."""
        def tokens_of(told):
            if told is None:
                return b''
            if path == CHAT:
                return b''.join(bytes(entry['bytes']) for entry in told['content'])
            return ''.join(told['tokens']).encode()
        asked = {'temperature': 0, 'max_tokens': 24, 'logprobs': True if path == CHAT else 1,
                 'stop': stop, **fields}
        whole = server.good(path, **asked)['choices'][0]
        text = (whole['message']['content'] if path == CHAT else whole['text']).encode()
        said, last = tokens_of(whole['logprobs']), b''
        self.assertTrue(said.startswith(text), (said, text))
        self.assertLess(len(said) - len(text), longest, (said, text))
        events = [e['choices'][0] for e in server.ask(path, stream=True, **asked).events]
        told = [tokens_of(event['logprobs']) for event in events]
        self.assertEqual(b''.join(told), said)
        for i in range(len(events)):
            shown = ''.join(e['text'] if path == TEXT else e['delta'].get('content', '')
                            for e in events[:i + 1]).encode()
            last += told[i]
            self.assertTrue(last.startswith(shown), (last, shown))
            self.assertLess(len(last) - len(shown), longest, (last, shown))
        if path == TEXT:
            offsets = (whole['logprobs'] or {}).get('text_offset', [])
            self.assertTrue(all(offset < len(text) for offset in offsets), offsets)

    def test_stops(self):
        for path, fields in ((TEXT, {'prompt': PROMPT}), (CHAT, {'messages': USER})):
            choice = self.server.good(path, temperature=0, max_tokens=24, **fields)['choices'][0]
            text = choice['text'] if path == TEXT else choice['message']['content']
            for stop in (text[8:14], text[0], text[2:24], text[5:9] + '\n', 'none'):
                self.check_stopped(path, stop, 1, self.server, **fields)

    def test_what_is_drawn_from(self):
        """By probabilities of the model, which are those at temperature 1."""
        for fields, among in (
                ({'top_k': 3}, lambda rank, before, p, most: rank < 3),
                ({'top_p': 0.6}, lambda rank, before, p, most: before < 0.6 + 1e-5),
                ({'min_p': 0.3}, lambda rank, before, p, most: p >= 0.3 * most - 1e-5)):
            ranks = set()
            for entry in self.chat(temperature=1, seed=9, max_tokens=60, **fields):
                top = [(tuple(other['bytes']), math.exp(other['logprob']))
                       for other in entry['top_logprobs']]
                rank = [token for token, _ in top].index(tuple(entry['bytes']))
                before = sum(p for _, p in top[:rank])
                self.assertTrue(among(rank, before, top[rank][1], top[0][1]), (fields, entry))
                ranks.add(rank)
            self.assertIn(1, ranks)

    def check_changed(self, change, **fields):
        """The token drawn is that of the largest changed logit, where the 20 likeliest decide."""
        counts, decided = {}, 0
        for entry in self.chat(max_tokens=60, **fields):
            logits = {other['bytes'][0]: other['logprob'] for other in entry['top_logprobs']}
            changed = {token: logit + change(token, counts.get(token, 0))
                       for token, logit in logits.items()}
            ranked = sorted(changed, key=changed.get, reverse=True)
            token, = entry['bytes']
            # Those not told of are less likely than the last one; they may gain what `change` adds.
            lead = changed[ranked[0]] - max(changed[ranked[1]], min(logits.values()))
            if lead > 1e-4:
                self.assertEqual(token, ranked[0], fields)
                decided += 1
            counts[token] = counts.get(token, 0) + 1
        self.assertGreater(decided, 40)

    def test_penalties(self):
        for frequency, presence in ((2, 0), (0, 2), (0.7, 0.4), (0.5, -0.5)):
            self.check_changed(lambda token, count: -count * frequency - (count > 0) * presence,
                               frequency_penalty=frequency, presence_penalty=presence)
        # What was said is said again.
        loop = self.server.text(PROMPT, frequency_penalty=-2, max_tokens=64)
        self.assertEqual(len(set(loop[32:])), 1)

    def test_biases(self):
        bias = {ord('e'): -4, ord(' '): -2.5}
        self.check_changed(lambda token, count: bias.get(token, 0), logit_bias=bias)
        plain = self.server.text(PROMPT, max_tokens=40)
        banned = {ord(character): -100 for character in set(plain)}
        other = self.server.text(PROMPT, max_tokens=40, logit_bias=banned)
        self.assertFalse(set(other) & set(plain))
        forced = self.server.text(PROMPT, logit_bias={ord('x'): 100}, temperature=1)
        self.assertEqual(forced, 'x' * 16)
        self.assertEqual(self.server.text(PROMPT, max_tokens=40, logit_bias={}), plain)


# ---------------------------------------------------------------- the same answers as tamis run

class Equal(unittest.TestCase):
    ASKED = 8  # at once

    def check(self, *policy, device='reference', tokens=32):
        """Greedy answers, alone and among others that run in the same steps."""
        prompts = [given.book[700 * i:700 * i + 90 + 30 * i] for i in range(self.ASKED)]
        wanted = [run(*policy, device=device, prompt=prompt, tokens=tokens)
                  for prompt in prompts[-2:]]
        with serving(given.tamis, given.model, '--context', '1024', *policy,
                     device=device) as server:
            alone = [server.text(prompt, max_tokens=tokens) for prompt in prompts]
            self.assertEqual(alone[-2:], wanted)
            told = server.good(TEXT, prompt=prompts[-1], temperature=0, max_tokens=tokens,
                               logprobs=1)['choices'][0]['logprobs']
            self.assertEqual(''.join(told['tokens']), wanted[-1])
            others = [server.begin(TEXT, prompt=prompt, max_tokens=tokens, temperature=0)
                      for prompt in prompts[1:4]]
            with concurrent.futures.ThreadPoolExecutor(self.ASKED) as pool:
                among = list(pool.map(lambda p: server.text(p, max_tokens=tokens), prompts))
            self.assertEqual(among, alone)
            for connection, response in others:
                response.read()
                connection.close()
            self.check_chats(server, policy, device, tokens)

    def check_chats(self, server, policy, device, tokens):
        lines = ['And the name of', given.book[:180].replace('\n', ' ')]
        for line in lines:
            said = run('--chat', *policy, device=device, tokens=tokens, input=line + '\n')
            answer = server.good(CHAT, messages=[{'role': 'user', 'content': line}], temperature=0,
                                 max_tokens=tokens)
            self.assertEqual(answer['choices'][0]['message']['content'], said)

    def test_full(self):
        self.check()

    def test_quest(self):
        self.check('--select', 'quest', '--budget', '64')

    def test_exact(self):
        """One answer reads all, beside others that read a part; what is read is told."""
        prompt = given.book[900:1700]
        with serving(given.tamis, given.model, '--context', '1024', '--select', 'quest', '--budget',
                     '64') as server:
            others = [server.begin(TEXT, prompt=prompt, max_tokens=150) for _ in range(2)]
            asked = {'prompt': prompt, 'temperature': 0, 'max_tokens': 64}
            exact = server.good(TEXT, **asked, exact=True)['choices'][0]['text']
            part = server.good(TEXT, **asked, reads=True)
            streamed = server.ask(TEXT, **asked, reads=True, stream=True).events
            both = server.good(TEXT, **asked, reads=True, n=2)['tamis']
            for connection, response in others:
                response.read()
                connection.close()
        self.assertEqual(exact, run(prompt=prompt, tokens=64))
        self.assertNotEqual(exact, part['choices'][0]['text'])
        own = part['tamis']
        self.assertLess(own['pages_read'], own['pages_held'] / 4)
        told = [token for event in streamed for token in event.get('tamis', {}).get('reads', [])]
        self.assertEqual(told[-63:], own['reads'][-63:])
        self.assertEqual(both['reads'][-63:], told[-63:])
        self.assertGreater(both['pages_read'], 1.9 * own['pages_read'])
        # The first token comes of the prompt, which is read exactly.
        self.assertIn(len(own['reads']), (63, 64))
        for i, token in enumerate(own['reads']):
            self.assertEqual({len(layer) for layer in token['layers']}, {token['of']})
            self.assertIn(token['of'], (50 + (i + 1) // 16, 51 + (i + 1) // 16))
            self.assertTrue(all(layer.isdigit() for layer in token['layers']), token)

    def test_snapkv(self):
        self.check('--evict', 'snapkv', '--evict-budget', '48', '--evict-window', '8')

    def test_opencl(self):
        device = device_of(r'opencl:\d+')
        if device is None:
            self.skipTest('no OpenCL device')
        self.check(device=device)

    def test_little_memory(self):
        """Answers that make room for others, and come back."""
        prompts = [given.book[500 * i:500 * i + 60] for i in range(6)]
        with serving(given.tamis, given.model, '--context', '512', '--cache-tokens', '512',
                     '--running', '6', '--rows', '8') as server:
            alone = [server.text(prompt, max_tokens=200) for prompt in prompts]
            self.assertEqual(alone[0], run(prompt=prompts[0], tokens=200))
            answer = server.good(TEXT, prompt=prompts, temperature=0, max_tokens=200)
            self.assertEqual([choice['text'] for choice in answer['choices']], alone)
            self.assertGreater(server.metrics()['tamis_preemptions_total'], 0)

    def test_another_turn(self):
        """`tamis run` goes on over its cache; the server is told the conversation again."""
        server = shared(*Case.options)
        lines = ['And the name of', 'the son of']
        said = run('--chat', tokens=16, input='\n'.join(lines) + '\n').split('\n')
        talk = [{'role': 'user', 'content': lines[0]}]
        for i, wanted in enumerate(said):
            answer = server.good(CHAT, messages=talk, temperature=0, max_tokens=16)
            self.assertEqual(answer['choices'][0]['message']['content'], wanted)
            # The template puts a space in front of an answer, which here begins with one.
            talk += [{'role': 'assistant', 'content': wanted[1:]},
                     {'role': 'user', 'content': lines[(i + 1) % 2]}]

    def test_real_model(self):
        folder = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
        model = os.path.join(folder, 'tamis/models/SmolLM2-135M-Instruct.Q4_1.gguf')
        if not os.path.exists(model):
            self.skipTest('no SmolLM2 (tools/fetch_model.sh)')
        device = device_of(r'opencl:\d+|reference:0')
        line = 'Name three colours.'
        wanted = run('--chat', '--context', '256', model=model, device=device, tokens=12,
                     input=line + '\n')
        with serving(given.tamis, model, '--context', '256', device=device) as server:
            answer = server.good(CHAT, messages=[{'role': 'user', 'content': line}], temperature=0,
                                 max_tokens=12, logprobs=True)['choices'][0]
            self.assertEqual(answer['message']['content'], wanted)
            tokens = [bytes(entry['bytes']) for entry in answer['logprobs']['content']]
            self.assertEqual(b''.join(tokens).decode(), wanted)
            again = server.good(CHAT, messages=[{'role': 'user', 'content': line}], temperature=0,
                                max_tokens=12)
            self.assertEqual(again['choices'][0]['message']['content'], wanted)


class Documents(unittest.TestCase):
    """Parts of messages that are stored, and blended where they come again."""

    def test_all_anew(self):
        """Nothing of a document is taken from the store: the answer is that of a text."""
        document, text = given.book[:100], ' And the name of'
        wanted = run(prompt='\x01[INST] %s%s [/INST]' % (document, text), tokens=12)
        with self.served('--blend', 'all') as server:
            for _ in range(2):
                answer = self.ask(server, 'a', document, text)
                self.assertEqual(answer['choices'][0]['message']['content'], wanted)

    def test_nothing_anew(self):
        with self.served('--blend', 'none') as server:
            own = self.ask(server, 'a', given.book[:100], '?')['tamis']['documents']
            self.assertEqual((own['loaded'], own['computed']), (100, 0))

    def test_of_a_key(self):
        documents = given.book[:100], given.book[300:400]
        with self.served() as server:
            def told(key, *parts, **fields):
                answer = self.ask(server, key, *parts, **fields)
                own = answer['tamis']['documents']
                self.assertEqual(own['loaded'] + own['computed'], 100 * (len(parts) - 1))
                return own['recorded'], [c['message']['content'] for c in answer['choices']]
            recorded, first = told('a', documents[0], '?')
            self.assertEqual(recorded, 100)
            self.assertEqual(told('a', documents[0], '?'), (0, first))
            self.assertEqual(told('b', documents[0], '?'), (100, first))
            self.assertEqual(told('a', *documents, '?')[0], 100)
            recorded, several = told('a', *documents, '!', n=3)
            self.assertEqual((recorded, len(several), len(set(several))), (0, 3, 1))

    def served(self, *options):
        keys = os.path.join(given.folder, 'document-keys')
        with open(keys, 'w', opener=lambda *a: os.open(*a, 0o600)) as file:
            file.write('a\nb\n')
        folder = tempfile.mkdtemp(dir=given.folder)
        return serving(given.tamis, given.model, '--context', '512', '--store', folder,
                       '--unchecked', '--api-key-file', keys, *options)

    def ask(self, server, key, *parts, **fields):
        """All parts are documents but the last one."""
        content = [{'type': 'document', 'text': part} for part in parts[:-1]]
        content.append({'type': 'text', 'text': parts[-1]})
        answer = server.ask(CHAT, headers={'Authorization': 'Bearer ' + key}, temperature=0,
                            max_tokens=12, messages=[{'role': 'user', 'content': content}],
                            **fields)
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json


# ---------------------------------------------------------------- OpenAI's package

class Package(unittest.TestCase):
    folder = installer = None  # pip

    @classmethod
    def setUpClass(cls):
        try:
            installed = cls.installer.wait(LIMIT) == 0
        except subprocess.TimeoutExpired:
            installed = False
        if not installed:
            raise unittest.SkipTest('%s is not to be had from PyPI' % OPENAI)
        sys.path.insert(0, cls.folder)
        import openai
        cls.openai = openai
        cls.server = shared(*Case.options)
        os.environ['NO_PROXY'] = '127.0.0.1'
        cls.client = openai.OpenAI(base_url='http://127.0.0.1:%d/v1' % cls.server.port,
                                   api_key='any', max_retries=0, timeout=LIMIT)
        cls.addClassCleanup(cls.client.close)

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ['chat'])
        self.assertEqual(self.client.models.retrieve('chat').owned_by, 'tamis')
        with self.assertRaises(self.openai.NotFoundError):
            self.client.models.retrieve('gpt-5')

    def test_chat(self):
        asked = {'model': 'chat', 'messages': USER, 'temperature': 0, 'max_completion_tokens': 24}
        whole = self.client.chat.completions.create(**asked)
        choice = whole.choices[0]
        self.assertEqual((choice.message.role, choice.finish_reason), ('assistant', 'length'))
        self.assertEqual(choice.message.content, self.server.text(SAID, max_tokens=24))
        self.assertEqual(whole.usage.completion_tokens, 24)
        self.assertIn(whole.usage.prompt_tokens_details.cached_tokens, range(len(SAID)))
        chunks = list(self.client.chat.completions.create(**asked, stream=True,
                                                          stream_options={'include_usage': True}))
        said = ''.join(chunk.choices[0].delta.content or '' for chunk in chunks if chunk.choices)
        self.assertEqual(said, choice.message.content)
        self.assertEqual(chunks[-1].usage.total_tokens, whole.usage.total_tokens)
        # Its helper takes an answer of too many tokens for an error.
        said = choice.message.content
        with self.client.chat.completions.stream(**asked, stop=said[20:]) as stream:
            last = stream.get_final_completion()
        self.assertEqual(last.choices[0].message.content, said[:20])

    def test_completions(self):
        asked = {'model': 'chat', 'prompt': PROMPT, 'max_tokens': 24, 'temperature': 1, 'seed': 4}
        whole = self.client.completions.create(**asked, logprobs=3, stop=['zz', 'qq'])
        chunks = self.client.completions.create(**asked, stream=True)
        self.assertEqual(''.join(chunk.choices[0].text for chunk in chunks), whole.choices[0].text)
        self.assertEqual(''.join(whole.choices[0].logprobs.tokens), whole.choices[0].text)
        drawn = [self.client.completions.create(**asked, extra_body=body).choices[0].text
                 for body in ({'top_k': 1}, {'min_p': 1})]
        self.assertEqual(drawn, [self.server.text(PROMPT, max_tokens=24)] * 2)

    def test_probabilities(self):
        choice = self.client.chat.completions.create(
            model='chat', messages=USER, temperature=0, max_tokens=8, logprobs=True, top_logprobs=4,
            logit_bias={ord('q'): -100}, presence_penalty=0.5, frequency_penalty=0.5).choices[0]
        for entry in choice.logprobs.content:
            self.assertEqual(bytes(entry.bytes).decode(), entry.token)
            self.assertEqual(len(entry.top_logprobs), 4)

    def test_errors(self):
        chat, openai = self.client.chat.completions, self.openai
        with self.assertRaisesRegex(openai.BadRequestError, 'tools: is not supported') as caught:
            chat.create(model='chat', messages=USER, tools=[
                {'type': 'function', 'function': {'name': 'x', 'parameters': {}}}])
        self.assertEqual((caught.exception.code, caught.exception.param),
                         ('unsupported_field', 'tools'))
        with self.assertRaises(openai.NotFoundError) as caught:
            chat.create(model='gpt-5', messages=USER, stream=True)
        self.assertEqual(caught.exception.code, 'model_not_found')
        with self.assertRaisesRegex(openai.BadRequestError, 'no embeddings'):
            self.client.embeddings.create(model='chat', input='x')
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.completions.create(model='chat', prompt='x' * 600)
        self.assertEqual(caught.exception.code, 'context_length_exceeded')

    def test_keys(self):
        with serving(given.tamis, given.model, '--context', '512', TAMIS_API_KEY='a-key') as server:
            other = self.client.with_options(base_url='http://127.0.0.1:%d/v1' % server.port)
            with self.assertRaises(self.openai.AuthenticationError):
                other.models.list()
            good = other.with_options(api_key='a-key')
            self.assertEqual(good.models.list().data[0].id, 'chat')


def install():
    """pip begins; it works beside the tests."""
    Package.folder = os.path.join(given.folder, 'packages')
    Package.installer = subprocess.Popen(
        [sys.executable, '-m', 'pip', 'install', '--disable-pip-version-check', '--quiet',
         '--retries', '1', '--no-compile', '--only-binary', ':all:', '--root-user-action', 'ignore',
         '--target', Package.folder, OPENAI], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    unittest.addModuleCleanup(Package.installer.wait)
    unittest.addModuleCleanup(Package.installer.kill)


if __name__ == '__main__':
    main(install)
