# SPDX-License-Identifier: Apache-2.0
"""The requests of a run: prompts and documents cut from a text of English words to given numbers of
tokens, as a server counts them. They are drawn from a seed."""
import random
import re

import stream

DOCUMENTS, DOCUMENT_TOKENS, TAKEN, ZIPF = 20, 400, 4, 1.0
WARMING = TAKEN  # documents of their own, beside the pool


def cut(words, start, tokens, tokenize):
    """As many words from `start` on as have at most `tokens` tokens: the text and its tokens."""
    low, high = 1, tokens
    while low < high:
        middle = (low + high + 1) // 2
        if len(tokenize(' '.join(words[start:start + middle]))) <= tokens:
            low = middle
        else:
            high = middle - 1
    text = ' '.join(words[start:start + low])
    return text, tokenize(text)


def make_prompts(words, seed, count, lengths, tokenize):
    """Lengths are uniform between two bounds. No two prompts begin with the same token, so that a
    server finds no prefix of one in another."""
    draw, taken, prompts = random.Random(seed), set(), []
    words = words * (2 + lengths[1] // len(words))
    for _ in range(count):
        wanted = draw.randint(*lengths)
        for _ in range(1000):
            start = draw.randrange(len(words) // 2)
            first = tokenize(words[start])[0]
            if first not in taken:
                break
        else:
            raise stream.Failed('%d prompts: the text has no more words that begin with a token '
                                'of their own than %d' % (count, len(prompts)))
        taken.add(first)
        text, tokens = cut(words, start, wanted, tokenize)
        prompts.append({'text': text, 'tokens': len(tokens)})
    return prompts


def draw_documents(draw):
    """Numbers of different documents in a drawn order; number n comes as often as 1 / (n + 1)."""
    left, chosen = list(range(DOCUMENTS)), []
    while len(chosen) < TAKEN:
        weights = [1 / (n + 1) ** ZIPF for n in left]
        chosen.append(draw.choices(left, weights)[0])
        left.remove(chosen[-1])
    draw.shuffle(chosen)
    return chosen


def make_documents(words, seed, count, tokenize):
    """A pool of documents, and requests that take some of them and ask about a word in one."""
    draw, documents, start = random.Random(seed), [], 0
    for _ in range(DOCUMENTS + WARMING):
        if start >= len(words):
            raise stream.Failed('the text is too short for %d documents' % (DOCUMENTS + WARMING))
        text, tokens = cut(words, start, DOCUMENT_TOKENS, tokenize)
        start += len(text.split(' '))
        documents.append({'text': text + '\n\n', 'tokens': len(tokens)})
    requests = []
    for _ in range(count):
        chosen = draw_documents(draw)
        asked = re.findall('[a-z]{5,}', documents[draw.choice(chosen)]['text'])
        requests.append({'documents': chosen,
                         'question': 'What does the text say about %s?' % draw.choice(asked)})
    return documents, requests
