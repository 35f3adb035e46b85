#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The completion for zsh, asked of a zsh at a terminal. TAMIS_COMPLETION: the folder of _tamis."""
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time

# Answers each line from standard input that ends in a tab with what zsh would offer.
SETUP = '''
PS1=
unsetopt zle_bracketed_paste beep list_beep
fpath=($TAMIS_COMPLETION $fpath)
autoload -Uz compinit && compinit -D -u
zstyle ':completion:*' verbose no
zstyle ':completion:*' list-colors
zstyle ':completion:*' format
LISTMAX=1000
bindkey '^I' list-choices
print READ''Y
'''
CASES = [('tamis com', 'compare'),
         ('tamis bench a', 'arrivals attention'),
         ('tamis run -m x --cache-', '--cache-dtype'),
         ('tamis run --select q', 'quest quest-paper'),
         ('tamis eval recall --select quest,q', 'quest quest-paper'),
         ('tamis eval eviction --evict sn', 'snapkv'),
         ('tamis help be', 'bench'),
         ('tamis help bench de', 'decode'),
         ('tamis store l', 'list')]


def read_until(handle, wanted, seconds=60):
    """What the terminal shows until `wanted` appears in it."""
    text, end = '', time.monotonic() + seconds
    while not re.search(wanted, text):
        ready = select.select([handle], [], [], max(0, end - time.monotonic()))[0]
        assert ready, 'nothing like %s within %d s: %r' % (wanted, seconds, text)
        text += os.read(handle, 4096).decode(errors='replace')
    return text


def main():
    with tempfile.TemporaryDirectory() as folder:
        master, slave = pty.openpty()
        env = dict(os.environ, ZDOTDIR=folder, HOME=folder, TERM='dumb', COLUMNS='200', LINES='50')
        shell = subprocess.Popen(['zsh', '-f', '-i'], stdin=slave, stdout=slave, stderr=slave,
                                 env=env, start_new_session=True)
        try:
            with open(os.path.join(folder, 'setup'), 'w') as file:
                file.write(SETUP)
            os.write(master, ('source %s/setup\n' % folder).encode())
            read_until(master, 'READY')
            for line, wanted in CASES:
                os.write(master, (line + '\t').encode())
                shown = read_until(master, r'\n[^\n]*%s' % re.escape(wanted.split()[-1]))
                offered = re.findall(r'[a-z0-9-]+', shown.split('\n', 1)[1])
                os.write(master, b'\x15')
                assert ' '.join(offered[:len(wanted.split())]) == wanted, (line, shown)
        finally:
            shell.kill()
            shell.wait()
            os.close(master)
            os.close(slave)
    return 0


if __name__ == '__main__':
    sys.exit(main())
