#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""test_terminal.py TAMIS DATA_FOLDER: `tamis run` on a terminal, and Ctrl-C. Exit status 0 if all
passed."""
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time

tamis, data = sys.argv[1:3]
model = os.path.join(data, 'needle.gguf')
LIMIT = 100  # seconds
CHAT = ['--chat', '--chat-format', 'mistral']


class Run:
    """A run whose stderr, and stdin if `keyboard`, is a terminal."""

    def __init__(self, *arguments, command=('run',), keyboard=False, stderr='terminal',
                 model=model, stdin=subprocess.DEVNULL):
        self.master, slave = pty.openpty()
        self.err = b''
        environment = {name: value for name, value in os.environ.items()
                       if name not in ('TAMIS_DEVICE', 'TAMIS_LOG')}
        self.process = subprocess.Popen(
            [tamis, *command, '--model', model, '--device', 'reference', *arguments],
            stdin=slave if keyboard else stdin, stdout=subprocess.PIPE,
            stderr=slave if stderr == 'terminal' else subprocess.PIPE, env=environment,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        os.close(slave)

    def read(self, seconds):
        """Whether more has come from the terminal; the other side may be closed."""
        try:
            ready = select.select([self.master], [], [], max(seconds, 0))[0]
            more = os.read(self.master, 4096) if ready else b''
        except OSError:
            more = b''
        self.err += more
        return len(more) > 0

    def wait_for(self, pattern):
        """Reads the terminal until it has shown the pattern."""
        end = time.time() + LIMIT
        while not re.search(pattern, self.err):
            assert self.read(end - time.time()), (pattern, self.err)

    def type(self, text):
        os.write(self.master, text)

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def wait_for_default(self):
        """Until the first SIGINT has reset its handler, so that the next one ends the run."""
        end = time.time() + LIMIT
        caught = True
        while caught:
            assert time.time() < end, 'the first SIGINT is still caught'
            with open('/proc/%d/status' % self.process.pid, encoding='ascii') as file:
                mask = int(re.search(r'^SigCgt:\s*(\w+)', file.read(), re.M).group(1), 16)
            caught = mask >> (signal.SIGINT - 1) & 1

    def end(self):
        """The exit status and the standard output."""
        out = self.process.stdout.read()
        if self.process.stderr:
            self.err = self.process.stderr.read()
        status = self.process.wait(LIMIT)
        while self.read(0):
            pass
        os.close(self.master)
        return status, out


def long_text(folder, count):
    path = os.path.join(folder, 'long')
    with open(os.path.join(data, 'text.txt'), 'rb') as source, open(path, 'wb') as target:
        target.write(source.read(count))
    return path


def chat_model(folder):
    path = os.path.join(folder, 'chat.gguf')
    here = os.path.dirname(os.path.abspath(__file__))
    subprocess.run([sys.executable, os.path.join(here, 'gguf_keys.py'), model, path,
                    'tokenizer.ggml.bos_token_id=1', 'tokenizer.ggml.eos_token_id=2'], check=True)
    return path


def test_progress(folder):
    asked = ['--file', long_text(folder, 700), '--tokens', '1']
    run = Run(*asked)
    run.wait_for(rb'\r\x1b\[K512 of 700 tokens \[=+ +\]  73 %, \d+ tokens/s, \d+ s left')
    run.wait_for(rb'700 of 700 tokens \[=+\] 100 %, \d+ tokens/s, 0 s left\r\x1b\[K')
    status, out = run.end()
    assert status == 0 and len(out) == 2, (status, out, run.err)
    run = Run(*asked, stderr='pipe')
    status, _ = run.end()
    assert status == 0 and b' of 700' not in run.err and run.err.startswith(b'prefill '), run.err


def test_loading(_):
    """Whatever loads a model shows how far it is."""
    for command in ('bench', 'throughput'), ('eval', 'passkey'):
        run = Run(command=command)
        run.wait_for(rb'loading 100 %\r +\r')
        run.process.kill()
        run.end()


def test_interrupt_answer(_):
    run = Run('--prompt', 'And the name of', '--tokens', '100000', '--context', '8192')
    begun = run.process.stdout.read(8)
    run.interrupt()
    status, rest = run.end()
    assert status == 130 and len(begun + rest) < 8000 and rest.endswith(b'\n'), (status, rest)
    # on the terminal behind the line that shows the loading, which is cleared
    assert re.search(rb'loading 100 %\r +\rprefill .* on reference:0', run.err), run.err


def test_interrupt_prompt(folder):
    run = Run('--file', long_text(folder, 6000), '--tokens', '5')
    run.wait_for(rb'512 of')
    run.interrupt()
    status, out = run.end()
    assert (status, out) == (130, b'\n'), (status, out, run.err)
    assert re.search(rb'tamis run: interrupted after \d+ of 6000 tokens of the prompt', run.err)
    assert re.search(rb'prefill .* on reference:0', run.err), run.err


def test_interrupt_question(folder):
    """Its tokens are read one by one, behind a prompt whose progress is shown and cleared."""
    path = long_text(folder, 700)
    with open(path, encoding='ascii') as file:
        run = Run('--file', path, '--question', 8 * file.read(), '--tokens', '5')
    run.wait_for(rb'700 of 700 [^\r]*\r\x1b\[K')
    run.interrupt()
    status, out = run.end()
    assert (status, out) == (130, b'\n'), (status, out, run.err)
    assert re.search(rb'interrupted after \d+ of 6300 tokens of the prompt and the question',
                     run.err), run.err


def test_interrupt_lines(folder):
    """A conversation whose lines come from a pipe: nobody could go on."""
    run = Run(*CHAT, '--context', '8192', '--tokens', '7000', model=chat_model(folder),
              stdin=subprocess.PIPE)
    run.process.stdin.write(b'And the name of\nthe son of\n')
    run.process.stdin.close()
    begun = run.process.stdout.read(8)
    run.interrupt()
    status, rest = run.end()
    assert status == 130 and (begun + rest).count(b'\n') >= 1, (status, rest)
    assert len(begun + rest) < 7000, 'the second line is answered'


def test_second_interrupt(folder):
    run = Run('--file', long_text(folder, 6000), '--tokens', '5')
    run.wait_for(rb'512 of')
    time.sleep(0.05)  # within the second chunk, at whose end the first signal would be seen
    run.interrupt()
    run.wait_for_default()
    run.interrupt()
    status, out = run.end()
    assert (status, out) == (-signal.SIGINT, b''), (status, out, run.err)


def test_second_interrupt_leaves_no_file(folder):
    run = Run('--file', long_text(folder, 6000), '--tokens', '5', '--json',
              os.path.join(folder, 'out.json'))
    run.wait_for(rb'512 of')
    time.sleep(0.05)
    assert any('out.json' in name for name in os.listdir(folder))
    run.interrupt()
    run.interrupt()
    status, _ = run.end()
    assert status in (-signal.SIGINT, 130), status
    left = [name for name in os.listdir(folder) if 'out.json' in name]
    assert left == (['out.json'] if status == 130 else []), (left, status)


def test_chat(folder):
    """A prompt for each line; Ctrl-C ends one answer, and at the prompt the program."""
    chat = chat_model(folder)
    run = Run(*CHAT, '--context', '8192', '--tokens', '7000', keyboard=True, model=chat)
    run.wait_for(rb'\r> ')
    run.type(b'And the name of\n')
    assert len(run.process.stdout.read(4)) == 4
    run.interrupt()
    run.wait_for(rb'> (?s:.*)> ')
    run.type(b'\n')
    run.wait_for(rb'> (?s:.*)> (?s:.*)> ')
    run.type(b'\x04')
    status, out = run.end()
    assert status == 0 and out.count(b'\n') >= 1 and len(out) < 6000, (status, out)
    assert b'tokens/s, KV read ' in run.err, run.err
    run = Run(*CHAT, keyboard=True, model=chat)
    run.wait_for(rb'\r> ')
    run.interrupt()
    assert run.end()[0] == -signal.SIGINT


def main():
    failed = 0
    for name, test in [item for item in globals().items() if item[0].startswith('test_')]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                test(folder)
            except AssertionError as error:
                print('FAIL', name, error)
                failed += 1
    print('terminal:', 'failed' if failed else 'all passed')
    return failed > 0


sys.exit(main())
