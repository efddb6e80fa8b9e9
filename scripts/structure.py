"""Measures of how the code is put together: in how many places a fact stands.

    python scripts/structure.py

Prints a table of every measure with its bar, and exits 1 when one is over it. Add a measure as a function that returns
a :class:`Measure`, and its name to ``MEASURES``.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("edgert", "dla")


@dataclass(frozen=True, slots=True)
class Measure:
    """One number and what it must not exceed.

    Attributes:
        name: what is measured.
        value: the number.
        bar: the most it may be.
        detail: what the number comes from, largest first.
    """

    name: str
    value: float
    bar: float
    detail: tuple[str, ...] = ()


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Path from the repository's root, and syntax tree, of every module of the product."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


# Operators.

MAY_NAME_OPERATORS = ("edgert/graph/operators.py", "edgert/graph/numpy_eval.py", "edgert/graph/dla_rewrites/", "dla/")
"""The table itself; NumPy's meaning of each operator; rewrites of one operator each into others; the DLA's own rules
and tables, which stand alone."""
_WRITERS = frozenset({"Node", "make_node", "add", "then", "scalar", "replace", "_binary"})
"""Calls that write a node: there an operator's name is what comes out, not what is known of it."""
MOST_MODULES = 6
MOST_TABLES = 18


def operator_names() -> Measure:
    """In how many modules, at most, the same operator's name is compared, listed or looked up."""
    places = operator_places()
    ranked = sorted(places, key=lambda name: (-len(places[name]), name))
    detail = tuple(f"{name} {len(places[name])}" for name in ranked[:8])
    return Measure("modules that name one operator", len(places[ranked[0]]), MOST_MODULES, detail)


def operator_places() -> dict[str, list[str]]:
    """Operator → the modules that name it, outside those that may."""
    known = _standard()
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in modules():
        if not path.startswith(MAY_NAME_OPERATORS):
            for name in sorted(known.intersection(_compared(tree))):
                found[name].append(path)
    return found


def operator_tables() -> Measure:
    """How many constants of modules list operators, two or more, beside the table of them all."""
    known = _standard()
    found = [
        f"{path}:{node.lineno}"
        for path, tree in modules()
        if not path.startswith(MAY_NAME_OPERATORS)
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and len(known.intersection(_compared(node))) > 1
    ]
    return Measure("lists of operators", len(found), MOST_TABLES, tuple(found))


def _standard() -> frozenset[str]:
    """Names of the operators of the standard."""
    from onnx import defs

    return frozenset(schema.name for schema in defs.get_all_schemas() if not schema.domain)


def _compared(tree: ast.AST) -> Iterator[str]:
    """String literals but those that name the operator of a node that is written."""
    written = {id(part) for call in ast.walk(tree) if isinstance(call, ast.Call) for part in _written(call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in written:
            yield node.value


def _written(call: ast.Call) -> Iterator[ast.expr]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in _WRITERS:
        yield from call.args[:2]
        yield from (keyword.value for keyword in call.keywords if keyword.arg == "op")


MEASURES: tuple[Callable[[], Measure], ...] = (operator_names, operator_tables)


def main() -> int:
    """Prints the table; 1 when a measure is over its bar."""
    found = [measure() for measure in MEASURES]
    for one in found:
        verdict = "ok" if one.value <= one.bar else "OVER"
        print(f"{one.name:40} {one.value:>8g}  at most {one.bar:<8g} {verdict:4}  {', '.join(one.detail[:8])}")
    return int(any(one.value > one.bar for one in found))


if __name__ == "__main__":
    sys.exit(main())
