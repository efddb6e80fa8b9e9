"""The measures of scripts/structure.py, and that what they count they find."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from scripts import structure


@pytest.mark.parametrize("measure", structure.MEASURES, ids=lambda measure: measure.__name__)
def test_no_measure_is_over_its_bar(measure: Callable[[], structure.Measure]) -> None:
    found = measure()
    assert found.value <= found.bar, f"{found.name}: {', '.join(found.detail)}"


def test_a_name_counts_where_it_is_compared_not_where_a_node_is_written() -> None:
    tree = ast.parse(
        'Node("Add", names)\nbuilder.add("Mul", [a])\nreplace(node, op="Sub")\nnode.op in ("Relu", "Clip")'
    )
    assert set(structure._compared(tree)) == {"Relu", "Clip"}
