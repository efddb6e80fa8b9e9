"""What can be imported and what cannot, how far a model may be from its source, and what another process tells."""

import os
import stat
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from edgert.errors import BuildError, ConfigError, DeviceError, ModelError
from edgert.importer.conversion import check, compare, from_torch, import_model, kind_of
from edgert.importer.conversion_process import (
    Request,
    _random_input,
    convert_in_process,
    read_arrays,
    write_arrays,
)
from tests.helpers.errors import Exactly, raises


def archive(path: Path, *members: str) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for name in members:
            made.writestr(f"m/{name}", "")
    return path


def test_sources_are_told_by_their_form(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").touch()
    (tmp_path / "m.bin").write_bytes(b"\x1c\0\0\0TFL3....")
    program = archive(tmp_path / "m.pt2", "archive_format", "models/model.json")
    assert [kind_of(str(one)) for one in (program, tmp_path / "saved", tmp_path / "m.bin")] == [
        "program",
        "savedmodel",
        "tflite",
    ]
    assert kind_of("package.mine:make") == "function"


@pytest.mark.parametrize(
    ("members", "what", "why"),
    [
        (["data.pkl", "data/0"], "is a pickled module or its weights", "a pickle is a program"),
        (["data.pkl", "constants.pkl", "code/a.py"], "is a TorchScript archive", "dropped TorchScript"),
        (["readme"], "cannot be imported", "format is unknown"),
    ],
)
def test_archives_that_hold_no_program_are_refused(tmp_path: Path, members: list[str], what: str, why: str) -> None:
    with raises(ModelError, what, why=why, fix=True) as caught:
        kind_of(str(archive(tmp_path / "m.pt", *members)))
    assert ("data.pkl" in members) is (f"yolo export model={tmp_path}/m.pt format=onnx" in caught.value.fix)


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("m.pth", b"\x80\x02}q\0.", "is a pickled module or its weights"),
        ("m.onnx", b"\x08\x08", "is ONNX already"),
        ("m.h5", b"\x89HDF", "cannot be imported"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, content: bytes, what: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=what):
        kind_of(str(tmp_path / name))


def test_a_source_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    damaged = archive(tmp_path / "m.pt", "x/data.pkl")
    damaged.write_bytes(damaged.read_bytes().replace(b"PK\x01\x02", b"PK\x01\x07"))
    with pytest.raises(ModelError, match="cannot read"):
        kind_of(str(damaged))
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it: reading would wait without end
    with pytest.raises(ModelError):
        kind_of(str(tmp_path / "pipe"))


def test_inputs_of_text_cannot_be_made_up() -> None:
    with pytest.raises(ModelError, match="input 'image_bytes' holds values of type string"):
        _random_input("image_bytes", [None], "string", Request("savedmodel", "m"))


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with raises(ModelError, r"there is no 'gone\.pt2'", fix="module:function"):
        kind_of("gone.pt2")
    with pytest.raises(ModelError, match="is no SavedModel"):
        kind_of(str(tmp_path))


def test_arrays_come_back(tmp_path: Path) -> None:
    arrays = {"serving_default_x:0": np.arange(3), "b/ü": np.float32([[1]])}
    write_arrays(tmp_path / "a.npz", arrays)
    found = read_arrays(tmp_path / "a.npz")
    assert list(found) == list(arrays) and all(np.array_equal(found[name], arrays[name]) for name in arrays)
    np.savez(tmp_path / "b.npz", x=np.ones(2))
    assert read_arrays(tmp_path / "b.npz")["x"].tolist() == [1, 1]


def test_differences_are_told_against_the_largest_value() -> None:
    (found,) = compare({"a": np.array([10, -20], np.float32)}, {"y": np.array([10, -20.002], np.float32)}, "m")
    assert found.relative == pytest.approx(1e-4, rel=1e-2) and found.name == "y"
    check((found,), 1e-3, "m")
    with pytest.raises(BuildError, match="the ONNX model does not compute what m does") as caught:
        check((found,), 1e-5, "m")
    assert caught.value.why == "y [2]: 0.002 at most, 0.0001 of the largest" and "--tolerance" in caught.value.fix


def test_outputs_are_paired_by_name_else_by_order() -> None:
    one, two = np.zeros(1), np.ones(2)
    named = compare({"a": one, "b": two}, {"b": two, "a": one}, "m")
    ordered = compare({"a": one, "b": two}, {"y0": one, "y1": two}, "m")
    assert [(each.name, each.absolute) for each in (*named, *ordered)] == [("b", 0), ("a", 0), ("y0", 0), ("y1", 0)]
    with pytest.raises(BuildError, match="has other outputs"):
        compare({"a": one}, {"a": one, "b": two}, "m")
    with pytest.raises(BuildError, match="output 'a' of m has another shape in ONNX"):
        compare({"a": one}, {"a": two}, "m")


def test_values_that_are_not_finite_must_be_the_same() -> None:
    odd = np.array([np.nan, np.inf, 1], np.float32)
    assert compare({"a": odd}, {"a": odd.copy()}, "m")[0].absolute == 0
    with pytest.raises(BuildError, match="output 'a' of m is not finite"):
        compare({"a": odd}, {"a": np.array([np.nan, 0, 1], np.float32)}, "m")


def interpreter(folder: Path, text: str) -> Path:
    """A program that stands in for a Python."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_process_that_dies_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    crash = interpreter(tmp_path, r"printf '\351: line one\n' >&2; echo 'Fatal: bad thing' >&2; kill -9 $$")
    with raises(BuildError, "m cannot be converted", why=Exactly("Fatal: bad thing"), where="line one"):
        convert_in_process(Request("program", "m"), tmp_path, crash)
    with pytest.raises(DeviceError, match="cannot run"):
        convert_in_process(Request("program", "m"), tmp_path, tmp_path / "nowhere")


def test_a_conversion_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgert.importer.conversion_process._CONVERSION_S", 0.05)
    with raises(BuildError, "m cannot be converted", why="took longer than 0.05 s"):
        convert_in_process(Request("program", "m"), tmp_path, interpreter(tmp_path, "exec sleep 60"))


def test_a_framework_that_is_not_there_is_told(tmp_path: Path) -> None:
    """The interpreter's own packages are hidden, so that there is none."""
    bare = interpreter(
        tmp_path,
        f"exec {sys.executable} -I -S -c \"import sys; sys.path.insert(0, '$PYTHONPATH')\n"
        "from edgert.importer.converter import main\nfrom pathlib import Path\nsys.exit(main(Path('$3')))\"",
    )
    with pytest.raises((BuildError, DeviceError)) as caught:
        convert_in_process(Request("program", "m"), tmp_path, bare)
    assert "No module named" in caught.value.why


def test_nothing_is_kept_of_a_failed_import(tmp_path: Path) -> None:
    output = tmp_path / "m.onnx"
    output.write_bytes(b"as it was")
    program = archive(tmp_path / "m.pt2", "archive_format")
    with pytest.raises(BuildError):
        import_model(str(program), output, python=interpreter(tmp_path, "exit 3"))
    assert output.read_bytes() == b"as it was"


def test_open_dimensions_are_for_modules(tmp_path: Path) -> None:
    program = archive(tmp_path / "m.pt2", "archive_format")
    with raises(ModelError, "the open dimensions of", where=Exactly("--dynamic")):
        import_model(str(program), tmp_path / "m.onnx", dynamic={"x": ["n"]})


@pytest.mark.parametrize("content", [b"no zip", b"", b"PK\x03\x04 cut off", b"\x93NUMPY\x01\0"], ids=repr)
def test_inputs_that_cannot_be_read_are_told(tmp_path: Path, content: bytes) -> None:
    program = archive(tmp_path / "m.pt2", "archive_format")
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(ModelError, match="cannot read inputs"):
        import_model(str(program), tmp_path / "m.onnx", inputs=tmp_path / "x.npz")
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(ModelError, match="cannot read inputs"):
        import_model(str(program), tmp_path / "m.onnx", inputs=tmp_path / "x.npy")


def test_a_module_needs_example_inputs() -> None:
    with pytest.raises(ConfigError, match="object needs example inputs"):
        from_torch(object(), example_inputs=None)
