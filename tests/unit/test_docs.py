"""What the pages tell people to type and write is what edgert understands: commands, Python, YAML, and links."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import typer
import yaml

from edgert.cli import app
from edgert.config import json_schema
from tests.helpers.command import ROOT
from tests.helpers.documents import PAGES, Piece, blocks, commands, words

GROUP: Any = typer.main.get_command(app)
USAGE: Any = typer.BadParameter.__base__  # Click's UsageError, whichever Click this Typer has
OURS = ("edgert", "dla")
SCHEMA = json_schema()


def misread(command: Piece) -> str:
    """Why edgert does not understand a command; empty where it does. Nothing is run."""
    _, verb, *arguments = words(command.text)
    if verb.startswith("-"):
        return ""
    if verb not in GROUP.commands:
        return f"there is no verb {verb!r}"
    try:
        GROUP.commands[verb].make_context(verb, arguments)
    except USAGE as error:
        is_short = type(error).__name__ == "MissingParameter" and not command.whole
        return "" if is_short else str(error.format_message())
    return ""


def test_every_command_is_understood() -> None:
    found = commands()
    assert len(found) > 80 and {one.place.rpartition(":")[0] for one in found} > {"README.md", "docs/cli.md"}
    assert {str(one): (one.text, why) for one in found if (why := misread(one))} == {}


@pytest.mark.parametrize(
    ("text", "whole", "why"),
    [
        ("edgert biuld pipeline.yaml", True, "no verb 'biuld'"),
        ("edgert build pipeline.yaml --bord host", True, "--bord"),
        ("edgert export dock.edgert", True, "Missing"),
        ("edgert export dock.edgert", False, ""),
        ("edgert simulate pipeline.yaml --duration long", True, "valid number"),
    ],
)
def test_what_is_wrong_would_be_found(text: str, whole: bool, why: str) -> None:
    told = misread(Piece("here:1", text, whole))
    assert why in told and bool(told) == bool(why)


def resolve(node: ast.expr, known: dict[str, Any]) -> Any:
    """What a dotted name of ours stands for; None for anything else. Raises AttributeError where there is none."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    owner = resolve(node.value, known) if isinstance(node, ast.Attribute) else None
    return getattr(owner, node.attr) if owner is not None and isinstance(node, ast.Attribute) else None


def imported(tree: ast.Module) -> dict[str, Any]:
    """Names that a piece of Python takes from edgert."""
    known: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {one.name: importlib.import_module(one.name) for one in node.names if one.name in OURS}
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in OURS:
            module = importlib.import_module(str(node.module))
            known |= {one.asname or one.name: getattr(module, one.name) for one in node.names}
    return known


def wrong_calls(tree: ast.Module, known: dict[str, Any]) -> Iterator[str]:
    """Arguments that what is called does not take."""
    for node in ast.walk(tree):
        called = resolve(node.func, known) if isinstance(node, ast.Call) else None
        if called is not None and isinstance(node, ast.Call):
            keywords = {one.arg: None for one in node.keywords if one.arg}
            try:
                inspect.signature(called).bind(*node.args, **keywords)
            except TypeError as error:
                yield f"{ast.unparse(node.func)}: {error}"


@pytest.mark.parametrize("piece", blocks("python"), ids=str)
def test_every_name_in_python_exists_and_takes_what_it_is_given(piece: Piece) -> None:
    tree = ast.parse(piece.text)
    known = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            resolve(node, known)
    assert list(wrong_calls(tree, known)) == []


@pytest.mark.parametrize("piece", blocks("yaml"), ids=str)
def test_every_yaml_fits_the_schema(piece: Piece) -> None:
    written = yaml.safe_load(piece.text)
    file = written if written.keys() <= SCHEMA["properties"].keys() else {"stages": written}
    parts = {"properties": {key: SCHEMA["properties"][key] for key in file}, "$defs": SCHEMA["$defs"]}
    jsonschema.validate(file, parts)


def anchors(text: str) -> set[str]:
    """Where links to headings lead, as Git forges make them."""
    titles = re.findall(r"^#+ +(.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Any) -> None:
    for path, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")):
        target = (page.parent / path) if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), f"{path}#{anchor}"


def test_every_page_is_in_the_index_once() -> None:
    docs = ROOT / "docs"
    index = (docs / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\d+\. \[[^]]+\]\(([^)]+)\): .+\.$", index, flags=re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in docs.glob("*.md") if path.name != "index.md")


def test_nothing_tells_to_get_edgert_from_a_package_index() -> None:
    wanted = re.compile(r"pip install (?:-\S+ )*['\"]?edgert(?:\[|==|\b(?!-))")
    texts = [*PAGES, *(path for path in ROOT.glob("docker/*") if path.is_file()), *ROOT.glob("edgert/**/*.py")]
    assert [path for path in texts if wanted.search(path.read_text(encoding="utf-8"))] == []
