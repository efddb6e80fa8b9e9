"""Every name of TensorRT that the door touches is there in each version that it claims; read off its source."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from edgert.backend.tensorrt import library
from edgert.backend.tensorrt.build_request import DTYPES, LAYOUTS
from tests.helpers.trt_api import EVERY, RTX, STRONG, WEAK, api

FOLDER = Path(library.__file__).parent
FILES = sorted(path.name for path in FOLDER.glob("*.py"))
CLAIMS = {  # file, or path of a class or function in its file; the most exact one holds, EVERY where there is none
    "builder.create_monitor": EVERY[1:],  # progress is reported since 10.0
    "dialects.Dialect.set_timing_cache": (*WEAK, *STRONG),
    "dialects.Dialect.timing_cache": (*WEAK, *STRONG),
    "dialects.WeakDialect": WEAK,
    "dialects.cached_calibrator": WEAK,
    "dialects.StrongDialect": STRONG,
    "dialects.RtxDialect": RTX,
    "engine_cache.KernelCache": RTX,
    "library.capabilities": RTX,
    "plugin": (*WEAK[1:], *STRONG),  # plugins in Python came with 10.0, and TensorRT-RTX has none
}
TYPES = {name for name, kind in vars(library)["__annotations__"].items() if kind is TypeAlias}
RETURNS = {  # what pybind11 does not report, because the method is overloaded or returns nothing on failure
    ("Runtime", "deserialize_cuda_engine"): "ICudaEngine",
    ("ICudaEngine", "create_execution_context"): "IExecutionContext",
}
ENUMS = {name for version in EVERY for name in api(version).enums}
ORDINARY = {name for kind in (str, bytes, dict, list, tuple, set, Path, np.ndarray, Exception) for name in dir(kind)}


@dataclass
class Use:
    """One attribute of an object of TensorRT, or a member of one of its enumerations.

    Attributes:
        path: ``dialects.WeakDialect.check``: file, and what it stands in.
    """

    path: str
    line: int
    owner: str
    name: str
    called: bool
    guarded: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.owner}.{self.name}"


@dataclass
class Reader:
    """Resolves the attributes in one function, by annotations and by what calls return."""

    path: str
    fields: dict[str, str]
    functions: dict[str, str]
    names: dict[str, str]
    guards: set[str]
    uses: list[Use] = field(default_factory=list)
    loose: list[tuple[int, str]] = field(default_factory=list)

    def read(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.visit(statement)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda)):
            return  # has a reader of its own
        for child in ast.iter_child_nodes(node):
            self.visit(child)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            self.names[node.target.id] = kind_of(node.annotation)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self.names[node.targets[0].id] = self.resolve(node.value)
        elif isinstance(node, ast.Attribute):
            self.note(node, called=False)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            self.note(node.func, called=True)

    def note(self, node: ast.Attribute, *, called: bool) -> None:
        owner = self.resolve(node.value)
        if owner:
            self.uses.append(Use(self.path, node.lineno, owner, node.attr, called, node.attr in self.guards))
        elif not is_self(node.value):
            self.loose.append((node.lineno, node.attr))

    def resolve(self, node: ast.AST) -> str:
        """The class of an expression's value; ``Trt`` for the module, ``enum X`` and ``class X`` for its members."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, "")
        if isinstance(node, ast.Attribute):
            if is_self(node.value) and node.attr in self.fields:
                return self.fields[node.attr]
            if node.attr == "trt":
                return "Trt"
            if self.resolve(node.value) == "Trt":
                return f"{'enum' if node.attr in ENUMS else 'class'} {node.attr}"
            return ""
        if isinstance(node, ast.Call):
            return self.returned(node.func)
        return ""

    def returned(self, function: ast.expr) -> str:
        if isinstance(function, ast.Name):
            return self.functions.get(function.id, "")
        if not isinstance(function, ast.Attribute):
            return ""
        owner = self.resolve(function.value)
        if owner == "Trt":
            return function.attr
        classes = [api(version).classes[owner] for version in EVERY if owner in api(version).classes]
        kinds = {one.methods.get(function.attr, "") for one in classes}
        kinds.discard("")
        return RETURNS.get((owner, function.attr)) or (kinds.pop() if len(kinds) == 1 else "")


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def kind_of(annotation: ast.expr | None) -> str:
    """By its bare name, or as ``api.IBuilder``, the module of names being ``api`` where many are used."""
    if (
        isinstance(annotation, ast.Attribute)
        and isinstance(annotation.value, ast.Name)
        and annotation.value.id == "api"
    ):
        annotation = ast.Name(annotation.attr)
    return annotation.id if isinstance(annotation, ast.Name) and annotation.id in TYPES else ""


Scope = tuple[str, ast.FunctionDef, dict[str, str], dict[str, str]]


@cache
def functions_of_package() -> dict[str, str]:
    """Function → the class it returns."""
    nodes = (node for file in FILES for node in ast.walk(ast.parse((FOLDER / file).read_text())))
    return {node.name: kind for node in nodes if isinstance(node, ast.FunctionDef) and (kind := kind_of(node.returns))}


@cache
def classes_of_package() -> dict[str, ast.ClassDef]:
    nodes = (node for file in FILES for node in ast.walk(ast.parse((FOLDER / file).read_text())))
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def scopes(path: str, tree: ast.AST, outer: dict[str, str], fields: dict[str, str]) -> Iterator[Scope]:
    """Every function with its path, the names it sees and the fields of its class."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from scopes(f"{path}.{node.name}", node, outer, {**fields, **fields_of(node)})
        elif isinstance(node, ast.FunctionDef):
            arguments = [*node.args.args, *node.args.kwonlyargs]
            names = {**outer, **{item.arg: kind_of(item.annotation) for item in arguments}}
            yield f"{path}.{node.name}", node, names, fields
            yield from scopes(f"{path}.{node.name}", node, names, fields)
        else:
            yield from scopes(path, node, outer, fields)


def fields_of(node: ast.ClassDef) -> dict[str, str]:
    """Those of its base classes in this package, too."""
    found: dict[str, str] = {}
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes_of_package():
            found |= fields_of(classes_of_package()[base.id])
    for item in ast.walk(node):
        if isinstance(item, ast.AnnAssign) and kind_of(item.annotation):
            target = item.target
            found[target.attr if isinstance(target, ast.Attribute) else ast.unparse(target)] = kind_of(item.annotation)
    return found


def claimed(path: str) -> tuple[str, ...]:
    """The versions that code at a path is for."""
    while path not in CLAIMS and "." in path:
        path = path.rpartition(".")[0]
    return CLAIMS.get(path, EVERY)


@cache
def read(file: str) -> tuple[list[Use], list[tuple[int, str]]]:
    tree, functions = ast.parse((FOLDER / file).read_text()), functions_of_package()
    uses: list[Use] = []
    loose: list[tuple[int, str]] = []
    for path, function, names, fields in scopes(file.removesuffix(".py"), tree, {}, {}):
        guards = {
            str(node.args[1].value)
            for node in ast.walk(function)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hasattr"
            if isinstance(node.args[1], ast.Constant)
        }
        reader = Reader(path, fields, functions, dict(names), guards)
        reader.read(function.body)
        uses += reader.uses
        loose += reader.loose
    return uses, loose


def is_there(use: Use, version: str) -> bool:
    names = api(version)
    kind, _, member = use.owner.rpartition(" ")
    if use.owner == "Trt":
        return use.name in names or use.name in ("__name__", "__version__")
    if kind == "enum":
        return use.name in (*names.enums.get(member, ()), "__members__")
    if kind == "class":
        return use.name == "__init__" or (member in names.classes and use.name in names.classes[member])
    if use.owner in ENUMS:
        return use.name in ("name", "value")
    found = names.classes.get(use.owner)
    return found is not None and (use.name in found.methods if use.called else use.name in found)


@cache
def own_names() -> set[str]:
    """Attributes that objects of this package have."""
    nodes = [node for file in FOLDER.parent.rglob("*.py") for node in ast.walk(ast.parse(file.read_text()))]
    return {
        *(node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))),
        *(node.target.id for node in nodes if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)),
        *(
            node.attr
            for node in nodes
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value)
        ),
    }


@pytest.mark.parametrize("file", FILES)
def test_every_name_is_in_every_version_that_is_claimed(file: str) -> None:
    uses, _ = read(file)
    missing = [
        f"{use} in {version}"
        for use in uses
        for version in claimed(use.path)
        if not use.guarded and not is_there(use, version)
    ]
    missing += [
        f"{use} anywhere"
        for use in uses
        if use.guarded and not any(is_there(use, version) for version in claimed(use.path))
    ]
    assert missing == []


def test_claims_are_of_code_that_is_there() -> None:
    paths = {use.path for file in FILES for use in read(file)[0]}
    assert [claim for claim in CLAIMS if not any(f"{path}.".startswith(f"{claim}.") for path in paths)] == []


@pytest.mark.parametrize("file", FILES)
def test_no_object_of_tensorrt_escapes_the_reader(file: str) -> None:
    """An attribute that only TensorRT's objects have, on an object whose class is not known, would go unchecked."""
    vendor_names = {
        name
        for kind in TYPES - {"Trt"}
        for one in EVERY
        if kind in api(one).classes
        for name in (*api(one).classes[kind].properties, *api(one).classes[kind].methods)
    }
    suspicious = vendor_names - own_names() - ORDINARY
    _, loose = read(file)
    assert [f"{file}:{line} .{name}" for line, name in loose if name in suspicious] == []


def test_the_reader_finds_what_there_is_to_find() -> None:
    uses = [use for file in FILES for use in read(file)[0]]
    found = {(use.owner, use.name) for use in uses}
    assert len(found) > 90
    for owner, name in (
        ("Trt", "Builder"),
        ("enum BuilderFlag", "GPU_FALLBACK"),
        ("IBuilderConfig", "set_device_type"),
        ("ILayer", "precision"),
        ("Runtime", "DLA_core"),
        ("IExecutionContext", "execute_async_v3"),
        ("IRuntimeCache", "serialize"),
        ("ParserError", "node_name"),
    ):
        assert (owner, name) in found


def test_a_name_that_is_not_there_is_found_missing() -> None:
    wrong = Use("x", 1, "IBuilderConfig", "max_workspace_size", called=False, guarded=False)
    assert [version for version in EVERY if is_there(wrong, version)] == ["8.6"]
    removed = Use("x", 1, "enum BuilderFlag", "INT8", called=False, guarded=False)
    assert [version for version in EVERY if is_there(removed, version)] == [*WEAK, "rtx-1.4"]
    assert not is_there(Use("x", 1, "ILayer", "precision", called=True, guarded=False), "10.3")  # no method


@pytest.mark.parametrize("version", EVERY)
def test_names_that_are_looked_up_by_text_are_there(version: str) -> None:
    enums = api(version).enums
    pools = {"WORKSPACE", "DLA_MANAGED_SRAM", "DLA_LOCAL_DRAM", "DLA_GLOBAL_DRAM"}
    assert pools <= set(enums["MemoryPoolType"])
    assert set(LAYOUTS) <= set(enums["TensorFormat"])
    assert set(DTYPES.values()) <= set(enums["DataType"])


def test_no_number_stands_where_a_name_of_an_enumeration_must() -> None:
    """Numbers changed in 11.0: 1 << 1 was STRONGLY_TYPED and is PREFER_JIT_PYTHON_PLUGINS."""
    shifts = [
        ast.unparse(node)
        for file in FILES
        if read(file)[0]  # a file that touches no object of TensorRT shifts sizes in bytes
        for node in ast.walk(ast.parse((FOLDER / file).read_text()))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift)
    ]
    assert shifts and all("int(" in text for text in shifts)
