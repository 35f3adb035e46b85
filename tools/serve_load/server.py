# SPDX-License-Identifier: Apache-2.0
"""A server as a process: started on a free port, waited for, its time and memory, ended."""
import ctypes
import os
import signal
import socket
import subprocess
import time

import stream

START_S = 900  # the first start may build kernels
TICKS = os.sysconf('SC_CLK_TCK')
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


def die_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def cpu_of_machine():
    """Seconds that all processors were busy since the machine started."""
    with open('/proc/stat', encoding='ascii') as file:
        user, nice, system, _, _, irq, soft = (int(word) for word in file.readline().split()[1:8])
    return (user + nice + system + irq + soft) / TICKS


class Server:
    """`command` is a function from a port to the list of words that starts the server."""

    def __init__(self, name, command, log, environment=None):
        self.name, self.log, self.port = name, log, free_port()
        words = command(self.port)
        with open(log, 'ab') as file:
            file.write(('\n%s\n' % ' '.join(words)).encode())
            file.flush()
            try:
                self.process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                    env=dict(os.environ, **(environment or {})), preexec_fn=die_with_parent)
            except OSError as error:
                raise stream.Failed('%s: cannot be started: %s' % (words[0], error)) from error

    def __enter__(self):
        try:
            self.wait()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_):
        self.end()

    def said(self):
        with open(self.log, encoding='utf-8', errors='replace') as file:
            return ''.join(file.readlines()[-15:])

    def wait(self):
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise stream.Failed('%s ended with status %d before it was ready; it said:\n%s'
                                    % (self.name, self.process.returncode, self.said()))
            try:
                if stream.ask(self.port, 'GET', '/health', timeout=5)[0] == 200:
                    return
            except stream.Failed:
                pass
            time.sleep(0.1)
        raise stream.Failed('%s was not ready after %d s' % (self.name, START_S))

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def cpu_s(self):
        with open('/proc/%d/stat' % self.process.pid, encoding='utf-8') as file:
            words = file.read().rpartition(')')[2].split()
        return (int(words[11]) + int(words[12])) / TICKS

    def peak_bytes(self):
        """Most resident memory since forget_peak; pages of the model's file count."""
        with open('/proc/%d/status' % self.process.pid, encoding='utf-8') as file:
            for line in file:
                if line.startswith('VmHWM:'):
                    return int(line.split()[1]) * 1024
        return 0

    def forget_peak(self):
        try:
            with open('/proc/%d/clear_refs' % self.process.pid, 'w', encoding='ascii') as file:
                file.write('5')
        except OSError:
            pass  # then the peak is that since the start

    def model(self):
        """The name that requests must give."""
        _, answer = stream.ask(self.port, 'GET', '/v1/models')
        try:
            return answer['data'][0]['id']
        except (TypeError, KeyError, IndexError):
            return 'model'

    def count_tokens(self, text):
        status, answer = stream.ask(self.port, 'POST', '/tokenize', {'content': text})
        if status != 200 or not isinstance(answer, dict) or \
                not isinstance(answer.get('tokens'), list):
            raise stream.Failed('%s: /tokenize answers %d: %r' % (self.name, status, answer))
        return answer['tokens']
