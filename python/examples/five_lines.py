# SPDX-License-Identifier: Apache-2.0
"""Five lines: load a model, read a long text, ask twice.

    python five_lines.py [MODEL.gguf TEXT QUESTION...]

Without arguments it is run in the source tree, on the small model and the text of 10,000 tokens there."""
import sys

import tamis

DEFAULT = ("tests/data/needle.gguf", "docs/examples/prompt.txt", "The red pass key is ", "The blue pass key is ")
path, text, *questions = sys.argv[1:] or DEFAULT

model = tamis.load(path)
session = model.session(select=tamis.Quest(budget=256))
session.read(open(text, encoding="utf-8").read())
for question in questions:
    print(question + session.ask(question, max_new=6))
