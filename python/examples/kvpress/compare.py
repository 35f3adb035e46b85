# SPDX-License-Identifier: Apache-2.0
"""Beside kvpress: evictions of tamis and presses of kvpress on one model and text.

    pip install -r python/examples/requirements-kvpress.txt    # in an environment of its own, beside tamis
    python python/examples/kvpress/compare.py [--gguf PATH] [--json FILE]

For each method that both have, the parameters are made equal; then the tokens that both keep and the scores
by which they rank are compared. Where they cannot be equal, what must follow from the difference is checked.
The second table has the bytes and the time that compression saves on each side: presses that work head by
head mask keys, tamis gives their pages back. The exit status is 1 where something is not as predicted.

The model has random weights unless --gguf names one. docs/results/kvpress.md has results. Where other
programs run, torch's times are steadier under OMP_WAIT_POLICY=passive, and longer."""
from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import sys
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[3]
SAME_OUTPUT = 1e-4  # how far outputs of equal sets may differ


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gguf", type=pathlib.Path, help="a Llama or Qwen; default: random weights")
    parser.add_argument("--text", type=pathlib.Path, default=ROOT / "tests/data/text.txt",
                        help="the text with --gguf")
    parser.add_argument("--seed", type=int, default=1, help="of random weights and tokens")
    parser.add_argument("--tokens", type=int, default=1000, help="of the text whose sets are compared")
    parser.add_argument("--budgets", default="128,251,450", help="tokens that a lane keeps of it")
    parser.add_argument("--long", type=int, default=4000, help="tokens of the text that is measured; 0: none")
    parser.add_argument("--long-budget", type=int, default=500, help="tokens that a lane keeps of it")
    parser.add_argument("--device", help="of tamis; default: a CPU by OpenCL, else the reference")
    parser.add_argument("--threads", type=int, default=2, help="of both sides, where times are measured")
    parser.add_argument("--json", type=pathlib.Path, help="writes all figures there")
    return parser.parse_args()


def table(head: str, rows: list[list[str]]) -> str:
    """A Markdown table."""
    columns = head.count("|") - 1
    return "\n".join([head, "|---" * columns + "|", *(f"| {' | '.join(row)} |" for row in rows)])


def percent(part: float) -> str:
    return f"{100 * part:.4g} %"


def main() -> int:
    given = options()
    os.environ["POCL_MAX_PTHREAD_COUNT"] = str(given.threads)
    try:
        import kvpress
        import tamis
        import torch
        import transformers

        import costs
        import methods
        import sides
    except ImportError as reason:
        sys.exit(f"{reason}: this needs kvpress and tamis in one environment, see the top of {__file__}")

    begin = time.monotonic()
    torch.set_num_threads(1)  # until times are measured: threads that spin are slow on a busy machine
    cpus = [d.id for d in tamis.devices() if d.usable and d.backend == "opencl" and d.kind == "cpu"]
    context = tamis.Context(given.device or [*cpus, "reference"][0])
    model, tokens = sides.gguf_model(given.gguf, given.text) if given.gguf else sides.random_model(given.seed)
    versions = {"kvpress": _version("kvpress"), "transformers": transformers.__version__,
                "torch": torch.__version__, "tamis": tamis.__version__, "python": platform.python_version(),
                "device": context.device.name}
    print(", ".join(f"{name} {version}" for name, version in versions.items()), end="\n\n")

    def text(n: int) -> sides.Text:
        if tokens.shape[1] < n:
            sys.exit(f"the text has {tokens.shape[1]} tokens, {n} are needed")
        return sides.capture(model, tokens[:, :n])

    short = text(given.tokens)
    ours = sides.Tamis(context, short)
    cases = [methods.Case(short, ours, int(budget)) for budget in given.budgets.split(",")]
    results = []
    for method in methods.METHODS:
        results.append(methods.compare(method, cases))
        print(f"{method.theirs}: {results[-1].equal} of {results[-1].lanes} lanes equal", file=sys.stderr)
    print(table("| kvpress | tamis | lanes equal | ties | as predicted | tokens in common | scores differ by "
                "| why |",
                [[r.theirs, r.ours, percent(r.equal / r.lanes), percent(r.tied / r.lanes),
                  "" if r.as_predicted is None else percent(r.as_predicted / r.lanes), percent(r.common),
                  "" if r.scores is None else f"{r.scores:.0e}", r.why] for r in results]), end="\n\n")
    found = methods.findings(cases[0])
    print("\n".join(f"- {line}" for line in found.lines), end="\n\n")

    measured = []
    if given.long:
        long = text(given.long)
        measured = costs.measure(long, sides.Tamis(context, long), given.long_budget, given.threads)
        print(table("| | kvpress, MB | tamis, MB | kvpress: append, ms | attend, ms | tamis: step, ms | "
                    "attend / step | (append + attend) / step | outputs differ by |",
                    [[c.method, f"{c.theirs_bytes / 1e6:.2f}", f"{c.ours_bytes / 1e6:.2f}",
                      f"{c.theirs_append_ms:.3g}", f"{c.theirs_attend_ms:.3g}", f"{c.ours_ms:.3g}",
                      f"{c.attend_ratio:.2f}", f"{c.step_ratio:.2f}", f"{c.outputs_differ:.0e}"]
                     for c in measured]), end="\n\n")
    wrong = [f"{r.theirs}: {r.lanes - r.as_predicted} lanes" for r in results
             if r.as_predicted not in (None, r.lanes)]
    wrong += [f"{c.method}: outputs differ by {c.outputs_differ:.1e}" for c in measured
              if c.outputs_differ > SAME_OUTPUT]
    print(f"{time.monotonic() - begin:.0f} s.", *(f"NOT AS PREDICTED: {line}." for line in wrong))
    if given.json:
        figures: dict[str, Any] = {
            "arguments": {name: str(value) for name, value in vars(given).items()}, "versions": versions,
            "methods": [dataclasses.asdict(r) for r in results], "findings": dataclasses.asdict(found),
            "costs": [dataclasses.asdict(c) for c in measured], "wrong": wrong}
        given.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if wrong else 0


def _version(name: str) -> str:
    from importlib.metadata import version

    return version(name)


if __name__ == "__main__":
    sys.exit(main())
