"""Measures of the structure of the code: sizes, imports, and the number of places that know a fact.

    python scripts/structure.py                  this tree
    python scripts/structure.py ../before .      two trees, one after the other
    python scripts/structure.py --trace          also counts the files that two jobs enter, by running them

Prints a table of every measure with its bar, and exits with 1 if a measure of the last tree is over its bar. To add a
measure, write a function of a :class:`Tree` that returns a :class:`Measure`, and list it in ``MEASURES``.
"""

import ast
import math
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

PACKAGES = ("edgert", "dla")


@dataclass(frozen=True, slots=True)
class Measure:
    """A measured number and the largest allowed value; ``detail`` has parts of the value, the largest first."""

    name: str
    value: float
    bar: float
    detail: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tree:
    """The product's modules at one root."""

    root: Path

    @cached_property
    def texts(self) -> dict[str, str]:
        """Path from the root → text, of every module."""
        found = (path for package in PACKAGES for path in sorted((self.root / package).rglob("*.py")))
        return {path.relative_to(self.root).as_posix(): path.read_text(encoding="utf-8") for path in found}

    @cached_property
    def modules(self) -> dict[str, ast.Module]:
        """Path from the root → syntax tree, of every module."""
        return {path: ast.parse(text) for path, text in self.texts.items()}

    @cached_property
    def nodes(self) -> dict[str, tuple[ast.AST, ...]]:
        """Path from the root → all nodes of the syntax tree, of every module."""
        return {path: tuple(ast.walk(module)) for path, module in self.modules.items()}


# Size. Lower a bar when the tree shrinks; to raise one, say in the commit what it pays for.

LINES, TEST_LINES, FILES = 125_077, 126_112, 605  # goals: 100,000, 103,000 and 500
LONGEST_FUNCTION, RUNTIME_FIELDS = 80, 12


def lines(tree: Tree) -> Measure:
    """Return the lines of the product, blank lines and comments too."""
    sizes = {path: text.count("\n") for path, text in tree.texts.items()}
    longest = sorted(sizes, key=lambda path: -sizes[path])
    return Measure("lines", sum(sizes.values()), LINES, tuple(f"{path} {sizes[path]}" for path in longest[:3]))


def test_lines(tree: Tree) -> Measure:
    """Return the lines of Python in tests, scripts and tools."""
    folders = ("tests", "scripts", "tools")
    sizes = {
        folder: sum(path.read_text(encoding="utf-8").count("\n") for path in (tree.root / folder).rglob("*.py"))
        for folder in folders
    }
    detail = tuple(f"{folder} {size}" for folder, size in sizes.items())
    return Measure("lines of tests and tools", sum(sizes.values()), TEST_LINES, detail)


def files(tree: Tree) -> Measure:
    """Return the number of the product's modules."""
    sizes = [text.count("\n") for text in tree.texts.values()]
    return Measure("files", len(sizes), FILES, (f"median {median(sizes):g} lines",))


def longest_function(tree: Tree) -> Measure:
    """Return the lines of the product's longest function, with its docstring."""
    found = sorted(
        (
            ((node.end_lineno or node.lineno) - node.lineno + 1, f"{path}:{node.lineno} {node.name}")
            for path, nodes in tree.nodes.items()
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ),
        reverse=True,
    )
    detail = tuple(f"{where} {size}" for size, where in found[:3])
    return Measure("lines of the longest function", found[0][0] if found else 0, LONGEST_FUNCTION, detail)


def runtime_fields(tree: Tree) -> Measure:
    """Return how many fields the largest record of the runtime has."""
    found = sorted(
        (
            (sum(isinstance(part, ast.AnnAssign) for part in node.body), node.name)
            for path, nodes in tree.nodes.items()
            if path.startswith("edgert/runtime/")
            for node in nodes
            if isinstance(node, ast.ClassDef)
        ),
        reverse=True,
    )
    detail = tuple(f"{name} {count}" for count, name in found[:3])
    return Measure("fields of a runtime record", found[0][0] if found else 0, RUNTIME_FIELDS, detail)


def repeated_names(tree: Tree) -> Measure:
    """Return the number of files that share their name with another file, except ``__init__.py``."""
    counts = Counter(Path(path).name for path in tree.texts if not path.endswith("__init__.py"))
    twice = {name: count for name, count in counts.items() if count > 1}
    names = sorted(twice, key=lambda name: -twice[name])
    return Measure("files that share their name", sum(twice.values()), 40, tuple(f"{n} {twice[n]}" for n in names))


def import_share(tree: Tree) -> Measure:
    """Return the percentage of lines that belong to import statements."""
    imports = sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for nodes in tree.nodes.values()
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    total = sum(text.count("\n") for text in tree.texts.values())
    return Measure("lines that import, percent", round(100 * imports / total, 2), 6, (f"{imports} lines",))


def reading_list(tree: Tree) -> Measure:
    """Return the lines of the files that CONTRIBUTING.md asks a newcomer to read."""
    page = tree.root / "CONTRIBUTING.md"
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    section = text.partition("## What to read first")[2].partition("\n## ")[0]
    named = [path for path in re.findall(r"\]\(([\w./-]+)\)", section) if (tree.root / path).is_file()]
    sizes = [(tree.root / path).read_text(encoding="utf-8").count("\n") for path in named]
    return Measure("lines of the reading list", sum(sizes) if named else math.inf, 1_500, tuple(named))


# Files that a job enters.


def int8_files(tree: Tree) -> Measure:
    """Return the number of files that quantizing the demo's model to INT8 enters, by running it."""
    return _entered(tree, "int8", "files entered by INT8", 40)


def frame_files(tree: Tree) -> Measure:
    """Return the number of files that a frame enters from a video to a JSON lines file, by running a pipeline."""
    return _entered(tree, "frame", "files entered by a frame", 29)


def _entered(tree: Tree, job: str, name: str, bar: float) -> Measure:
    script = Path(__file__).resolve().parents[1] / "tools" / "entered_files.py"
    environment = {**os.environ, "PYTHONPATH": str(tree.root.resolve())}
    run = subprocess.run([sys.executable, script, job], env=environment, capture_output=True, text=True, check=False)
    found = run.stdout.split()
    if run.returncode or not found:
        return Measure(name, math.inf, bar, tuple(run.stderr.splitlines()[-1:]))
    packages = Counter(str(Path(path).parent) for path in found)
    return Measure(name, len(found), bar, tuple(f"{package} {count}" for package, count in packages.most_common()))


# Operators.

MAY_NAME_OPERATORS = (
    "edgert/graph/operators.py",
    "edgert/graph/fold_constants.py",
    "edgert/graph/dla_rewrites/",
    "dla/",
)
"""Modules that may name operators: the table of all, NumPy's implementations, rewrites of single operators, and the
rules and tables of the DLA."""
_WRITERS = frozenset({"Node", "make_node", "add", "then", "scalar", "replace", "_binary"})
"""Functions that write a node; the name of an operator in their arguments is no knowledge about it."""
MOST_MODULES = 6
MOST_TABLES = 18


def operator_names(tree: Tree) -> Measure:
    """Return the largest number of modules that compare, list or look up the same operator's name."""
    places = operator_places(tree)
    ranked = sorted(places, key=lambda name: (-len(places[name]), name))
    detail = tuple(f"{name} {len(places[name])}" for name in ranked[:8])
    return Measure("modules that name one operator", len(places[ranked[0]]), MOST_MODULES, detail)


def operator_places(tree: Tree) -> dict[str, list[str]]:
    """Return operator → modules that name it, except those that may."""
    known = _standard()
    found: dict[str, list[str]] = defaultdict(list)
    for path, nodes in tree.nodes.items():
        if not path.startswith(MAY_NAME_OPERATORS):
            for name in sorted(known.intersection(_compared(nodes))):
                found[name].append(path)
    return found


def operator_tables(tree: Tree) -> Measure:
    """Return the number of constants that list two or more operators, outside the modules that may."""
    known = _standard()
    found = [
        f"{path}:{node.lineno}"
        for path, module in tree.modules.items()
        if not path.startswith(MAY_NAME_OPERATORS)
        for node in module.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and len(known.intersection(_compared(tuple(ast.walk(node))))) > 1
    ]
    return Measure("lists of operators", len(found), MOST_TABLES, tuple(found))


def _standard() -> frozenset[str]:
    """Return the names of ONNX's standard operators."""
    from onnx import defs

    return frozenset(schema.name for schema in defs.get_all_schemas() if not schema.domain)


def _compared(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield string literals but those that name the operator of a node that is written."""
    written = {id(part) for call in nodes if isinstance(call, ast.Call) for part in _written(call)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in written:
            yield node.value


def _written(call: ast.Call) -> Iterator[ast.expr]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in _WRITERS:
        yield from call.args[:2]
        yield from (keyword.value for keyword in call.keywords if keyword.arg == "op")


MEASURES: tuple[Callable[[Tree], Measure], ...] = (
    lines,
    test_lines,
    files,
    longest_function,
    runtime_fields,
    repeated_names,
    import_share,
    reading_list,
    operator_names,
    operator_tables,
)
TRACED: tuple[Callable[[Tree], Measure], ...] = (int8_files, frame_files)
"""Measures that take seconds because they run edgert."""


def show(tree: Tree, measures: Sequence[Callable[[Tree], Measure]] = MEASURES) -> bool:
    """Print the table of one tree, and return whether every measure is within its bar."""
    found = [measure(tree) for measure in measures]
    print(tree.root.resolve())
    for one in found:
        verdict = "ok" if one.value <= one.bar else "OVER"
        print(f"{one.name:32} {one.value:>8g}  at most {one.bar:<8g} {verdict:4}  {', '.join(one.detail[:8])}")
    return all(one.value <= one.bar for one in found)


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if a measure of the last tree is over its bar."""
    measures = MEASURES + TRACED if "--trace" in arguments else MEASURES
    roots = [argument for argument in arguments if argument != "--trace"]
    verdicts = [show(Tree(Path(root)), measures) for root in roots or [str(Path(__file__).resolve().parents[1])]]
    return int(not verdicts[-1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
