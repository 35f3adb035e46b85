# SPDX-License-Identifier: Apache-2.0
"""One request to a server with OpenAI's interface, whose answer comes as a stream of events."""
import http.client
import json
import time

REFUSALS = (429, 503)
OWN = ('tamis', 'timings')  # members of events that are tamis's and llama.cpp's own
TIMEOUT_S = 3600  # without a byte


class Failed(Exception):
    """One line for the user: what a server did that it must not."""


def ask(port, method, path, body=None, timeout=60):
    """The status and the JSON of an answer that comes at once."""
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=timeout)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {'Content-Type': 'application/json'})
        answer = connection.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise Failed('%s %s: %r' % (method, path, error)) from error
    finally:
        connection.close()
    try:
        return answer.status, json.loads(text)
    except ValueError:
        return answer.status, None


def events(answer):
    """The JSON of each event of a stream, which must end with [DONE]."""
    while True:
        line = answer.readline()
        if not line:
            raise Failed('the stream ended without [DONE]')
        if not line.startswith(b'data:'):
            continue
        data = line[5:].strip()
        if data == b'[DONE]':
            return
        try:
            yield json.loads(data)
        except ValueError as error:
            raise Failed('an event is no JSON: %r' % data[:200]) from error


def text_of(choice):
    """The new text that a choice of an event has, of a chat or of a completion."""
    return choice.get('delta', choice).get('content' if 'delta' in choice else 'text') or ''


def read_events(answer, sample):
    for event in events(answer):
        now = time.monotonic()
        if 'error' in event:
            raise Failed('an event is an error: %s' % json.dumps(event['error'])[:300])
        sample['usage'] = event.get('usage') or sample['usage']
        for name in OWN:
            if name in event:
                sample['own'][name] = event[name]
        for choice in event.get('choices', []):
            text = text_of(choice)
            if text:
                sample['times'].append(now)
                sample['pieces'].append(text)
            sample['finish'] = choice.get('finish_reason') or sample['finish']


def stream(port, path, body):
    """A sample: status, times (seconds of the monotonic clock) and texts of the pieces that came,
    `sent` and `ended`, why it ended, the usage, and what servers say beside OpenAI's interface."""
    sample = {'status': 0, 'sent': time.monotonic(), 'times': [], 'pieces': [], 'finish': None,
              'usage': None, 'own': {}}
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=TIMEOUT_S)
    try:
        connection.request('POST', path, json.dumps(body), {'Content-Type': 'application/json'})
        answer = connection.getresponse()
        sample['status'] = answer.status
        if answer.status == 200:
            read_events(answer, sample)
        elif answer.status not in REFUSALS:
            raise Failed('status %d: %s' % (answer.status, answer.read()[:300]))
    except (OSError, http.client.HTTPException) as error:
        raise Failed('POST %s: %r' % (path, error)) from error
    finally:
        connection.close()
    sample['ended'] = time.monotonic()
    return sample
