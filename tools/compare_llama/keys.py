#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prompts of natural text with a planted key, and how many answers name it.

keys.py write TEXT TOKENS TEXTS FOLDER   0.txt, 1.txt, ... of about TOKENS tokens, with keys.txt
keys.py count TEXTS FOLDER               reads I.answers (lines: answer, tab, by whom, tab, prompt, tab,
                                         text) and I.tamis (tamis alone), and prints a table"""
import random
import sys

LETTERS_A_TOKEN = 4.1  # of English, so that a text is about as long as it was asked for
QUESTION = " The special magic number is"


def write(path, tokens, texts, folder):
    with open(path, encoding="utf-8") as file:
        words = file.read().split(" ")
    draw = random.Random(1)
    keys = []
    for i in range(texts):
        key = draw.randrange(10000, 100000)
        plant = "The special magic number is %d. Remember it." % key
        length, taken = 0, []
        at = i * len(words) // texts
        while length < tokens * LETTERS_A_TOKEN - len(plant) - len(QUESTION):
            taken.append(words[at % len(words)])
            length += len(taken[-1]) + 1
            at += 1
        taken.insert(int((i + 0.5) / texts * len(taken)), plant)
        with open("%s/%d.txt" % (folder, i), "w", encoding="utf-8") as file:
            file.write(" ".join(taken) + QUESTION)
        keys.append(str(key))
    with open(folder + "/keys.txt", "w", encoding="utf-8") as file:
        file.write("\n".join(keys) + "\n")


def count(texts, folder):
    with open(folder + "/keys.txt", encoding="utf-8") as file:
        keys = file.read().split()
    found = {}
    for i in range(texts):
        answers = []
        with open("%s/%d.answers" % (folder, i), encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("answer\t"):
                    _, by, _, text = line.rstrip("\n").split("\t", 3)
                    answers.append(("llama.cpp" if by == "llama.cpp" else "llama.cpp, quest by tamis", text))
        with open("%s/%d.tamis" % (folder, i), encoding="utf-8", errors="replace") as file:
            answers.append(("tamis alone, quest", file.read()))
        if len(answers) != 3:
            sys.exit("keys.py: %s/%d.answers has %d answers, of 2" % (folder, i, len(answers) - 1))
        for by, text in answers:
            found.setdefault(by, []).append(keys[i] in text)
    print("keys found:")
    for by, which in found.items():
        print("  %-28s %d of %d  %s" % (by, sum(which), texts, "".join("+" if w else "-" for w in which)))


if len(sys.argv) == 6 and sys.argv[1] == "write":
    write(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
elif len(sys.argv) == 4 and sys.argv[1] == "count":
    count(int(sys.argv[2]), sys.argv[3])
else:
    sys.exit(__doc__)
