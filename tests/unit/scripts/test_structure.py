"""The measures of scripts/structure.py, and that what they count they find."""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import structure

ROOT = Path(__file__).parents[3]
HELD = structure.MEASURES


@pytest.fixture(scope="module")
def tree() -> structure.Tree:
    return structure.Tree(ROOT)


@pytest.mark.parametrize("measure", HELD, ids=lambda measure: measure.__name__)
def test_no_measure_is_over_its_bar(
    measure: Callable[[structure.Tree], structure.Measure], tree: structure.Tree
) -> None:
    found = measure(tree)
    assert found.value <= found.bar, f"{found.name}: {', '.join(found.detail)}"


def test_a_name_counts_where_it_is_compared_not_where_a_node_is_written() -> None:
    tree = ast.parse(
        'Node("Add", names)\nbuilder.add("Mul", [a])\nreplace(node, op="Sub")\nnode.op in ("Relu", "Clip")'
    )
    assert set(structure._compared(tuple(ast.walk(tree)))) == {"Relu", "Clip"}


def test_sizes_and_names_are_counted(tmp_path: Path) -> None:
    for folder in ("edgert/one", "edgert/two", "dla"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").write_text('"""A package."""\n')
    (tmp_path / "edgert/one/same.py").write_text("from os import (\n    path,\n)\n\n")
    (tmp_path / "edgert/two/same.py").write_text("import sys\n")
    tree = structure.Tree(tmp_path)
    measures = structure.lines, structure.files, structure.repeated_names, structure.import_share
    assert [measure(tree).value for measure in measures] == [8, 5, 2, 50.0]
