# SPDX-License-Identifier: Apache-2.0
"""What a call costs more from Python than from C: step, write and attend of a tiny model, by turns in both.

    python overhead.py [--layers 64] [--steps 100] [--runs 15]

overhead.c, which the system's C compiler builds, does the same. The work is as small as it can be, a token of
one head, so that the calls themselves are what is measured: the CPU time of their thread, which does not count
what else the machine does. On the device that TAMIS_DEVICE names, else the reference. The table has medians of
the runs."""
import argparse
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import tamis

HERE = pathlib.Path(__file__).resolve().parent
CALLS = "step begin + end", "write", "attend"


def program(folder):
    """overhead.c, with the package's own library."""
    package = pathlib.Path(tamis.__file__).parent / "lib"
    model = next(package.glob("libtamis_model.so*")).resolve()  # libtamis lies beside it
    library = next(model.parent.glob("libtamis.so*"))
    out = os.path.join(folder, "overhead")
    subprocess.run([*os.environ.get("CC", "cc").split(), "-O2", f"-I{HERE.parents[1] / 'lib' / 'include'}",
                    str(HERE / "overhead.c"), str(library), f"-Wl,-rpath,{library.parent}", "-o", out],
                   check=True)
    return out


class Python:
    """The same calls as overhead.c's."""

    def __init__(self, layers):
        self.context = tamis.Context()
        self.layers = layers
        cache = tamis.Cache(self.context, n_layers=layers, n_heads=1, n_kv_heads=1, head_dim=64, dtype="f32",
                            capacity_tokens=16)
        self.plan, self.text = cache.plan(max_context=16), cache.add()
        self.rows = [self.context.array([[[0.0] * 64]], "f32") for _ in range(4)]

    def run(self, steps):
        """Means of the three calls, in microseconds."""
        q, k, v, out = self.rows
        now, us = time.thread_time, [0.0, 0.0, 0.0]
        for i in range(-steps // 10, steps):  # the first ones do not count
            if i == 0:
                us = [0.0, 0.0, 0.0]
            begun = now()
            step = self.plan.step(self.text)
            opened = now()
            for layer in range(self.layers):
                step.write(layer, k, v)
            written = now()
            for layer in range(self.layers):
                step.attend(layer, q, out)
            attended = now()
            step.end()
            us[0] += now() - attended + opened - begun
            us[1] += (written - opened) / self.layers
            us[2] += (attended - written) / self.layers
            self.context.wait()
            self.text.truncate(0)
        return [total * 1e6 / steps for total in us]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in ("layers", 64), ("steps", 100), ("runs", 15):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    os.environ.setdefault("TAMIS_DEVICE", "reference")
    python, runs = Python(args.layers), {"C": [], "Python": []}
    with tempfile.TemporaryDirectory() as folder:
        c = [program(folder), str(args.layers), str(args.steps)]
        for _ in range(args.runs):  # by turns, so that what else the machine does meets both
            runs["C"].append([float(us) for us in subprocess.check_output(c, text=True).split()])
            runs["Python"].append(python.run(args.steps))
    medians = {name: [statistics.median(each) for each in zip(*of)] for name, of in runs.items()}
    print(f"on {python.context.device.id}, {args.layers} layers, medians of {args.runs} runs, "
          "microseconds a call\n")
    print("| call | C | Python | more |\n|---|---|---|---|")
    for call, c_us, python_us in zip(CALLS, medians["C"], medians["Python"]):
        print(f"| {call} | {c_us:.2f} | {python_us:.2f} | {python_us - c_us:.2f} |")
    more = sum(p - c for c, p in list(zip(medians["C"], medians["Python"]))[1:])
    print(f"| **a layer: write + attend** | {sum(medians['C'][1:]):.2f} | {sum(medians['Python'][1:]):.2f} "
          f"| {more:.2f} |")


if __name__ == "__main__":
    main()
