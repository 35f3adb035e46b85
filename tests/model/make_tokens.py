#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes texts with the tokens that llama.cpp makes of them, for test-model-tokens.

For each vocabulary NAME.cases is written; NAME.gguf beside it where the vocabulary is made here.
Some have merges learnt from tests/data/text.txt and from what the texts are made of. The others,
one of each further pattern, merge across what patterns cut: between characters of two kinds. Other
vocabularies are given as files. Texts follow from the seed alone: words, scripts, emoji, code, runs
of white space, digits, special tokens as text, control characters, and bytes that are no UTF-8.

Needs the packages gguf and llama-cpp-python; without them it says so and exits with 77.
tests/data/tokens is made by: make_tokens.py --out tests/data/tokens --lines 120 --merges 120 --seed 3
The further patterns take half as many lines and twice as many merges.

A .cases file holds, little-endian: "TOKS", u32 the number of texts, and for each text u32 flags of
tamis_vocab_encode, u32 bytes, u32 tokens, the bytes, i32 tokens.
"""
import argparse
import collections
import ctypes
import os
import random
import re
import struct
import sys
import unicodedata

HERE = os.path.dirname(os.path.abspath(__file__))
ADD_BOS, PARSE_SPECIAL, SKIP_MISSING, ADD_EOS = 1, 2, 4, 8
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
SPACE = '\u2581'

# ---- Texts ----------------------------------------------------------------------------------------

SCRIPTS = [(0x41, 0x7a), (0xc0, 0x24f), (0x250, 0x2af), (0x370, 0x3ff), (0x400, 0x4ff), (0x531, 0x58a),
           (0x590, 0x5f4), (0x600, 0x6ff), (0x900, 0x97f), (0x980, 0x9fe), (0xb80, 0xbfa), (0xe01, 0xe5b),
           (0x10a0, 0x10ff), (0x1100, 0x11ff), (0x1200, 0x137c), (0x13a0, 0x13fd), (0x16a0, 0x16f8),
           (0x1780, 0x17f9), (0x1800, 0x18aa), (0x1e00, 0x1eff), (0x1f00, 0x1ffe), (0x2100, 0x214f),
           (0x2150, 0x218b), (0x2460, 0x24ff), (0x3041, 0x30ff), (0x3105, 0x312f), (0x3400, 0x3500),
           (0x4e00, 0x9fff), (0xa000, 0xa48c), (0xac00, 0xd7a3), (0xfb00, 0xfb4f), (0xff01, 0xffee),
           (0x10000, 0x100fa), (0x10400, 0x1049d), (0x1d400, 0x1d7ff), (0x1f100, 0x1f1ff), (0x20000, 0x20100)]
SPACES = ['\t', '\n', '\r\n', '\r', '\x0b', '\x0c', '\x85', '\xa0', '\u1680', '\u180e', '\u2003', '\u2009',
          '\u200b', '\u2028', '\u2029', '\u202f', '\u205f', '\u3000', '\ufeff']
EMOJI = ['\U0001f600', '\U0001f44d\U0001f3fd', '\U0001f468\u200d\U0001f469\u200d\U0001f467', '\u2764\ufe0f',
         '\U0001f1e9\U0001f1ea', '\U0001f3f4\u200d\u2620\ufe0f', '1\ufe0f\u20e3', '\u2708', '\U0001fae0']
CODE = ['for (int i = 0; i < n; ++i)\n    sum += a[i] * b[i];\n', 'def f(x):\n\treturn x**2\n', '#include <stdio.h>\n',
        'SELECT * FROM t WHERE a >= 10 AND b != \'x\';', '{"key": [1, 2.5e-3, null]}', 'if(!p){return -1;}\r\n',
        '<div class="a">&nbsp;</div>', 'x = y == z ? "\\n" : \'\\t\';', 'https://example.org/a?b=c&d=%20#e', '$HOME/.bashrc',
        '    ' * 3 + '}\n', '0x7fff_ffff', 'std::vector<int>{}', '/* a */ // b', 'λx.x', 'C:\\Users\\me', '```\n', '---\n']
CONTRACTIONS = ["it's", "I'm", "we'LL", "don't", "DON'T", "you'd", "they've", "'re", "l'été", "'\u017f", "x'S'", "''d", "' s", "o'clock"]
MARKS = ['<|endoftext|>', '<|im_start|>', '<|im_end|>', '<|begin_of_text|>', '<|eot_id|>', '<s>', '</s>', '<unk>', '<tool>',
         '<|im_', 'im_end|>', '<<s>>', '<0x0A>', '<|tool|>call', '[INST]', SPACE, SPACE + 'a', '<|', '|>']
BROKEN = [b'\xff', b'\x80', b'\xc3', b'\xe2\x96', b'\xf0\x9f\x98', b'\xc0\x80', b'\xc1\xa1', b'\xe0\x80\xaf', b'\xed\xa0\x80',
          b'\xed\xbf\xbf', b'\xf0\x80\x80\x81', b'\xf8\x88\x80\x80\x80', b'\xfe\xff', b'\xe2 \x96', b'\xc3(', b'\xf0\x9f ', b'\xf4']
# What single patterns look at.
HARD = ['camelCase', 'HTTPServer', 'aB', 'éA', 'Éa', 'ÀB', 'ABCdef', 'WORD\'s', 'ÉTÉ\'S', 'x\'ll', '漢A', 'A漢字a', '漢字かなカナ', '가나다ㄱㄴ',
        'ㄅㄆ', '《漢》，。：', '…“”‘’—！', 'ไทย', 'ລາວ', 'မြန်မာ', 'ខ្មែរ', 'ｱｲｳ', 'Ａｂ１', '⼀', '\ue000\uf8ff', '\u00b5', '\u01bb', '\u1c90', '\u10d0',
        '\u1d6c', '\u2c7d', '\ua78f', '𞤀𞤢', '𝐀', '\u17f0', '\u303f', '\u3040', '\ufe30', '।', '۔', '،', '、', '1', '12', '123', '1234', '1234567',
        'a12', ' 1', '  12345', '12 345', '1２3４', '١٢٣٤', '½', '$1,234.56', '12a34', '/\n', '//\r\n', '.\n/', '!\n\n', '\n \n', ' \n\n  a',
        '  \r\n\t', '\r\r', 'a b c', 'é à', 'a\u0301 b\u0301', '\u0301', '\u0301a', '\u0928\u092e\u0938\u094d\u0924\u0947', '+<=>^~|`', '`a`', '$a', '.a', ' .a',
        '-漢', '_x', '(a|b)', '  .', ' \u3000。', '\u3000a', '\xa0a', '\x85', '<sentinel:12>', '<sentinel:>', 'IMGIMGABCZ', 'IMGIMGABCDEZ', '    x',
        'xyzzy', ' Wikipedia', '<|end|>\n', '<|user|> ', '<|endoftext|>\n', '<tool> ', '\t\t', '\t  \n', '\x00', '\x1f', '\u200d', '\u180e', ' \u200b']


def beyond(data):
    """Whether llama.cpp, up to 0.3.36 at least, aborts: a sequence above U+10FFFF."""
    return any((m[0][0] & 7) << 18 | (m[0][1] & 63) << 12 > 0x10ffff
               for m in re.finditer(rb'[\xf4-\xf7][\x80-\xbf]{3}', data))


class Texts:
    def __init__(self, seed):
        self.random = random.Random(seed)
        with open(os.path.join(HERE, '../data/text.txt'), encoding='utf-8') as file:
            self.words = file.read().split(' ')

    def character(self):
        low, high = self.random.choice(SCRIPTS)
        while True:
            character = chr(self.random.randint(low, high))
            if unicodedata.category(character) != 'Cn':
                return character

    def script(self):
        low, high = self.random.choice(SCRIPTS)
        word = [chr(self.random.randint(low, high)) for _ in range(self.random.randint(1, 9))]
        return ''.join(c for c in word if unicodedata.category(c) != 'Cn')

    def any_character(self):
        while True:
            number = self.random.randint(0, 0x10ffff)
            if 0xd800 <= number <= 0xdfff or unicodedata.category(chr(number)) == 'Cn':
                continue
            return chr(number)

    def run(self, of, most):
        return ''.join(self.random.choice(of) for _ in range(self.random.randint(1, most)))

    def part(self):
        r = self.random
        kind = r.randint(0, 17)
        if kind <= 3:
            start = r.randrange(len(self.words) - 8)
            return ' '.join(self.words[start:start + r.randint(1, 8)])
        if kind == 4:
            return r.choice([' ', '']).join(self.script() for _ in range(r.randint(1, 4)))
        if kind == 5:
            return self.run(EMOJI, 4)
        if kind == 6:
            return r.choice(CODE)
        if kind == 7:
            return r.choice([' ', '\n', '\t', '  ', '\xa0', '\r\n']) * r.choice([1, 2, 3, 4, 8, 17, 64])
        if kind == 8:
            return self.run(SPACES + [' '] * 10, 6)
        if kind == 9:
            return self.run('0123456789', r.choice([1, 2, 3, 4, 7, 20])) + r.choice(['', '.', ',000', '%', 'th', '-'])
        if kind == 10:
            return self.run('0123456789٠١٢०१²½Ⅷ①〇', 6)
        if kind == 11:
            return r.choice(CONTRACTIONS)
        if kind == 12:
            return self.run('!"#$%&\'()*+,-./:;<=>?@[\\]^_`{|}~', 6) + r.choice(['', '\n', '\r\n\n', ' '])
        if kind == 13:
            return ''.join(self.any_character() for _ in range(r.randint(1, 5)))
        if kind == 14:
            return r.choice(MARKS)
        if kind == 15:
            return r.choice('aAbBxXzéЖ漢') * r.randint(2, 40)
        if kind == 16:
            return 'e\u0301' * r.randint(1, 3) + self.character() + '\u0308\u200d' + self.run('\x00\x01\x04\x1b\x7f\x9f', 2)
        return ''.join(self.character() for _ in range(r.randint(1, 6)))

    def text(self):
        r = self.random
        while True:
            parts = [r.choice([' ', ' ', '', '\n']).join(self.part() for _ in range(r.randint(1, 7))).encode()]
            if r.random() < 0.25:
                line = bytearray(parts[0])
                for _ in range(r.randint(1, 4)):
                    at = r.randint(0, len(line))
                    line[at:at] = r.choice(BROKEN) if r.random() < 0.8 else bytes(r.choices(range(256), k=3))
                parts = [bytes(line)]
            if r.random() < 0.1:
                parts = [parts[0][r.randrange(len(parts[0]) + 1):]]
            if not beyond(parts[0]):
                return parts[0]


class HardTexts(Texts):
    def part(self):
        if self.random.random() < 0.5:
            return super().part()
        return self.random.choice(['', ' ']).join(self.random.choice(HARD) for _ in range(self.random.randint(1, 6)))


# ---- Vocabularies -----------------------------------------------------------------------------------


def learn(pieces, merges):
    """The most frequent pair of neighbours, again and again; of equals the first in order."""
    words = {tuple(piece): count for piece, count in collections.Counter(pieces).items()}
    learnt = []
    while len(learnt) < merges:
        pairs = collections.Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += count
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        learnt.append(best)
        changed = {}
        for word, count in words.items():
            out = []
            for symbol in word:
                if out and (out[-1], symbol) == best:
                    out[-1] = best[0] + best[1]
                else:
                    out.append(symbol)
            changed[tuple(out)] = changed.get(tuple(out), 0) + count
        words = changed
    return learnt


def alphabet():
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    others = [b for b in range(256) if b not in plain]
    names = {b: chr(b) for b in plain}
    names.update({b: chr(256 + i) for i, b in enumerate(others)})
    return names


def sample(texts):
    return [texts.text().decode('utf-8', 'ignore') for _ in range(400)] + texts.words


def write(path, model, pre, tokens, scores, kinds, merges, flags):
    from gguf import GGUFWriter
    writer = GGUFWriter(path, 'llama')
    writer.add_tokenizer_model(model)
    if pre:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    if scores:
        writer.add_token_scores(scores)
    if merges:
        writer.add_token_merges(merges)
    for name, value in flags.items():
        getattr(writer, 'add_' + name)(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def learn_words(texts, merges):
    names = alphabet()
    piece = re.compile(r" ?\w+|\s+|[^\w\s]+")
    return learn([''.join(names[b] for b in p.encode()) for text in sample(texts) for p in piece.findall(text)], merges)


def write_bpe(path, pre, learnt, specials, flags):
    """`specials`: (text, kind). One byte in twelve has no token, as in real vocabularies."""
    names = alphabet()
    used = set(''.join(a + b for a, b in learnt))
    single = [names[b] for b in range(256) if names[b] in used or b % 12 or 32 <= b < 127]
    tokens = [text for text, _ in specials] + single
    kinds = [kind for _, kind in specials] + [NORMAL] * len(single)
    for a, b in learnt:
        if a + b not in tokens:
            tokens.append(a + b)
            kinds.append(NORMAL)
    # Whole words that no merge makes: what llama-bpe takes as they are.
    for word in ('ĠWikipedia', 'Ã©tÃ©', 'xyzzy'):
        if word not in tokens:
            tokens.append(word)
            kinds.append(NORMAL)
    write(path, 'gpt2', pre, tokens, None, kinds, [a + ' ' + b for a, b in learnt], flags)


def kinds_differ(a, b):
    """Whether some pattern may cut between the two: not between alike letters of one script."""
    alike = unicodedata.category(a) == unicodedata.category(b) and a.encode()[0] >> 5 == b.encode()[0] >> 5
    return not alike or not a.isalpha()


def learn_across(texts, merges):
    """The most frequent pairs of bytes in which a character ends and one of another kind begins."""
    names = alphabet()
    pairs = collections.Counter()
    for _ in range(2000):
        text = texts.text().decode('utf-8', 'ignore')
        pairs.update((names[a.encode()[-1]], names[b.encode()[0]]) for a, b in zip(text, text[1:]) if kinds_differ(a, b))
    return [pair for pair, _ in sorted(pairs.items(), key=lambda item: (-item[1], item[0]))[:merges]]


def write_spm(path, merges, texts, specials, flags):
    # llama.cpp ends a token's text at a NUL.
    # No merge leads to a control token: there we differ from llama.cpp.
    control = [text for text, kind in specials if kind == CONTROL]
    pieces = [p for text in sample(texts) for p in re.findall(r' ?[^ \0]+', text) if not any(c in p for c in control)]
    pieces = [piece.replace(' ', SPACE) for piece in pieces]
    learnt = learn(pieces, merges)
    common = [c for c, _ in collections.Counter(''.join(pieces)).most_common(120)]
    tokens = ['<unk>', '<s>', '</s>'] + ['<0x%02X>' % b for b in range(256)]
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    scores = [0.0] * len(tokens)
    for i, (a, b) in enumerate(learnt):
        if a + b not in tokens:
            tokens.append(a + b)
            scores.append(-float(i // 2)) # pairs of equal scores, too
            kinds.append(NORMAL)
    for c in common:
        if c not in tokens:
            tokens.append(c)
            scores.append(-1e4)
            kinds.append(NORMAL)
    for text, kind in specials:
        if text in tokens:
            kinds[tokens.index(text)] = kind
        else:
            tokens.append(text)
            scores.append(0.0)
            kinds.append(kind)
    write(path, 'llama', None, tokens, scores, kinds, None, flags)


def write_families(folder, merges, seed):
    texts = Texts(seed + 1)
    path = lambda name: os.path.join(folder, name + '.gguf')
    learnt = lambda: learn_words(texts, merges)
    chat = [('<|endoftext|>', CONTROL), ('<|im_start|>', CONTROL), ('<|im_end|>', CONTROL)]
    llama3 = [('<|begin_of_text|>', CONTROL), ('<|eot_id|>', CONTROL), ('<|tool|>', USER_DEFINED)]
    write_bpe(path('gpt-2'), 'gpt-2', learnt(), chat[:1], {'bos_token_id': 0, 'eos_token_id': 0})
    write_bpe(path('smollm'), 'smollm', learnt(), chat + [('<tool>', USER_DEFINED)],
              {'bos_token_id': 1, 'eos_token_id': 2, 'add_bos_token': False})
    write_bpe(path('llama-bpe'), 'llama-bpe', learnt(), llama3, {'bos_token_id': 0, 'eos_token_id': 1})
    write_bpe(path('qwen2'), 'qwen2', learnt(), chat,
              {'bos_token_id': 0, 'eos_token_id': 2, 'add_eos_token': True})
    tools = [('<tool>', USER_DEFINED), ('[INST]', USER_DEFINED)]
    write_spm(path('spm'), 2 * merges, texts, tools, {'bos_token_id': 1, 'eos_token_id': 2})
    write_spm(path('spm-bare'), merges, texts, tools,
              {'bos_token_id': 1, 'eos_token_id': 2, 'add_bos_token': False, 'add_eos_token': True,
               'add_space_prefix': False})
    return [path(name) for name in ('gpt-2', 'smollm', 'llama-bpe', 'qwen2', 'spm', 'spm-bare')]


# One name of each pattern beside those above; names that share one with other flags, too.
FURTHER = ['phi-2', 'starcoder', 'falcon3', 'stablelm2', 'default', 'falcon', 'glm4', 'chatglm-bpe', 'minicpm5',
           'qwen35', 'ufakzeka', 'seed-coder', 'laguna', 'exaone-moe', 'jais-2', 'tekken', 'gpt-4o',
           'granite-embed-multi-97m', 'tiny_aya', 'youtu', 'kimi-k2', 'deepseek-llm', 'deepseek-coder', 'deepseek-v3',
           'spark2_5', 'afmoe', 'bloom', 'viking', 'chameleon']


def write_further(folder, merges, seed):
    learnt = learn_across(HardTexts(seed + 1), merges)
    specials = [('<|begin_of_text|>', CONTROL), ('<|eot_id|>', CONTROL), ('<|tool|>', USER_DEFINED)]
    paths = [os.path.join(folder, name + '.gguf') for name in FURTHER + ['gemma', 'phi-3']]
    for name, path in zip(FURTHER, paths):
        write_bpe(path, name, learnt, specials, {'bos_token_id': 0, 'eos_token_id': 1})
    # Runs of white space are found as they are, before a space becomes U+2581.
    runs = [(run * n, USER_DEFINED) for run in (' ', '\n', '\t') for n in (2, 3, 5)]
    write_spm(paths[-2], merges, HardTexts(seed + 1), runs + [('<start_of_turn>', CONTROL), ('\n', USER_DEFINED)],
              {'bos_token_id': 2, 'eos_token_id': 1, 'add_space_prefix': False})
    marks = [('<|endoftext|>', CONTROL), ('<|end|>', CONTROL), ('<|user|>', CONTROL), ('<tool>', USER_DEFINED)]
    write_spm(paths[-1], merges, HardTexts(seed + 1), marks, {'name': 'A Phi-3', 'bos_token_id': 1, 'eos_token_id': 2})
    return paths


# ---- The oracle -----------------------------------------------------------------------------------


def quiet(level, text, user):
    if level >= 4:
        sys.stderr.write(text.decode('utf-8', 'replace'))


class Oracle:
    def __init__(self, path):
        import llama_cpp
        self.api = llama_cpp
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        params.use_mmap = False
        self.model = llama_cpp.llama_load_model_from_file(path.encode(), params)
        if not self.model:
            raise SystemExit('%s: llama.cpp does not load it' % path)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)

    def encode(self, text, flags):
        room = 3 * len(text) + 8
        tokens = (self.api.llama_token * room)()
        count = self.api.llama_tokenize(self.vocab, text, len(text), tokens, room,
                                        bool(flags & ADD_BOS), bool(flags & PARSE_SPECIAL))
        assert count >= 0
        return list(tokens[:count])


def write_cases(path, oracle, texts):
    with open(path, 'wb') as file:
        file.write(b'TOKS' + struct.pack('<I', len(texts)))
        for i, text in enumerate(texts):
            flags = SKIP_MISSING | i % 4
            if flags & ADD_BOS:
                flags |= ADD_EOS
            tokens = oracle.encode(text, flags)
            file.write(struct.pack('<III', flags, len(text), len(tokens)) + text)
            file.write(struct.pack('<%di' % len(tokens), *tokens))


def write_all(folder, vocabularies, source, lines):
    texts = [b'', b' ', b'  ', b'\n'] + [source.text() for _ in range(lines - 4)]
    for path in vocabularies:
        name = os.path.splitext(os.path.basename(path))[0]
        write_cases(os.path.join(folder, name + '.cases'), Oracle(path), texts)
        print(os.path.join(folder, name + '.cases'), path)


def main():
    parser = argparse.ArgumentParser(description='Texts and their tokens by llama.cpp.')
    parser.add_argument('--out', required=True)
    parser.add_argument('--lines', type=int, default=10000)
    parser.add_argument('--merges', type=int, default=400)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('vocabularies', nargs='*', help='GGUF files beside those that are made')
    options = parser.parse_args()
    try:
        import gguf  # noqa: F401
        import llama_cpp
    except (ImportError, FileNotFoundError) as missing:
        print('skipped: %s (pip install gguf llama-cpp-python)' % missing)
        return 77
    log = llama_cpp.llama_log_callback(quiet)
    llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
    os.makedirs(options.out, exist_ok=True)
    made = write_families(options.out, options.merges, options.seed)
    write_all(options.out, made + options.vocabularies, Texts(options.seed), options.lines)
    further = write_further(options.out, 2 * options.merges, options.seed)
    write_all(options.out, further, HardTexts(options.seed), options.lines // 2)
    return 0


if __name__ == '__main__':
    sys.exit(main())
