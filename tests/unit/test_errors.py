import copy
import json
import logging
import os
import re
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgert import errors
from edgert.cli import app
from edgert.cli.file_commands import explanation_title, explanations
from edgert.errors import BuildError, ConfigError, EdgertError, StageError, cause, error_of, nearest, raised_as
from tests.helpers.growth import is_freed


def test_the_message_has_all_that_is_known_in_the_promised_order() -> None:
    error = EdgertError("it broke", why="too hot", where="p.yaml:3 a.b", fix="cool it")
    assert str(error) == "it broke\n  why:   too hot\n  where: p.yaml:3 a.b\n  fix:   cool it"


def test_what_is_not_known_leaves_no_line() -> None:
    assert str(EdgertError("it broke", fix="cool it")) == "it broke\n  fix:   cool it"
    assert str(EdgertError("it broke")) == "it broke"


def test_further_errors_follow_the_first() -> None:
    error = ConfigError("one", others=[ConfigError("two", why="b"), ConfigError("three")])
    assert str(error).splitlines() == ["one", "two", "  why:   b", "three"]


def test_a_place_is_filled_in_once_and_the_closest_stays() -> None:
    error = EdgertError("it broke").at("models.a")
    assert error.at("stage 'b'") is error
    assert error.where == "models.a"


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy])
def test_an_error_survives_copying(twin: object) -> None:
    error = ConfigError("one", why="because", others=[ConfigError("two")])
    assert str(twin(error)) == str(error)  # type: ignore[operator]


def test_an_error_survives_being_told_to_another_process() -> None:
    error = BuildError("one", why="because", where="b.yaml:1", fix="mend it", others=[ConfigError("two")])
    again = error_of(json.loads(json.dumps(error.to_json())))
    assert type(again) is BuildError and type(again.others[0]) is ConfigError
    assert str(again) == str(error)


def test_an_error_of_a_class_that_is_not_known_here_is_still_one_of_ours() -> None:
    again = error_of({**EdgertError("one").to_json(), "class": "SystemExit"})
    assert type(again) is EdgertError and again.what == "one"


def test_every_error_of_the_tree_is_one_of_ours_and_stands_in_the_drawing() -> None:
    found = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, EdgertError)]
    assert len(found) == 10
    for each in found:
        assert f"─ {each.__name__} " in (errors.__doc__ or "") or each is EdgertError


@pytest.mark.parametrize(
    ("word", "hint"),
    [("lable", "; did you mean 'labels'?"), ("zzz", ""), ("", ""), ("labels", "; did you mean 'labels'?")],
)
def test_the_nearest_word(word: str, hint: str) -> None:
    assert nearest(word, ["labels", "score", "iou"]) == hint


def test_nothing_is_near_when_nothing_is_known() -> None:
    assert nearest("word", []) == ""


def test_the_cause_is_told_without_number_and_path() -> None:
    assert cause(FileNotFoundError(2, "No such file or directory", "nothere.jsonl")) == "No such file or directory"
    assert cause(OSError("the disk went away")) == "the disk went away"
    assert cause(ValueError("no UTF-8")) == "no UTF-8"


def test_bytes_of_names_that_are_no_text_are_written_out(caplog: pytest.LogCaptureFixture) -> None:
    name = os.fsdecode(b"/data/caf\xe9/\xc3\xa9.png")
    assert errors.shown(name) == errors.printable(name) == r"/data/caf\xe9/é.png"
    str(EdgertError(name, why=name)).encode()
    errors.hide(name, "FOLDER")
    assert errors.printable(f"no {name}, and no {errors.shown(name)}") == "no ${FOLDER}, and no ${FOLDER}"
    log = logging.getLogger("edgert.test")
    log.addFilter(errors.printable_record)
    log.warning("of %s", os.fsdecode(b"\xe8.png"))
    assert caplog.messages[-1] == r"of \xe8.png"


def test_every_code_has_one_page_and_belongs_to_its_class() -> None:
    """The first digit of a code is that of the class that is raised with it."""
    package = Path(errors.__file__).parent
    texts = {file: file.read_text() for file in package.rglob("*.py")}
    used = {code for text in texts.values() for code in re.findall(r'"(E[1-9]\d[1-9])"', text)}
    assert sorted(used) == list(explanations())
    kinds = {one.code[:2]: one.__name__ for one in EdgertError.__subclasses__() if one.code != "E000"}
    assert len(kinds) == 9
    for file, text in texts.items():
        for name, code in re.findall(r'(\w+Error)\((?:(?!Error\()[\s\S])*?code="(E\d{3})"', text):
            assert kinds[code[:2]] == {"FinalError": "DeviceError"}.get(name, name), file


def test_an_error_with_a_page_names_it_and_keeps_its_code() -> None:
    error = ConfigError("one", fix="two", code="E103")
    assert str(error).endswith("  fix:   two\n  more:  edgert explain E103")
    assert error_of(json.loads(json.dumps(error.to_json()))).code == error.again().code == "E103"
    assert ConfigError("one").code == "E100" and "more" not in str(ConfigError("one"))


def test_explain_prints_a_page_or_names_the_codes(capsys: pytest.CaptureFixture[str]) -> None:
    runner = CliRunner()
    assert "${NAME:-value}" in runner.invoke(app, ["explain", "e103"]).output
    listed = runner.invoke(app, ["explain"]).output.splitlines()
    assert [line.split()[0] for line in listed] == list(explanations()) and all(
        explanation_title(text) for text in explanations().values()
    )
    assert "did you mean 'E103'" in str(runner.invoke(app, ["explain", "E1033"]).exception)


def test_an_error_in_place_of_another_keeps_nothing_of_the_block_alive() -> None:
    def failed() -> object:
        with suppress(StageError):
            inside()
        return made.pop()

    def inside() -> None:
        held = Held()
        made.append(held)
        with raised_as(StageError, "it failed"):
            raise OSError(held)

    class Held:
        pass

    made: list[object] = []
    assert is_freed(failed)
