#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts in how many prompts greedy answers are those of the model in f32, in a Markdown table.

Usage: answers.py FOLDER TOKENS

The folder has the model's name, and for each prompt from 1 on, N.f32 and N.<arm>: texts of as many tokens. Texts are
compared, since a text of other tokens is another text, but for what no answer has by accident.
Exit status: 0; 1 a file is missing; 2 for wrong usage.
"""
import os
import sys

ARMS = {'tamis': 'tamis', 'llama-on': 'llama.cpp, flash attention',
        'llama-off': 'llama.cpp, no flash attention', 'llama-f32': 'llama.cpp, f32'}


def read(folder, prompt, arm):
    """A character that is not whole at the end is left out, as tamis run does."""
    with open(os.path.join(folder, '%d.%s' % (prompt, arm)), 'rb') as file:
        return file.read().rstrip(b'\n').decode('utf-8', 'ignore')


def main(arguments):
    if len(arguments) != 2:
        sys.stderr.write('usage: answers.py FOLDER TOKENS\n')
        return 2
    folder, tokens = arguments
    prompts = 0
    while os.path.exists(os.path.join(folder, '%d.f32' % (prompts + 1))):
        prompts += 1
    print('Greedy answers of %s with %s tokens that equal those of the model in f32:\n'
          % (os.path.basename(os.path.normpath(folder)), tokens))
    print('| | equal | prompts with another answer |\n| --- | --- | --- |')
    for arm, name in ARMS.items():
        try:
            others = [str(i) for i in range(1, prompts + 1)
                      if read(folder, i, arm) != read(folder, i, 'f32')]
        except OSError as error:
            sys.stderr.write('answers.py: %s: %s\n' % (error.filename, error.strerror))
            return 1
        print('| %s | %d of %d | %s |' % (name, prompts - len(others), prompts, ', '.join(others)))
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
