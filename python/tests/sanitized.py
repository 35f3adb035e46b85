# SPDX-License-Identifier: Apache-2.0
"""Runs Python with a library that was built with AddressSanitizer, and fails where it, or a Python that it
has started, finds an error, or leaks memory that was allocated in libtamis.

Usage: sanitized.py LIBRARIES ARGUMENT...

LIBRARIES, with colons between, are loaded before all others: the sanitizer's runtime, and libstdc++, whose
exceptions that looks for when it starts. The ARGUMENTs are Python's own. Python and NumPy leave much memory
to the end of the process, which is no leak of ours, so that leaks are taken from the sanitizer's report by
what allocated them."""
from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile

# Each frame names the library that it is in.
FORMAT = "    #%n %f %S (%m)"


def options(name: str, more: str) -> str:
    return ":".join(part for part in (os.environ.get(name, ""), more) if part)


def ours(report: str) -> list[str]:
    """The leaks and errors of a report that concern libtamis."""
    found = []
    for part in re.split(r"\n\s*\n", report):
        leak = re.match(r"(Direct|Indirect) leak of ", part)
        if "ERROR: AddressSanitizer:" in part or leak and "/libtamis" in part:
            found.append(part)
    return found


def main() -> int:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "report")
        # An exit status for leaks would be that of every Python. With malloc the sanitizer sees all memory of
        # Python's own, such as what cffi passes to the library; and what such memory points to is no leak.
        env = dict(os.environ, LD_PRELOAD=sys.argv[1], PYTHONMALLOC="malloc",
                   ASAN_OPTIONS=options("ASAN_OPTIONS", f"abort_on_error=1:log_path={log}"),
                   LSAN_OPTIONS=options("LSAN_OPTIONS",
                                        f"exitcode=0:log_path={log}:stack_trace_format='{FORMAT}'"),
                   UBSAN_OPTIONS=options("UBSAN_OPTIONS", "abort_on_error=1"))
        status = subprocess.run([sys.executable, *sys.argv[2:]], env=env).returncode
        reports = [path.read_text(errors="replace") for path in sorted(pathlib.Path(folder).iterdir())]
    found = [part for report in reports for part in ours(report)]
    for part in found:
        print(part, end="\n\n")
    print(f"sanitized.py: status {status}, {len(reports)} reports of Python, {len(found)} of libtamis")
    if not reports:
        print("sanitized.py: no report, though Python always leaves some memory: leaks were not looked for")
    return int(status != 0 or bool(found) or not reports)


if __name__ == "__main__":
    sys.exit(main())
