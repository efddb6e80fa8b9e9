"""Overrides of ``--set``, and overlays of pipeline files."""

import random
from pathlib import Path
from typing import Any, get_args

import pytest

from edgert.config.document import read_document
from edgert.config.fields import Section
from edgert.config.file_overlay import changed_keys, differences, merge_overlay, to_yaml
from edgert.config.pipeline_file import json_schema, load_pipeline
from edgert.errors import ConfigError
from tests.helpers.pipeline_text import MINIMAL, pipeline, refused


def changed(folder: Path, *overrides: str, text: str = "a: {b: [1, {c: 2}], d: x}\ne:\n") -> dict[str, object]:
    (folder / "p.yaml").write_text(text)
    return read_document(folder / "p.yaml", overrides, {}).data


def test_a_value_is_replaced(tmp_path: Path) -> None:
    assert changed(tmp_path, "a.d=5") == {"a": {"b": [1, {"c": 2}], "d": 5}, "e": None}


def test_entries_of_lists(tmp_path: Path) -> None:
    assert changed(tmp_path, "a.b.0=9", "a.b.1.c=[7, 8]")["a"] == {"b": [9, {"c": [7, 8]}], "d": "x"}


def test_new_keys_and_sections(tmp_path: Path) -> None:
    found = changed(tmp_path, "n.e.w=1", "e.f=2", "a.g={h: i}")
    assert found["n"] == {"e": {"w": 1}}
    assert found["e"] == {"f": 2}
    assert found["a"]["g"] == {"h": "i"}  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "value"),
    [("a=", None), ("a=''", ""), ("a=b=c", "b=c"), ("a= 5 ", 5), ("a=[1, 2]", [1, 2]), ("a=true", True)],
)
def test_the_value_is_yaml(tmp_path: Path, text: str, value: object) -> None:
    assert changed(tmp_path, text)["a"] == value


def test_the_last_one_wins(tmp_path: Path) -> None:
    assert changed(tmp_path, "a=1", "a=2")["a"] == 2


@pytest.mark.parametrize("text", ["", "a", "=1", "a.=1", ".a=1", "a..b=1", " =1"])
def test_what_is_no_override(tmp_path: Path, text: str) -> None:
    assert "cannot understand --set" in refused(tmp_path, MINIMAL, text).what


@pytest.mark.parametrize("text", ["a.d.x=1", "a.d.x.y=1", "a.b.0.x=1", "a.b.2=1", "a.b.x=1", "a.b.-1=1", "a.b.5.c=1"])
def test_a_path_that_goes_nowhere(tmp_path: Path, text: str) -> None:
    error = refused(tmp_path, "a: {b: [1, {c: 2}], d: x}\n", text)
    assert "names no key" in error.what
    assert error.why


@pytest.mark.parametrize("value", ["[1", "'x", "*x", "!!python/name:os.system x", "!!int y", "[" * 100_000])
def test_a_value_that_is_no_yaml(tmp_path: Path, value: str) -> None:
    assert "--set name" in str(refused(tmp_path, MINIMAL, f"name={value}"))


def test_an_error_points_at_the_override(tmp_path: Path) -> None:
    error = refused(tmp_path, MINIMAL, "stages.cam.fps=fast")
    assert error.what == "stages.cam.fps: cannot use 'fast'"
    assert error.where == "--set stages.cam.fps"


def test_a_misspelt_stage_points_at_the_override(tmp_path: Path) -> None:
    error = refused(tmp_path, MINIMAL, "stages.cma.fps=15")
    assert error.where.startswith("--set stages.cma.fps")
    assert error.what.endswith("no verb among its keys; did you mean 'cam'?")


@pytest.mark.parametrize("overrides", ["stages.cam.fps=15", {"stages.cam.fps": 15}])
def test_overrides_that_are_no_list_are_refused(tmp_path: Path, overrides: Any) -> None:
    (tmp_path / "p.yaml").write_text(MINIMAL)
    with pytest.raises(ConfigError, match=f"overrides are of type {type(overrides).__name__}"):
        load_pipeline(tmp_path / "p.yaml", overrides)


def test_variables_are_filled_in_inside_an_override(tmp_path: Path) -> None:
    file = pipeline(tmp_path, MINIMAL, "stages.cam={source: 'rtsp://${HOST}/x'}", env={"HOST": "h"})
    assert file.config.stages["cam"].source == "rtsp://h/x"  # type: ignore[union-attr]


def test_places_of_replaced_sections_are_forgotten(tmp_path: Path) -> None:
    error = refused(tmp_path, MINIMAL, "stages.out={sink: jsonl, path: o}")
    assert error.what == "stages.out.from is missing"
    assert error.where == "--set stages.out stages.out.from"


def data_of(pick: random.Random, depth: int = 3) -> dict[str, Any]:
    def value() -> Any:
        return pick.choice([1, True, 0.5, "x", [1, 2], [], data_of(pick, depth - 1) if depth else "y"])

    return {key: value() for key in pick.sample("abcdef", pick.randint(0, 4))}


def test_the_differences_merged_with_the_file_are_what_was_wanted() -> None:
    pick = random.Random(1)
    for _ in range(3000):
        before, wanted = data_of(pick), data_of(pick)
        overlay = differences(before, wanted)
        assert merge_overlay(before, overlay) == wanted
        assert not differences(wanted, wanted) and (overlay or before == wanted)
        keys = changed_keys(overlay, before)
        assert len(keys) == len(set(keys)) and (not keys) == (not overlay)


def test_a_key_without_a_value_is_taken_away_and_secrets_stay_as_written() -> None:
    assert merge_overlay({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}) == {"a": {"c": 2}}
    assert changed_keys({"a": {"b": None, "d": {"e": 1}}}, {"a": {"b": 1}}) == [("a", "b"), ("a", "d")]
    assert differences({"a": True}, {"a": 1}) == {"a": 1}
    assert to_yaml({"a": {"b": ["s3cret"]}}, {("a", "b", 0): "${B}"}) == "a:\n  b:\n  - ${B}\n"


def test_a_key_that_may_be_null_is_null_without_it() -> None:
    """So that a null in an overlay may take the key away."""
    json_schema()  # which imports the sections of all kinds
    todo, count = [Section], 0
    while todo:
        section = todo.pop()
        if section.__module__ == "edgert.board.sections":  # of board files, which have no overlay
            continue
        todo += section.__subclasses__()
        for name, field in section.model_fields.items():
            if type(None) in get_args(field.annotation):
                count += 1
                assert field.default is None, f"{section.__name__}.{name}"
    assert count > 50
