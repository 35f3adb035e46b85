# SPDX-License-Identifier: Apache-2.0
"""tamis.c beside a C compiler: numbers, the layout of structs, and functions of the headers."""
from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
from typing import Any

import pytest

from conftest import REPOSITORY
from tamis.c import ffi, lib

HEADERS = REPOSITORY / "lib" / "include"
NAMES = sorted(path.name for path in (HEADERS / "tamis").glob("*.h"))


class Compiler:
    """The system's C compiler, on a source that includes every header."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.command = os.environ.get("CC") or shutil.which("cc") or ""
        if not self.command:
            pytest.skip("there is no C compiler (Debian: gcc)")

    def source(self, body: str, names: list[str] = NAMES) -> pathlib.Path:
        path = self.folder / "source.c"
        path.write_text("#include <stdio.h>\n#include <stddef.h>\n"
                        + "".join(f"#include <tamis/{name}>\n" for name in names) + body)
        return path

    def run(self, *options: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.command.split(), f"-I{HEADERS}", *options], check=check, text=True,
                              capture_output=True, env={**os.environ, "LC_ALL": "C"})

    def text(self, *options: str, names: list[str] = NAMES) -> str:
        """What the preprocessor leaves of the headers."""
        return self.run("-E", "-P", *options, str(self.source("", names))).stdout

    def values(self, expressions: list[str]) -> dict[str, int]:
        """What a program prints of expressions that are numbers; of the others nothing."""
        # One line each, so that the compiler's messages say which are none.
        lines = [f"static const long long v{i} = (long long)({text}); _Static_assert(_Generic(({text}), "
                 "char *: 0, float: 0, double: 0, default: 1), \"\");\n"
                 for i, text in enumerate(expressions)]
        path = self.source("\n#line 1 \"numbers\"\n" + "".join(lines))
        failed = self.run("-fsyntax-only", "-w", str(path), check=False).stderr
        bad = {int(line) for line in re.findall(r"^numbers:(\d+):", failed, re.MULTILINE)}
        good = [i for i in range(len(expressions)) if i + 1 not in bad]
        path = self.source("".join(lines[i] for i in good) + "int main(void) {\n"
                           + "".join(f"printf(\"%lld\\n\", v{i});\n" for i in good) + "return 0; }\n")
        program = str(self.folder / "program")
        self.run("-w", str(path), "-o", program)
        printed = subprocess.run([program], check=True, text=True, stdout=subprocess.PIPE).stdout.split()
        return {expressions[i]: int(value) for i, value in zip(good, printed)}


@pytest.fixture
def compiler(tmp_path: pathlib.Path) -> Compiler:
    return Compiler(tmp_path)


def test_macros_that_are_numbers_are_there(compiler: Compiler) -> None:
    defined = re.findall(r"^#define (TAMIS_\w+) (\S.*)$", compiler.text("-dM"), re.MULTILINE)
    values = compiler.values([name for name, _ in defined])
    assert {"TAMIS_NO_ROW", "TAMIS_VERSION_MINOR", "TAMIS_BLEND_NO_CHECK"} <= values.keys()
    assert values["TAMIS_NO_ROW"] == 0xFFFFFFFF
    assert {name: getattr(lib, name, None) for name in values} == values


def test_enumerators_are_there(compiler: Compiler) -> None:
    lists = re.findall(r"\benum\b\s*\w*\s*\{([^}]*)\}", compiler.text())
    names = [name for each in lists for name in re.findall(r"(?:^|,)\s*(\w+)", each)]
    assert len(lists) > 20 and all(name.startswith("TAMIS_") for name in names)
    values = compiler.values(names)
    assert list(values) == names  # each is a number
    assert {name: getattr(lib, name, None) for name in names} == values


def test_structs_have_the_compiler_s_layout(compiler: Compiler) -> None:
    """Their sizes, and where each field lies and what it takes."""
    structs = re.findall(r"\bstruct (tamis_\w+) \{", compiler.text())
    known: dict[str, Any] = {name: ffi.typeof(f"struct {name}") for name in structs}
    fields = {f"struct {name}": [field for field, _ in of.fields] for name, of in known.items()}
    asked = {f"sizeof({name})": ffi.sizeof(name) for name in fields}
    for name, members in fields.items():
        for field in members:
            asked[f"offsetof({name}, {field})"] = ffi.offsetof(name, field)
            member = dict(ffi.typeof(name).fields)[field].type
            asked[f"sizeof((({name} *)0)->{field})"] = ffi.sizeof(member)
    assert len(structs) > 40
    assert compiler.values(list(asked)) == asked


def test_functions_are_in_the_library() -> None:
    """All that headers declare; but those of the store where this build lacks it."""
    lacks = set()
    for header in NAMES:
        text = (HEADERS / "tamis" / header).read_text()
        declared = re.findall(r"^TAMIS_API\b[^;]*?\b(tamis_\w+)\s*\(", text, re.MULTILINE)
        assert len(declared) == len(re.findall(r"^TAMIS_API\b", text, re.MULTILINE))
        missing = [name for name in declared if not hasattr(lib, name)]
        assert missing in ([], declared), header
        lacks |= {header} if missing else set()
    assert not lacks or not hasattr(lib, "tamis_store_create")
    assert lacks <= {"store.h", "blend.h", "blend_trials.h", "record.h", "blend_model.h"}
