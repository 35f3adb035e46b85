# SPDX-License-Identifier: Apache-2.0
"""The example notebook runs to its end, and finds what it says."""
import pathlib

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
for needed in ("ipykernel", "matplotlib", "pandas"):
    pytest.importorskip(needed)

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def test_reads():
    notebook = nbformat.read(EXAMPLES / "reads.ipynb", 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in code:
        cell.outputs = []
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(EXAMPLES)}})
    client.execute()
    outputs = [output for cell in code for output in cell.outputs if "data" in output]
    assert sum("image/png" in output["data"] for output in outputs) == 2
    assert "'48213'" in [output["data"].get("text/plain") for output in outputs]
    assert "quest" in outputs[-1]["data"]["text/plain"]
