#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""test_input.py TAMIS DATA_FOLDER: what comes in. Flags given twice, standard input, files without
an end, texts that are not UTF-8. Exit status 0 if all passed."""
import json
import os
import re
import subprocess
import sys
import tempfile

tamis, data = sys.argv[1:3]
model = os.path.join(data, 'needle.gguf')
PROMPT = 'The red pass key is 71045. abc. The red pass key is '
RUN = ['run', '--model', model, '--device', 'reference', '--tokens', '9']


def call(*arguments, **streams):
    """Status, standard output and standard error, both as bytes."""
    streams.setdefault('stdin', subprocess.DEVNULL)
    if 'input' in streams:
        del streams['stdin']
    done = subprocess.run([tamis, *arguments], capture_output=True, timeout=100, **streams)
    return done.returncode, done.stdout, done.stderr


def refused(pattern, *arguments, status=2, **streams):
    code, out, err = call(*arguments, **streams)
    assert code == status and re.search(pattern, err.decode(errors='replace'), re.M), \
        (arguments, code, out[:80], err[:300])


def answers(wanted, *arguments, **streams):
    """What stderr says beside the line of figures."""
    code, out, err = call(*arguments, **streams)
    assert code == 0 and out == wanted, (arguments, code, out, err)
    return [line for line in err.decode(errors='replace').split('\n')
            if line and not line.startswith('prefill ')]


def commands():
    """The flags of every command, and of each what it takes and its help."""
    names = re.findall(r'^\.B tamis (.*)$', call('--man')[1].decode(), re.M)
    for name in dict.fromkeys(names):
        text = call(*name.split(), '--help')[1].decode()
        options = re.split(r'\n  (?=-)', text[text.index('\noptions:'):text.index('\nexamples:')])
        yield name, [re.match(r'(?:-[a-z], )?(--[a-z-]+) ?([A-Z]\S*)?\s+(.*)', option, re.S).groups()
                     for option in options[1:] if not option.startswith('-h, --help')]


def value_of(name, option, form, text):
    """The flag with a value that it takes."""
    if form is None:
        return [option]
    value = '2'
    for _ in range(3):
        error = call(*name.split(), option, value, '--frob')[2].decode()
        if '--frob: unknown option' in error:
            return [option, value]
        value = re.search(r'must be from (\d+)|must be one of (?:all, )?([^,\n]+)'
                          r'|known are ([a-z0-9]+)', error)
        assert value, (name, option, text, error)
        value = next(group for group in value.groups() if group)
    raise AssertionError((name, option, error))


def test_every_flag_twice(_):
    again = []
    for name, options in commands():
        for option, form, text in options:
            given = value_of(name, option, form, text)
            error = call(*name.split(), *given, *given, '--frob')[2].decode()
            if re.search('may be given up to 16 times', ' '.join(text.split())):
                again.append('%s %s' % (name, option))
                assert '--frob: unknown option' in error, error
            else:
                assert error == 'tamis %s: %s: is given twice\n' % (name, option), (given, error)
    known = {'run --chunks', 'run --stop', 'compare --question'}
    left_out = {'store put --file', 'serve --allow-host', 'serve --cors-origin'}  # by some builds
    assert known <= set(again) <= known | left_out, again
    manual = call('--man')[1].decode()
    assert manual.count('may be given up to 16 times') == len(again), 'of the manual'


def test_stops(_):
    plain = call(*RUN, '--prompt', PROMPT)[1]
    assert plain.startswith(b'71045. '), plain
    for stops in ('0', 'Z'), ('Z', '0'), ('45', '045', '104'), ('5', '04'):
        flags = [word for stop in stops for word in ('--stop', stop)]
        wanted = b'7\n' if '104' in stops else b'71\n'
        answers(wanted, *RUN, '--prompt', PROMPT, *flags)
    refused('--stop x: is given too often$', *RUN, '--prompt', 'x', *17 * ['--stop', 'x'])


def test_nothing_is_dropped(_):
    refused('--prompt, --prompt-file: give exactly one', *RUN, '--prompt', 'x', '--prompt-file',
            'x')
    for flag in '--version', 'version', '--man':
        refused('^tamis: extra: stands behind %s' % flag, flag, 'extra')
    refused('^tamis: extra: stands behind --completion', '--completion', 'zsh', 'extra')


def test_short_names(_):
    wanted = call('run', '--model', model, '--device', 'reference', '--prompt', PROMPT, '--tokens', '3')[1]
    answers(wanted, 'run', '-m', model, '--device', 'reference', '-p', PROMPT, '-n', '3')
    refused('^tamis run: --model: is given twice', *RUN, '-m', model)
    refused('^tamis run: --prompt : must not be empty', *RUN, '-p', '')


def test_standard_input(folder):
    wanted = call(*RUN, '--prompt', PROMPT)[1]
    prompt = PROMPT.encode()
    for flag in '--file', '--prompt-file':
        assert answers(wanted, *RUN, flag, '-', input=prompt) == [], flag
    with open(model, 'rb') as file:
        answers(wanted, 'run', '--model', '-', *RUN[3:], '--prompt', PROMPT, stdin=file)
    refused('--model -: standard input is no ordinary file', 'run', '--model', '-', '--prompt', 'x',
            input=b'GGUF')
    refused('--text: is missing; standard input, the model', 'eval', 'passkey', '--model', '-',
            '--device', 'reference', stdin=open(model, 'rb'), status=1)
    refused('--prompt-file -: standard input is read by --file - already', *RUN, '--file', '-',
            '--prompt-file', '-', input=prompt)
    refused('--chunks -: standard input is read by --chunks - already', *RUN, '--chunks', '-',
            '--chunks', '-', input=prompt)
    refused('--prompt-file -: is given with --chat', *RUN, '--chat', '--prompt-file', '-')
    refused('--store -: must be a path', *RUN, '--store', '-')
    code, out, _ = call('tokenize', '--model', model, '--file', '-', input=b'ab')
    assert code == 0 and out.endswith(b'2 tokens of 2 bytes\n'), out
    with open(os.path.join(data, 'text.txt'), 'rb') as file:
        code, out, err = call('eval', 'passkey', '--model', model, '--text', '-', '--device',
                              'reference', '--length', '60', '--texts', '1', '--keys', '1',
                              '--select', 'full', stdin=file)
    assert code == 0, err
    refused('^tamis eval recall: standard input: has 2 tokens', 'eval', 'recall', '--model', model,
            '--text', '-', '--device', 'reference', '--length', '100', input=b'ab', status=1)
    assert os.listdir(folder) == []


def test_hint(folder):
    """Bytes that nobody reads are mentioned, once, and nothing else is."""
    hint = ['tamis run: standard input is not read; --file - would read it']
    wanted = call(*RUN, '--prompt', PROMPT)[1]
    run = [*RUN, '--prompt', PROMPT]
    path = os.path.join(folder, 'text')
    with open(path, 'w+b') as file:
        file.write(b'text')
        file.flush()
        assert answers(wanted, *run, stdin=file) == []  # read to its end by others
        file.seek(0)
        assert answers(wanted, *run, stdin=file) == hint
    assert answers(wanted, *run, input=b'text') == hint
    assert answers(wanted, *run, input=b'') == []
    with open('/dev/zero', 'rb') as zero:
        assert answers(wanted, *run, stdin=zero) == []
    reads, writes = os.pipe()  # nothing comes, and it stays open
    assert answers(wanted, *run, stdin=reads) == []
    os.close(reads)
    os.close(writes)
    assert answers(wanted, *run, preexec_fn=lambda: os.close(0)) == []
    refused('standard input is not read; --file - would', 'run', '--model', model, stdin=open(path))


def test_endless(folder):
    """/dev/zero as any file ends at once, and says what a text may have."""
    limit = '/dev/zero: has more than 256 MiB, the most of a text'
    for flag in '--file', '--prompt-file':
        refused(limit, *RUN, flag, '/dev/zero', status=1)
    refused(limit, 'tokenize', '--model', model, '--file', '/dev/zero', status=1)
    with open('/dev/zero', 'rb') as zero:
        refused('standard input: has more than 256 MiB', *RUN, '--file', '-', stdin=zero, status=1)
    refused(limit, 'compare', '--model', model, '--device', 'reference', '--file', '/dev/zero',
            '--question', 'x', status=1)
    refused(limit, 'eval', 'passkey', '--model', model, '--device', 'reference', '--text',
            '/dev/zero', status=1)
    large = os.path.join(folder, 'large')
    with open(large, 'wb') as file:
        file.truncate((256 << 20) + 1)
    refused('large: has more than 256 MiB', *RUN, '--file', large, status=1)
    here = os.path.dirname(os.path.abspath(__file__))
    chat = os.path.join(folder, 'chat.gguf')
    subprocess.run([sys.executable, os.path.join(here, 'gguf_keys.py'), model, chat,
                    'tokenizer.ggml.bos_token_id=1', 'tokenizer.ggml.eos_token_id=2'], check=True)
    with open('/dev/zero', 'rb') as zero:
        refused('standard input: a line has more than 16 MiB', 'run', '--model', chat, '--device',
                'reference', '--chat', '--chat-format', 'mistral', stdin=zero, status=1)


def test_encodings(folder):
    latin = os.path.join(folder, 'latin')
    with open(latin, 'wb') as file:
        file.write(b'caf\xe9')
    for flags, name in (['--file', latin], latin), (['--prompt', b'caf\xe9'], '--prompt'):
        code, _, err = call(*RUN, *flags)
        assert code == 0 and err.startswith(
            b'tamis: %s: is not UTF-8: byte 4 is 0xe9 (of Latin-1' % name.encode()), err
    for text in 'caf\u00e9', 'plain', '\U0001F600':
        assert b'UTF-8' not in call(*RUN, '--prompt', text)[2], text
    path = os.path.join(folder, 'out.json')
    code, _, err = call('compare', '--model', model, '--device', 'reference', '--file', latin,
                        '--plain', '--question', b'\xe9?', '--tokens', '2', '--rounds', '1',
                        '--select', 'full', '--json', path)
    assert code == 0, err
    with open(path, 'rb') as file:
        root = json.loads(file.read().decode())
    assert '\ufffd?' in json.dumps(root, ensure_ascii=False), root


def test_seed_in_json(folder):
    path = os.path.join(folder, 'out.json')
    seed = 2 ** 64 - 1
    code, _, err = call('eval', 'passkey', '--model', model, '--device', 'reference', '--length',
                        '60', '--texts', '1', '--keys', '1', '--select', 'full', '--seed',
                        str(seed), '--json', path)
    assert code == 0, err
    with open(path, encoding='utf-8') as file:
        assert json.load(file)['seed'] == seed


def test_numbers_say_their_range(_):
    refused(r'--context -1: must be from 1 to \d+$', *RUN, '--prompt', 'x', '--context', '-1')
    refused('--temperature -1: must be at least 0$', *RUN, '--prompt', 'x', '--temperature=-1')
    refused('--top-p -0.5: must be above 0 and at most 1$', *RUN, '--prompt', 'x', '--temperature',
            '1', '--top-p', '-0.5')


def test_devices_fit(_):
    code, out, err = call('devices')
    assert code == 0 and all(len(line) <= 100 for line in out.decode().split('\n')), (out, err)
    assert re.search(rb'^reference:0 .* usable$', out, re.M), out


def main():
    failed = 0
    for name, test in [item for item in globals().items() if item[0].startswith('test_')]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                test(folder)
            except AssertionError as error:
                print('FAIL', name, error)
                failed += 1
    print('input:', 'failed' if failed else 'all passed')
    return failed > 0


sys.exit(main())
