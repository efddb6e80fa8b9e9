"""Mutation tests: changes edgert's code at random in copies of the tree, and counts the changes that tests notice.

    python tools/mutants.py                                 ten mutants of each module in MODULES
    python tools/mutants.py --seed 7 --count 20 edgert/policy.py=tests/unit/test_policy.py

A mutant is one small change: a comparison, an operator, ``and`` for ``or``, a number, ``return None``, or a removed
call. It is killed if a test of the module's files fails or takes far too long. Prints each mutant, and the diff of
survivors. Exits with 1 if fewer than 80 % are killed.
"""

import argparse
import ast
import copy
import difflib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]
LEAST = 0.8
MARKS = "not slow and not box and not gpu and not dla and not jetson and not timing"
MODULES: dict[str, tuple[str, ...]] = {
    "dla/region.py": ("tests/unit/dla/test_dla_region.py",),
    "edgert/graph/batchnorm.py": ("tests/unit/graph/test_graph_batchnorm.py",),
    "edgert/graph/fold_constants.py": ("tests/unit/graph/test_graph_fold.py",),
    "edgert/placement/exact.py": ("tests/unit/placement/test_exact.py",),
    "edgert/placement/min_cut.py": ("tests/unit/placement/test_min_cut.py",),
    "edgert/placement/schedule.py": ("tests/unit/placement/test_schedule.py",),
    "edgert/placement/throughput.py": ("tests/unit/placement/test_throughput.py",),
    "edgert/policy.py": (
        "tests/unit/runtime/test_dispatch.py",
        "tests/unit/runtime/test_join.py",
        "tests/unit/runtime/test_rate_limiter.py",
        "tests/unit/test_batcher.py",
    ),
    "edgert/runtime/frame.py": ("tests/unit/runtime/test_frame.py", "tests/unit/runtime/test_color.py"),
    "edgert/stages/decode/anchors.py": ("tests/unit/stages/decode/test_anchors.py",),
}
"""Module → its test files."""
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Mutant:
    """One module with one change."""

    module: str
    line: int
    kind: str
    before: str
    after: str

    def diff(self) -> str:
        lines = difflib.unified_diff(self.before.splitlines(), self.after.splitlines(), lineterm="", n=0)
        return "\n".join(f"    {line}" for line in list(lines)[3:])


def mutants(module: str, text: str) -> list[Mutant]:
    """Return all mutants of a module, by line."""
    found = []
    for node, new, kind in _changes(ast.parse(text)):
        after = _replaced(text, node, "pass" if isinstance(new, ast.Pass) else ast.unparse(new))
        found.append(Mutant(module, node.lineno, kind, text, after))
    return sorted(found, key=lambda one: one.line)


def drawn(module: str, text: str, count: int, seed: int) -> list[Mutant]:
    """Return ``count`` random mutants of a module, or all if it has fewer."""
    everyone = mutants(module, text)
    return random.Random(f"{seed} {module}").sample(everyone, min(count, len(everyone)))


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.AST, str]]:
    """Yield each node that can change, its replacement, and the kind of change."""
    for node in _code(tree):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield node, _with(node, ops=[_SWAPS[type(node.ops[0])]()]), "comparison"
        elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _SWAPS:
            kind = "boolean" if isinstance(node, ast.BoolOp) else "arithmetic"
            yield node, _with(node, op=_SWAPS[type(node.op)]()), kind
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, node.operand, "boolean"
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield node, ast.Constant(not node.value), "constant"
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield node, ast.Constant(node.value + 1), "constant"
        elif isinstance(node, ast.Return) and node.value and not _is_none(node.value):
            yield node, ast.Return(ast.Constant(None)), "return None"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield node, ast.Pass(), "removed call"


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of executed code, without annotations, decorators, f-strings and texts of errors."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "exc"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST) and not isinstance(part, ast.JoinedStr | ast.Import | ast.ImportFrom):
                yield part
                yield from _code(part)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _replaced(text: str, node: ast.expr | ast.stmt, new: str) -> str:
    """Return the text with a node replaced; expressions are put in parentheses."""
    lines = text.encode().splitlines(keepends=True)  # columns of syntax trees count bytes
    begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: (node.end_lineno or 0) - 1])) + (node.end_col_offset or 0)
    is_whole = isinstance(node, ast.stmt | ast.Constant)
    data = text.encode()
    return (data[:begin] + (new if is_whole else f"({new})").encode() + data[end:]).decode()


class Trees:
    """Copies of the source tree, one for each parallel test run."""

    def __init__(self, folder: Path, root: Path, count: int) -> None:
        self._free = SimpleQueue[Path]()
        names = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
        for number in range(count):
            tree = folder / str(number)
            for name in filter(None, names.stdout.split("\0")):
                if (root / name).is_file():
                    (tree / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(root / name, tree / name)
            self._free.put(tree)

    def passes(self, tests: Sequence[str], mutant: Mutant | None = None, limit_s: float = 600.0) -> bool:
        """Return whether the tests pass in time, on a copy with the mutant."""
        tree = self._free.get()
        try:
            if mutant:
                (tree / mutant.module).write_text(mutant.after, encoding="utf-8")
            # Without bytecode: Python would not notice a mutant with the same size and second of change.
            environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree)}
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", MARKS, *tests]
            run = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=limit_s, check=False)
            return run.returncode == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            if mutant:
                (tree / mutant.module).write_text(mutant.before, encoding="utf-8")
            self._free.put(tree)


def survivors(
    modules: Mapping[str, Sequence[str]], count: int, seed: int, jobs: int = 1, root: Path = ROOT
) -> tuple[list[Mutant], int]:
    """Try mutants of every module, print each verdict, and return the survivors and the number of mutants."""
    alive, tried = list[Mutant](), 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        trees = Trees(Path(folder), root, jobs)
        for module, tests in modules.items():
            began = time.monotonic()
            if not trees.passes(tests):
                raise SystemExit(f"error: the tests of {module} fail without any mutant: {' '.join(tests)}")
            limit_s = 10 + 4 * jobs * (time.monotonic() - began)
            chosen = drawn(module, (root / module).read_text(encoding="utf-8"), count, seed)
            verdicts = pool.map(lambda one, tests=tests, limit_s=limit_s: trees.passes(tests, one, limit_s), chosen)
            lived = 0
            for mutant, is_alive in zip(chosen, verdicts, strict=True):
                print(f"{'ALIVE' if is_alive else 'killed'} {module}:{mutant.line} {mutant.kind}", flush=True)
                if is_alive:
                    print(mutant.diff(), flush=True)
                    alive.append(mutant)
                    lived += 1
            tried += len(chosen)
            print(f"{module}: {len(chosen) - lived} of {len(chosen)} killed", flush=True)
    return alive, tried


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if fewer than 80 % of the mutants are killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE=TEST[,TEST]", help="instead of those in MODULES")
    parser.add_argument("--count", type=int, default=10, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="test runs at a time")
    given = parser.parse_args(arguments)
    named = (one.partition("=") for one in given.modules)
    modules = {module: tuple(tests.split(",")) for module, _, tests in named} or MODULES
    alive, tried = survivors(modules, given.count, given.seed, given.jobs)
    print(f"{tried - len(alive)} of {tried} killed, seed {given.seed}")
    return int(tried - len(alive) < LEAST * tried)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
