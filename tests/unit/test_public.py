"""The public names: all there, with arguments that ``help`` and an editor can show, and no cost at import."""

import ast
import dataclasses
import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dla
import edgert
import edgert.testing
from edgert.errors import EdgertError
from tests.helpers.command import ROOT
from tests.helpers.each import each

NAMES = sorted(edgert._HOME)
FUNCTIONS = [name for name in NAMES if inspect.isfunction(getattr(edgert, name))]
HEAVY = {"numpy", "cv2", "onnx", "onnxruntime", "pydantic", "yaml", "scipy", "typer", "rich", "edgert.config"}


def test_the_table_is_what_type_checkers_see() -> None:
    tree = ast.parse(Path(edgert.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {name.asname: node.module for node in imports for name in node.names}
    assert seen == edgert._HOME


@each("name", NAMES)
def test_every_public_name_is_documented(name: str) -> None:
    value = getattr(edgert, name)
    own = value.__dict__.get("__doc__") if isinstance(value, type) else value.__doc__
    assert own and not own.startswith(f"{name}("), f"edgert.{name} has no docstring"  # as dataclasses write it


@each("name", FUNCTIONS)
def test_every_argument_has_a_name_a_type_and_a_line(name: str) -> None:
    function: Any = getattr(edgert, name)
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in signature.parameters.values():
        assert parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL), parameter
        assert parameter.annotation is not parameter.empty, parameter
        assert f"{parameter.name}:" in inspect.getdoc(function), parameter.name


@each("name", FUNCTIONS)
def test_options_are_keyword_only(name: str) -> None:
    parameters = inspect.signature(getattr(edgert, name)).parameters.values()
    optional = [one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD and one.default is not one.empty]
    assert len(optional) <= 2, optional


def test_help_fits_a_few_screens_and_has_every_name() -> None:
    text = pydoc.render_doc(edgert)
    assert len(text.splitlines()) <= 300
    assert [name for name in NAMES if not re.search(rf"\b{name}\b", edgert.__doc__ or "")] == []


@each("name", FUNCTIONS)
def test_functions_have_few_parameters_and_one_word_for_each_thing(name: str) -> None:
    parameters = inspect.signature(getattr(edgert, name)).parameters.keys() - {"overrides", "on_progress"}
    assert len(parameters) <= 8, parameters
    assert parameters.isdisjoint({"trt", "timeout_s", "bar", "progress", "log", "on_event", "stop", "env", "ask"})


@pytest.mark.parametrize(
    "method", ["__call__", "call_batch", "acall", "map", "buffer", "submit", "results", "aresults", "latest"]
)
def test_methods_of_a_pipeline_spell_their_arguments_out(method: str) -> None:
    parameters = inspect.signature(getattr(edgert.Pipeline, method)).parameters.values()
    assert not [one for one in parameters if one.kind is one.VAR_KEYWORD or one.name.endswith("_s")]


def test_results_and_frames_show_what_a_program_needs() -> None:
    result = "detections frame image latest models outputs stage time_ns timestamp_ns with_output"
    frame = "color crop extra format height index is_on_gpu lease media_ns planes region stream"
    for kind, shown in ((edgert.Result, result), (edgert.Frame, f"{frame} timestamp_ns to_bgr to_host width")):
        assert " ".join(name for name in dir(kind) if not name.startswith("_")) == shown


def test_options_are_frozen_records() -> None:
    for name in NAMES:
        if name.endswith("Options") or name in ("Progress", "Scenario"):
            assert dataclasses.is_dataclass(kind := getattr(edgert, name)) and kind.__dataclass_params__.frozen, name


def test_every_public_name_stands_on_the_page_about_python() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if not re.search(rf"\b{name}\b", page)] == []


@each("name", [name for name in FUNCTIONS if name != "op"])
def test_every_public_function_has_an_example(name: str) -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    examples = "".join(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL))
    assert f"edgert.{name}(" in examples or f"edgert.{name}(" in (ROOT / "docs" / "import.md").read_text("utf-8")


def test_files_behind_public_names_document_every_argument() -> None:
    public = [*(getattr(edgert, name) for name in NAMES), *(getattr(dla, name) for name in dla.__all__)]
    files = {inspect.getsourcefile(one) for one in public if inspect.isclass(one) or inspect.isfunction(one)}
    rules = ["--select", "D", "--ignore", "D105,D107"]  # what __init__ takes stands with its class
    ruff = [Path(sys.executable).with_name("ruff"), "check", "--quiet", "--output-format", "concise", *rules]
    done = subprocess.run([*ruff, *files, edgert.testing.__file__], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == ""


def test_every_error_is_exported() -> None:
    kinds: set[type] = {EdgertError, *EdgertError.__subclasses__()}
    assert {kind.__name__ for kind in kinds if kind.__module__ == "edgert.errors"} <= set(NAMES)


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="biuld"):
        edgert.biuld  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.timing
def test_importing_it_loads_nothing_heavy_and_is_quick() -> None:
    script = "import sys, time; t = time.process_time(); import edgert; print(time.process_time() - t, *sys.modules)"
    done = [subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT) for _ in range(3)]
    seconds = min(float(one.stdout.split()[0]) for one in done)
    assert HEAVY & set(done[0].stdout.split()[1:]) == set()
    assert seconds <= 0.1
