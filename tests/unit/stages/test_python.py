"""Finding the user's own code, and running it as a stage."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgert.errors import ConfigError, StageError
from edgert.runtime import Result, Stage
from edgert.stages.python import PythonStage, python_stage
from edgert.user_code import load_object
from tests.helpers.errors import Exactly, raises
from tests.helpers.frames import result_of
from tests.helpers.written import opened


def same(result: Result) -> Result:
    return result


def tagged(result: Result, name: str, value: int = 1) -> Result:
    return result.with_output(name, value)


class Fails:
    def __init__(self) -> None:
        raise KeyError("no such device")


class Counts:
    """Called, with arguments of its own."""

    def __init__(self, start: int = 0) -> None:
        self.count = start

    def __call__(self, result: Result) -> Result:
        self.count += 1
        return result.with_output("count", self.count)


class Processes:
    """Only ``process``."""

    def process(self, result: Result) -> None:
        self.seen = result


class Closes(Processes):
    """``process`` and ``close``."""

    closed = False

    def close(self) -> None:
        type(self).closed = True


class Whole(Closes):
    """A stage by itself."""

    opened = False

    def open(self) -> None:
        self.opened = True


class Nothing:
    """Neither called nor with ``process``."""


@pytest.mark.parametrize("out", [None, (), []])
def test_a_frame_may_end_here(out: Any) -> None:
    given = PythonStage("x", lambda result: out).process(result_of())
    assert given is None or (not isinstance(given, Result) and list(given) == [])


def test_one_result_or_several() -> None:
    result = result_of()
    assert PythonStage("x", same).process(result) is result
    several = PythonStage("x", lambda each: (each.with_output("n", n) for n in range(3))).process(result)
    assert isinstance(several, Iterable)
    assert [each.outputs["n"] for each in several] == [0, 1, 2]


@pytest.mark.parametrize("out", [5, "text", b"bytes", {"count": 3}, True, object(), [1], np.zeros(3), ["a"], {1}])
def test_anything_else_is_an_error_with_advice(out: Any) -> None:
    with raises(StageError, r"stage 'mine' returned \w", fix=Exactly("return result.with_output('mine', value)")):
        list(PythonStage("mine", lambda result: out).process(result_of()) or ())


def process(stage: Stage) -> Any:
    with opened(stage):
        return stage.process(result_of())


def test_functions_classes_and_objects_with_their_arguments() -> None:
    counts, Closes.closed = Counts(), False
    assert process(python_stage("x", tagged, {"name": "a", "value": 7}, "here")).outputs == {"a": 7}
    assert process(python_stage("x", Counts, {"start": 4}, "here")).outputs == {"count": 5}
    assert process(python_stage("x", Processes, {}, "here")) is None
    process(python_stage("x", Closes, {}, "here"))
    process(python_stage("x", counts, {}, "here"))
    assert Closes.closed and counts.count == 1


def test_a_whole_stage_is_taken_as_it_is() -> None:
    stage = python_stage("x", Whole, {}, "here")
    assert isinstance(stage, Whole)
    process(stage)
    assert stage.opened


@pytest.mark.parametrize(
    ("found", "args"),
    [
        (same, {"extra": 1}),
        (tagged, {}),
        (tagged, {"nmae": "a"}),
        (lambda: None, {}),
        (Counts, {"strat": 1}),
        (Counts, {"start": 1, "more": 2}),
        (Nothing, {}),
        (Fails, {}),
        (Nothing(), {}),
        (5, {}),
    ],
)
def test_what_cannot_be_called_is_refused_before_the_first_frame(found: object, args: dict[str, Any]) -> None:
    with raises(ConfigError, what="mine", where=Exactly("p.yaml:4 stages.mine")):
        python_stage("mine", found, args, "p.yaml:4 stages.mine")


def test_a_function_that_tells_nothing_about_itself_is_let_through() -> None:
    assert isinstance(python_stage("x", min, {}, "here"), PythonStage)


WHERE = "p.yaml:9 stages.own.python"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "edgert_test_user.py").write_text("VALUE = 3\nclass Box:\n    @staticmethod\n    def f(): return 7\n")
    return tmp_path


def test_a_member_of_a_class_beside_the_pipeline_file(folder: Path) -> None:
    before = list(sys.path)
    found = load_object("edgert_test_user:Box.f", WHERE, folder)
    assert callable(found) and found() == 7
    assert sys.path == before


def test_an_installed_module() -> None:
    import json

    assert load_object("json:dumps", WHERE) is json.dumps


@pytest.mark.parametrize(
    ("spec", "what", "why"),
    [
        ("edgert_test_user", "names no function", ""),
        ("edgert_test_user.py:Box.f", "'edgert_test_user.py' is a file, not a module", ""),
        ("edgert_test_absent:f", "there is no module 'edgert_test_absent'", "looked in"),
        ("edgert_test_user:Bax.f", "'edgert_test_user:Bax.f' does not exist", "did you mean 'Box'?"),
        ("edgert_test_user:VALUE", "cannot be called", "its type is int"),
    ],
)
def test_what_cannot_be_found_is_named(folder: Path, spec: str, what: str, why: str) -> None:
    before = list(sys.path)
    with raises(ConfigError, what=what, why=why, where=Exactly(WHERE)):
        load_object(spec, WHERE, folder)
    assert sys.path == before


@pytest.mark.parametrize(
    ("code", "what", "why"),
    [
        ("import edgert_test_missing_package", "needs 'edgert_test_missing_package', which is not installed", ""),
        ("def f(:", "fails when it is imported", "SyntaxError"),
        ("1 / 0", "fails when it is imported", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_does_not_import(folder: Path, code: str, what: str, why: str) -> None:
    (folder / "edgert_test_broken.py").write_text(code)
    with raises(ConfigError, what=what, why=why) as caught:
        load_object("edgert_test_broken:f", WHERE, folder)
    assert caught.value.__cause__ is not None


def test_a_second_module_of_one_name_is_refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    load_object("edgert_test_user:Box", WHERE, folder)
    other = tmp_path_factory.mktemp("other")
    (other / "edgert_test_user.py").write_text("def f(): pass\n")
    with raises(ConfigError, "a module 'edgert_test_user' is loaded already", fix="rename"):
        load_object("edgert_test_user:f", WHERE, other)
    assert callable(load_object("edgert_test_user:Box", WHERE, folder))
