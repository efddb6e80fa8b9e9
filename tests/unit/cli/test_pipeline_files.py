"""``edgert schema``, ``validate``, ``new`` and ``check``: options, what they write, and their exit codes."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.helpers.command import ROOT, in_process

PARTS = str(ROOT / "pipelines" / "assets" / "parts.onnx")
PHOTO = str(ROOT / "docs" / "hello.jpg")


def test_the_schema_takes_the_shipped_pipelines_and_no_unknown_key(tmp_path: Path) -> None:
    schema = json.loads(in_process("schema", cwd=tmp_path).stdout)
    file = yaml.safe_load((ROOT / "pipelines" / "hello.yaml").read_text())
    jsonschema.validate(file, schema)
    with pytest.raises(jsonschema.ValidationError, match="modles"):
        jsonschema.validate({**file, "modles": {}}, schema)


def test_the_schema_of_messages_takes_an_event_and_no_unknown_phase(tmp_path: Path) -> None:
    schema = json.loads(in_process("schema", "--event", cwd=tmp_path).stdout)
    assert schema != json.loads(in_process("schema", cwd=tmp_path).stdout)
    kinds = {name for one in schema["oneOf"] for name in one["required"]}
    assert "event" in kinds


def test_validate_says_what_was_checked(tmp_path: Path) -> None:
    done = in_process("validate", "hello", cwd=tmp_path)
    assert done.returncode == 0 and "hello.yaml: fine (" in done.stdout and not list(tmp_path.iterdir())


def test_validate_judges_sources_for_the_board_that_is_named(tmp_path: Path) -> None:
    fine = in_process("validate", "csi", "--board", "orin-nx-16gb", cwd=tmp_path)
    assert fine.returncode == 0 and fine.stderr.strip() == ""
    noted = in_process("validate", "csi", "--board", "thor-t5000", cwd=tmp_path)
    assert noted.returncode == 0 and "cameras of a Jetson Thor use SIPL" in noted.stderr
    unknown = in_process("validate", "csi", "--board", "orin", cwd=tmp_path)
    assert unknown.returncode == 1 and "orin-nx-16gb" in unknown.stderr


def test_a_starter_reads_from_the_source_that_is_named(tmp_path: Path) -> None:
    done = in_process("new", PARTS, "--source", "clip.mp4", cwd=tmp_path)
    assert done.returncode == 0 and "detect: yolox" in done.stdout, done.stderr
    assert "next: edgert check pipeline.yaml" in done.stdout
    made = yaml.safe_load((tmp_path / "pipeline.yaml").read_text())
    assert "clip.mp4" in [stage.get("source") for stage in made["stages"].values()]
    default = in_process("new", PARTS, "-o", "my usb.yaml", cwd=tmp_path)
    assert default.returncode == 0 and "v4l2:///dev/video0" in (tmp_path / "my usb.yaml").read_text()
    assert "next: edgert check 'my usb.yaml'" in default.stdout


def test_a_starter_replaces_a_file_only_by_force(tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text("mine\n")
    refused = in_process("new", PARTS, cwd=tmp_path)
    assert refused.returncode == 1 and "--force" in refused.stderr
    assert (tmp_path / "pipeline.yaml").read_text() == "mine\n"
    forced = in_process("new", PARTS, "--force", cwd=tmp_path)
    assert forced.returncode == 0 and "models:" in (tmp_path / "pipeline.yaml").read_text()


def test_a_decoder_of_ones_own_comes_with_its_test(tmp_path: Path) -> None:
    done = in_process("new", PARTS, "--own-decoder", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "parts_decoder.py",
        "pipeline.yaml",
        "test_parts_decoder.py",
    ]
    assert "next: pytest test_parts_decoder.py, and fill in parts_decoder.py" in done.stdout
    compile((tmp_path / "parts_decoder.py").read_text(), "parts_decoder.py", "exec")
    assert "parts_decoder" in (tmp_path / "pipeline.yaml").read_text()


def test_an_own_decoder_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "parts_decoder.py").write_text("mine\n")
    in_process("new", PARTS, "--own-decoder", "--force", cwd=tmp_path)
    assert (tmp_path / "parts_decoder.py").read_text() == "mine\n"


def test_check_writes_the_best_answer_and_the_ranking(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    done = in_process("check", "hello", "--images", PHOTO, "-o", "best.png", "--json", "c.json", cwd=tmp_path)
    assert done.returncode == 0 and "parts is wired right" in done.stdout, done.stderr
    assert not recwarn.list  # NumPy's, of boxes that wrong settings make
    assert (tmp_path / "best.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "c.json").read_text())["verdict"] == "fine"
    few = done.stdout.count("\n")
    every = in_process("check", "hello", "--images", PHOTO, "--all", "--model", "parts", cwd=tmp_path)
    assert "more that were tried: --all" in done.stdout and "--all" not in every.stdout
    assert every.stdout.count("\n") > few and "model parts" in every.stdout


def test_check_finds_the_line_that_was_set_wrong(tmp_path: Path) -> None:
    wrong = ("--set", "models.parts.input.std=1")
    done = in_process("check", "hello", "--images", PHOTO, *wrong, "--json", "c.json", cwd=tmp_path)
    assert done.returncode == 0
    assert json.loads((tmp_path / "c.json").read_text())["verdict"] == "wrong" and "std: 255" in done.stdout


def test_check_wants_a_model_that_there_is_and_something_to_try_it_on(tmp_path: Path) -> None:
    unknown = in_process("check", "hello", "--model", "prats", "--images", PHOTO, cwd=tmp_path)
    assert unknown.returncode == 1 and "parts" in unknown.stderr
    nothing = in_process("check", "hello", cwd=tmp_path)
    assert nothing.returncode == 1 and "--images photo.jpg" in nothing.stderr
