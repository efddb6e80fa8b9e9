"""Notebooks of docs/ run from the first cell to the last, without Jupyter, and are small and readable."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command import ROOT, environment
from tests.helpers.sentences import of_page, too_long
from tools.docs_site import page_text

NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))
SHOWN = {
    "count-in-zones": ("begin of gear", "600 frames", "north: ", "entered packing", "PNG of "),
    "int8-within-a-budget": ("INT8: ", "budget 0.01", " dB  ", "parts.int8.onnx map ", " ms, "),
}
MOST_OUTPUT_BYTES = 2_000
MOST_CPU_S = 60.0
RUNNER = """
import ast, json, sys
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, cell["id"], "exec"), names)
        shown = last and eval(compile(ast.Expression(last.value), cell["id"], "eval"), names)
        if shown is not None:
            png = shown._repr_png_()
            assert png.startswith(b"\\x89PNG"), png[:8]
            print("PNG of", len(png), "bytes")
"""
"""Runs cells as Jupyter does, and says how large the image is that the last line of a cell shows."""


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def test_there_are_notebooks_and_all_are_tested() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(SHOWN)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_every_cell_compiles(path: Path) -> None:
    code = cells(path, "code")
    assert code and cells(path, "markdown")[0] == json.loads(path.read_text(encoding="utf-8"))["cells"][0]
    for cell in code:
        compile("".join(cell["source"]), cell["id"], "exec")
        assert len(json.dumps(cell["outputs"])) <= MOST_OUTPUT_BYTES
    assert "At the end you will have" in "".join(cells(path, "markdown")[0]["source"])
    assert not too_long(of_page(page_text(path)))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    """By processor time, so that a busy machine changes nothing: a minute on two cores is twice as much."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", RUNNER, str(path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=280)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert [text for text in SHOWN[path.stem] if text not in done.stdout] == [], done.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < MOST_CPU_S
