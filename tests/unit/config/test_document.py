import os
import time
from pathlib import Path

import pytest

from edgert.config import load_pipeline
from edgert.config.document import read_document
from edgert.config.pipeline_file import read_pipeline
from edgert.errors import ConfigError
from tests.helpers.errors import Exactly, raises
from tests.helpers.pipeline_text import MINIMAL, pipeline, refused


def data(folder: Path, text: str, *overrides: str, env: dict[str, str] | None = None) -> dict[str, object]:
    (folder / "p.yaml").write_text(text)
    return read_document(folder / "p.yaml", overrides, env or {}).data


def test_values_are_plain_data(tmp_path: Path) -> None:
    found = data(tmp_path, "a: 1\nb: [1.5, true, null, x]\nc: {d: e}\n")
    assert found == {"a": 1, "b": [1.5, True, None, "x"], "c": {"d": "e"}}


def test_a_date_is_a_word(tmp_path: Path) -> None:
    assert data(tmp_path, "a: 2024-05-01\nb: 2024-99-99\n") == {"a": "2024-05-01", "b": "2024-99-99"}


def test_every_key_knows_its_line(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("a: 1\n\nb:\n  c:\n    - x\n    - y\n")
    document = read_document(tmp_path / "p.yaml", (), {})
    assert document.where(("b", "c")).endswith("p.yaml:4 b.c")
    assert document.where(("b", "c", 1)).endswith("p.yaml:6 b.c.1")
    assert document.where(("b", "missing", "deep")).endswith("p.yaml:3 b.missing.deep")
    assert document.where(()).endswith("p.yaml:1")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("---\n", "is not a pipeline file"),
        ("- a\n- b\n", "is not a pipeline file"),
        ("just words\n", "is not a pipeline file"),
        ("a: [1\n", "is not valid YAML"),
        ("a: 'x\n", "is not valid YAML"),
        ("a: 1\n---\nb: 2\n", "is not valid YAML"),
        ("a:\n\tb: 1\n", "is not valid YAML"),
        ("a: *nowhere\n", "is not valid YAML"),
        ("a: \x00\n", "is not valid YAML"),
        ("a: 1\na: 2\n", "'a' is written twice"),
        ("? [a]\n: b\n", "a key must be a word"),
        ("? {a: 1}\n: b\n", "a key must be a word"),
        ("<<: 3\na: 1\n", "<< takes a mapping"),
        ("<<: [1]\na: 1\n", "<< takes a mapping"),
        ("a: !!int x\n", "int expected"),
        ("a: !!bool x\n", "bool expected"),
        ("a: !!float x\n", "float expected"),
        (f"a: {'1' * 5000}\n", "int expected"),
        ("a: !!binary aGk=\n", "cannot hold !!binary"),
        ("a: !!set {x}\n", "cannot hold !!set"),
        ("a: !mine x\n", "cannot hold !mine"),
        ("a: !!python/object/apply:os.system ['true']\n", "cannot hold !!python"),
        ("a: !!python/object:builtins.dict {x: 1}\n", "cannot hold !!python"),
        ("a: !!python/name:os.system\n", "cannot hold !!python"),
        ("!!python/object:builtins.dict {x: 1}\n", "cannot hold !!python"),
    ],
)
def test_what_is_no_plain_yaml_is_refused(tmp_path: Path, text: str, what: str) -> None:
    error = refused(tmp_path, text)
    assert what in error.what
    assert str(tmp_path / "p.yaml") in str(error)


def test_a_broken_file_is_refused_with_its_line(tmp_path: Path) -> None:
    assert refused(tmp_path, "a: 1\nb: 2\nc:\n\td: 1\n").where.endswith("p.yaml:4")


def test_a_key_twice_names_both_lines(tmp_path: Path) -> None:
    error = refused(tmp_path, "stages:\n  cam: {source: a}\n  out: {sink: http, from: cam}\n  cam: {source: b}\n")
    assert error.where.endswith("p.yaml:4 stages.cam")
    assert "first on line 2" in error.why


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    error = refused(tmp_path, b"name: \xff\xfe\n")
    assert "is not a pipeline file" in error.what and error.why == "byte 6 is not UTF-8 text"


def test_a_device_that_never_ends_is_no_pipeline_file() -> None:
    with raises(ConfigError, "/dev/zero is not a pipeline file", why=Exactly("it has more than 4,194,304 characters")):
        load_pipeline(Path("/dev/zero"))


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    assert pipeline(tmp_path, "\ufeffname: a\n" + MINIMAL).config.name == "a"


def test_windows_line_ends_are_no_mistake(tmp_path: Path) -> None:
    file = pipeline(tmp_path, MINIMAL.replace("\n", "\r\n"))
    assert file.where("stages", "out").endswith("p.yaml:3 stages.out")


def test_a_file_that_is_not_there_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_pipeline(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot read"):
        load_pipeline(tmp_path)


@pytest.mark.parametrize("depth", [40, 5000, 200_000])
@pytest.mark.parametrize(("opens", "closes"), [("[", "]"), ("{a: ", "}")])
def test_deep_nesting_is_refused(tmp_path: Path, depth: int, opens: str, closes: str) -> None:
    assert "nested too deeply" in refused(tmp_path, "a: " + opens * depth + closes * depth).why


@pytest.mark.timing
@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: &a {b: *a}\n", "a: &a {<<: *a, b: 1}\n"])
def test_an_alias_may_not_hold_itself(tmp_path: Path, text: str) -> None:
    started = time.process_time()
    assert refused(tmp_path, text).what
    assert time.process_time() - started < 5


def test_aliases_that_multiply_are_stopped(tmp_path: Path) -> None:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 20)]
    assert "too many values" in refused(tmp_path, "\n".join(["a0: &a0 [x]", *levels])).what


def test_merges_that_multiply_are_stopped(tmp_path: Path) -> None:
    levels = [f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 20)]
    assert refused(tmp_path, "\n".join(["a0: &a0 {x: 1}", *levels])).what


def test_aliases_and_merge_keys(tmp_path: Path) -> None:
    text = "base: &b {x: 1, y: 2}\nown: &o {<<: *b, y: 3}\nsame: *o\nboth: {<<: [{y: 5}, *b], z: 4}\n"
    found = data(tmp_path, text)
    assert found["own"] == found["same"] == {"x": 1, "y": 3}
    assert found["both"] == {"x": 1, "y": 5, "z": 4}


class TestVariables:
    def test_are_filled_in_anywhere(self, tmp_path: Path) -> None:
        found = data(tmp_path, "a: x${A}y${B}\nb: [$A, '${A}']\n", env={"A": "1", "B": "${A}"})
        assert found == {"a": "x1y${A}", "b": ["$A", "1"]}

    def test_have_defaults(self, tmp_path: Path) -> None:
        assert data(tmp_path, "a: ${A:-x:y}\nb: '${B:-}'\n", env={"A": ""}) == {"a": "", "b": ""}
        assert data(tmp_path, "a: ${A:-x:y}\n") == {"a": "x:y"}

    def test_numbers_come_out_as_numbers_where_numbers_are_meant(self, tmp_path: Path) -> None:
        file = pipeline(tmp_path, MINIMAL, "stages.cam.fps=${FPS}", env={"FPS": "12.5"})
        assert file.config.stages["cam"].fps == 12.5  # type: ignore[union-attr]

    def test_unset(self, tmp_path: Path) -> None:
        error = refused(tmp_path, "name: x\nstages: {cam: {source: 'rtsp://${CAM_PASSWORD}@h'}}\n")
        assert error.what == "environment variable CAM_PASSWORD is not set"
        assert error.where.endswith("p.yaml:2 stages.cam.source")
        assert "export CAM_PASSWORD" in error.fix

    @pytest.mark.parametrize("text", ["${A", "${}", "${1A}", "${A:?no}", "${A-b}", "${A B}", "${${A}}"])
    def test_malformed(self, tmp_path: Path, text: str) -> None:
        assert "cannot understand" in refused(tmp_path, f"name: '{text}'\n", env={"A": "x"}).what

    def test_a_comment_needs_no_variables(self, tmp_path: Path) -> None:
        assert pipeline(tmp_path, MINIMAL + "# ${NOT_SET}\n").config.stages


SECRET = "hunter2'\\é"


@pytest.mark.parametrize(
    "text",
    [
        "budgets: {power: '${S}'}\n" + MINIMAL,
        "budgets: {power: '5${S}'}\n" + MINIMAL,
        "budgets: {when_exceeded: '${S}'}\n" + MINIMAL,
        "name: x\nstages: '${S}'\n",
        "stages: {cam: '${S}'}\n",
        "stages: {cam: {source: a, size: '${S}'}}\n",
        "stages: {cam: {source: a, fps: '1${S}'}}\n",
        "stages: {cam: {source: a}, p: {draw: ['${S}'], from: cam}}\n",
        "stages: {cam: {source: a}, p: {sink: '${S}', from: cam}}\n",
        "stages: {cam: {source: a}, p: {sink: null, from: '${S}'}}\n",
        "stages: {cam: {source: a}, p: {infer: '${S}', from: cam}}\n",
        "stages: {cam: {source: a}, p: {python: '${S}', from: cam}}\n",
        "stages: {cam: {source: a}, p: {crop: ['${S}'], from: cam}}\n",
        "models: {m: {onnx: a, task: '${S}'}}\n" + MINIMAL,
        "models: {m: {onnx: a, task: {detect: '${S}'}}}\n" + MINIMAL,
        "stages: {cam: {source: a, speed: '${S}'}}\n",
    ],
)
def test_secrets_stay_out_of_messages(tmp_path: Path, text: str) -> None:
    error = refused(tmp_path, text, env={"S": SECRET})
    assert "hunter2" not in str(error)
    assert "hunter2" not in repr(error.args)


def test_secrets_stay_out_of_messages_about_overrides(tmp_path: Path) -> None:
    error = refused(tmp_path, MINIMAL, "stages.cam.fps=${S}", env={"S": SECRET})
    assert "hunter2" not in str(error) and "${S}" in str(error)


def test_secrets_stay_out_of_the_printed_records(tmp_path: Path) -> None:
    text = MINIMAL.replace("a.mp4", "'rtsp://user:${S}@host/x'")
    file = pipeline(tmp_path, text, env={"S": "hunter2"})
    assert file.config.stages["cam"].source == "rtsp://user:hunter2@host/x"  # type: ignore[union-attr]
    assert "hunter2" not in repr(file)


def test_a_later_error_does_not_show_a_value_that_was_replaced(tmp_path: Path) -> None:
    error = refused(tmp_path, "budgets: {power: '${P}'}\n" + MINIMAL, "budgets.power=15", env={"P": "7Watt"})
    assert "cannot use 15" in error.what
    assert error.where == "--set budgets.power"


def test_a_bundle_is_no_pipeline_file(tmp_path: Path) -> None:
    (tmp_path / "dock.edgert").write_bytes(b"PK\x03\x04\xaa\xff")
    with raises(ConfigError, r"dock\.edgert is not a pipeline file", fix="a bundle can be run"):
        read_document(tmp_path / "dock.edgert")


@pytest.mark.parametrize(
    ("name", "hint"), [("helo", "'hello'"), ("dokc.yaml", "'dock.yaml'"), ("elsewhere/helo", ""), ("zzz", "")]
)
def test_a_name_that_is_not_there_may_be_a_slip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dock.yaml").touch()
    with raises(ConfigError, fix=("shipped: alarm, ", ", hello, ")) as caught:
        read_document(name)
    assert caught.value.what == f"no such file: {name}" + (f"; did you mean {hint}?" if hint else "")


def test_a_model_or_a_folder_is_no_pipeline_file(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"\x08\xff")
    with pytest.raises(ConfigError, match="is not a pipeline file") as caught:
        read_document(tmp_path / "net.onnx")
    assert caught.value.fix == f"edgert new {tmp_path / 'net.onnx'} writes one for this model"
    with raises(ConfigError, "cannot read", why=Exactly("Is a directory"), fix=Exactly("name a YAML file")):
        read_document(tmp_path)


NO_TEXT = os.fsdecode(b"caf\xe9.mp4")
"""A name that is no UTF-8 text, as Python has it in arguments and in the environment."""


def test_names_that_are_no_text_may_be_given_from_outside(tmp_path: Path) -> None:
    assert data(tmp_path, "a: 1", f"a={NO_TEXT}")["a"] == NO_TEXT
    assert data(tmp_path, "a: 1", f"a={{b: ['é {NO_TEXT}']}}")["a"] == {"b": [f"é {NO_TEXT}"]}
    assert data(tmp_path, "a: x/${NAME}", env={"NAME": NO_TEXT})["a"] == f"x/{NO_TEXT}"
    text = MINIMAL.replace("source: a.mp4", "source: '${NAME}'")
    assert text != MINIMAL
    (tmp_path / "p.yaml").write_text(text)
    file = read_pipeline(tmp_path / "p.yaml", env={"NAME": NO_TEXT})
    assert NO_TEXT in [getattr(stage, "source", "") for stage in file.config.stages.values()]


def test_a_file_whose_overlay_would_have_too_long_a_name_is_read(tmp_path: Path) -> None:
    path = tmp_path / f"{'a' * 250}.yaml"
    path.write_text("name: belt\n")
    assert read_document(path).data == {"name": "belt"}
