import hashlib
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from edgert import limits
from edgert.errors import ModelError
from edgert.graph import from_proto, load, to_bytes
from tests.helpers.models import choice, make_proto, node, value, weights


def conv_proto() -> onnx.ModelProto:
    return make_proto([node("Conv", ["x", "w"], ["y"])], {"x": [1, 3, 8, 8]}, {"y": None}, {"w": weights(4, 3, 3, 3)})


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.onnx"
    path.write_bytes(conv_proto().SerializeToString())
    return path


def refusal(path: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        load(path)
    assert str(path) in caught.value.what
    assert caught.value.fix
    return caught.value


def test_loads_a_file_by_path_or_string(good: Path) -> None:
    model = load(str(good))
    assert model.path == good
    assert model.digest == hashlib.sha256(good.read_bytes()).hexdigest() == load(good).digest
    assert to_bytes(model) == to_bytes(load(good))


def test_a_model_made_in_memory_has_the_digest_of_its_bytes() -> None:
    model = from_proto(conv_proto())
    assert model.digest == hashlib.sha256(to_bytes(model)).hexdigest()


def test_missing_file_names_the_nearest(good: Path) -> None:
    error = refusal(good.with_name("goood.onnx"))
    assert "does not exist" in error.what
    assert "did you mean 'good.onnx'?" in error.why


def test_missing_folder(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "no" / "m.onnx").what


def test_directory_names_a_model_in_it(good: Path) -> None:
    error = refusal(good.parent)
    assert "directory" in error.what
    assert "good.onnx" in error.fix


def test_named_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    assert "not a regular file" in refusal(tmp_path / "pipe.onnx").what


def test_unreadable_file(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", deny)
    error = refusal(good)
    assert error.why == "Permission denied"
    assert isinstance(error.__cause__, PermissionError)


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").touch()
    assert "is empty" in refusal(tmp_path / "m.onnx").what


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 0.99, 0.999])
def test_truncated_file(good: Path, share: float) -> None:
    data = good.read_bytes()
    good.write_bytes(data[: max(1, int(len(data) * share))])
    error = refusal(good)
    assert "cut short" in str(error)


CHECKPOINT = b"PK\x03\x04" + bytes(30) + b"best/data.pkl\x80\x02}q\x00X\x05\x00\x00\x00modelq\x01c%s\nDetectionModel\n"
"""How torch.save writes an object: its pickle, stored in a zip archive, names the module of its class."""


@pytest.mark.parametrize(
    ("data", "kind", "fix"),
    [
        (b"\xff\xd8\xff\xe0" + bytes(100), "JPEG", "torch.onnx.export"),
        (b"\x89PNG\r\n\x1a\n" + bytes(20), "PNG", ""),
        (b"PK\x03\x04" + bytes(60), "zip archive, such as a PyTorch .pt", "torch.onnx.export"),
        (CHECKPOINT % b"ultralytics.nn.tasks", "Ultralytics", "m.onnx format=onnx"),
        (CHECKPOINT % b"models.yolo", "YOLOv5", "m.onnx --include onnx"),
        (b"\x80\x02}q\x00cultralytics.nn.tasks\nModel\n.", "Ultralytics", "yolo export"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "pickle", "torch.onnx.export"),
        (b"ftrt" + bytes(64), "TensorRT engine", "ONNX file"),
        (b"\x18\x00\x00\x00ORTM" + bytes(64), ".ort file", ".onnx file"),
        (b"\x1c\x00\x00\x00TFL3" + bytes(64), "TensorFlow Lite", "edgert import"),
        (b"\x89HDF\r\n\x1a\n" + bytes(64), "HDF5", "tf2onnx"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "Git LFS pointer", "git lfs pull"),
        (b"\n<!DOCTYPE html>\n<html>", "web page", "raw"),
        (b"<?xml version='1.0'?><net/>", "XML", ""),
        ("Modell für die Straße\n".encode() * 40, "text file", ""),
        (bytes(1000), "file of zeros", ""),
        (b"\xde\xad\xbe\xef" * 8, "32 bytes", ""),
        (b"\x40\x00\x00\x00\x00\x00\x00\x00" + b'{"w":{}}', "safetensors", ""),
    ],
)
def test_other_files_are_named(tmp_path: Path, data: bytes, kind: str, fix: str) -> None:
    (tmp_path / "m.onnx").write_bytes(data)
    error = refusal(tmp_path / "m.onnx")
    assert "is not an ONNX model" in error.what
    assert kind in error.why
    assert fix in error.fix


@pytest.mark.parametrize("data", [b"PK\x03\x04" + bytes(60), b"\x80\x02}q\x00.", CHECKPOINT % b"ultralytics.nn.tasks"])
def test_a_checkpoint_is_exported_with_its_own_name(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "my best.pt").write_bytes(data)
    assert refusal(tmp_path / "my best.pt").fix.startswith(f"yolo export model='{tmp_path}/my best.pt' format=onnx")


def test_a_pipeline_file_is_sent_to_its_own_check(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("name: dock\nstages: {}\n")
    assert "edgert validate checks a pipeline file" in refusal(tmp_path / "p.yaml").fix


def save(proto: onnx.ModelProto, tmp_path: Path) -> Path:
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    return tmp_path / "m.onnx"


def test_missing_parts(tmp_path: Path) -> None:
    no_graph, no_outputs, no_opset, no_maker = (conv_proto() for _ in range(4))
    no_graph.ClearField("graph")
    del no_outputs.graph.output[:]
    del no_opset.opset_import[:]
    no_maker.graph.output[0].name = "yy"
    assert "no graph" in refusal(save(no_graph, tmp_path)).what
    assert "no outputs" in refusal(save(no_outputs, tmp_path)).what
    assert "no operator-set version" in refusal(save(no_opset, tmp_path)).what
    error = refusal(save(no_maker, tmp_path))
    assert "never computes its output 'yy'" in error.what


def test_newer_than_the_installed_onnx(tmp_path: Path) -> None:
    opset, ir = conv_proto(), conv_proto()
    opset.opset_import[0].version = onnx.defs.onnx_opset_version() + 1
    ir.ir_version = onnx.IR_VERSION + 1
    assert f"uses opset {onnx.defs.onnx_opset_version() + 1}" in refusal(save(opset, tmp_path)).why
    error = refusal(save(ir, tmp_path))
    assert f"IR version {onnx.IR_VERSION + 1}" in error.why
    assert "pip install --upgrade onnx" in error.fix


def test_operators_onnx_does_not_know_are_let_through(tmp_path: Path) -> None:
    proto = make_proto(
        [node("Crop", ["x"], ["y"], border=[1, 1, 1, 1])], {"x": [1, 3, 8, 8]}, {"y": None}, opset=7, ir=3
    )
    assert load(save(proto, tmp_path)).proto.graph.node[0].op_type == "Crop"


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (node("Conv", ["x"], ["y"], "c"), "node 'c' (Conv) has 1 inputs"),
        (node("Concat", ["x"], ["y"]), "node 'Concat_0' (Concat) lacks attribute 'axis'"),
        (node("Concat", ["x"], ["y"], "c", axis=1.5), "has attribute 'axis' of the wrong type"),
        (node("Relu", ["x"], ["y", "z"], "r"), "node 'r' (Relu) has 2 outputs"),
    ],
)
def test_nodes_that_break_their_schema(tmp_path: Path, bad: onnx.NodeProto, why: str) -> None:
    assert why in refusal(save(make_proto([bad], {"x": [1, 3, 8, 8]}, {"y": None}), tmp_path)).why


def test_stored_tensors_that_do_not_fill_their_shape(tmp_path: Path) -> None:
    short, typed, strange = conv_proto(), conv_proto(), conv_proto()
    short.graph.initializer[0].dims[0] = 5
    typed.graph.initializer[0].CopyFrom(helper.make_tensor("w", onnx.TensorProto.FLOAT, [2], [1.0, 2.0]))
    typed.graph.initializer[0].dims[0] = 3
    strange.graph.initializer[0].data_type = 99
    assert "'w' does not fill its shape [5, 3, 3, 3]" in refusal(save(short, tmp_path)).why
    assert "'w' does not fill its shape [3]" in refusal(save(typed, tmp_path)).why
    assert "unknown element type 99" in refusal(save(strange, tmp_path)).why


@pytest.mark.parametrize("dtype", sorted(set(onnx.TensorProto.DataType.keys()) - {"UNDEFINED"}))
def test_stored_tensors_of_every_storage_load(tmp_path: Path, dtype: str) -> None:
    code = onnx.TensorProto.DataType.Value(dtype)
    values: Any = [b"a", b"b", b"c"] if dtype == "STRING" else [1, 0, 1]
    proto = conv_proto()
    proto.graph.initializer.append(helper.make_tensor("extra", code, [3], values))
    assert len(load(save(proto, tmp_path)).proto.graph.initializer) == 2


def test_damaged_bytes_never_raise_anything_but_a_model_error(good: Path) -> None:
    data, rng = good.read_bytes(), random.Random(0)
    outcomes = set()
    for _ in range(300):
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] = rng.randrange(256)
        good.write_bytes(damaged)
        try:
            load(good)
            outcomes.add("loaded")
        except ModelError:
            outcomes.add("refused")
    assert outcomes == {"loaded", "refused"}


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """A model whose weights lie in weights.bin beside it."""
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / "split.onnx"
    onnx.save(conv_proto(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def point_to(path: Path, location: str) -> None:
    proto = onnx.load(path, load_external_data=False)
    next(item for item in proto.graph.initializer[0].external_data if item.key == "location").value = location
    path.write_bytes(proto.SerializeToString())


def test_external_data_comes_inside(split: Path) -> None:
    model = load(split)
    whole = from_proto(conv_proto())
    assert to_bytes(model) == to_bytes(whole)
    assert np.array_equal(onnx.numpy_helper.to_array(model.proto.graph.initializer[0]), weights(4, 3, 3, 3))


def test_external_data_counts_in_the_digest(split: Path) -> None:
    before = load(split).digest
    data = split.with_name("weights.bin")
    expected = hashlib.sha256(split.read_bytes() + b"weights.bin\0" + data.read_bytes()).hexdigest()
    data.write_bytes(bytes(len(data.read_bytes())))
    assert before == expected != load(split).digest


def test_external_data_missing(split: Path) -> None:
    split.with_name("weights.bin").unlink()
    assert "lacks its data file 'weights.bin'" in refusal(split).what


def test_external_data_cut_short(split: Path) -> None:
    data = split.with_name("weights.bin")
    data.write_bytes(data.read_bytes()[:-1])
    error = refusal(split)
    assert "'weights.bin'" in error.what
    assert "cut short" in error.what
    assert "432" in error.why
    assert "431" in error.why


@pytest.mark.parametrize("location", ["/etc/hostname", "../secret.bin", "a/../../secret.bin", "..\\x", "C:\\x", ""])
def test_external_data_may_not_name_a_place_outside(split: Path, location: str) -> None:
    (split.parent.parent / "secret.bin").write_bytes(bytes(432))
    point_to(split, location)
    error = refusal(split)
    assert "outside the model's folder" in error.what or "names no data file" in error.what


def test_external_data_may_not_be_linked_from_outside(split: Path) -> None:
    data, secret = split.with_name("weights.bin"), split.parent.parent / "secret.bin"
    data.rename(secret)
    data.symlink_to(secret)
    error = refusal(split)
    assert "outside the model's folder" in error.what
    assert "link" in error.why


def test_external_data_may_be_a_link_inside_or_in_a_subfolder(split: Path) -> None:
    before = to_bytes(load(split))
    (split.parent / "data").mkdir()
    split.with_name("weights.bin").rename(split.parent / "data" / "real.bin")
    split.with_name("weights.bin").symlink_to("data/real.bin")
    assert to_bytes(load(split)) == before
    point_to(split, "data/real.bin")
    assert to_bytes(load(split)) == before


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("length", "4"),
        ("length", "many"),
        ("length", "4" * 5_000),
        ("offset", "-4"),
        ("offset", "400"),
        ("offset", "4" * 5_000),
        ("offset", "\u00b2"),
    ],
)
def test_external_data_with_odd_numbers(split: Path, key: str, text: str) -> None:
    proto = onnx.load(split, load_external_data=False)
    next(item for item in proto.graph.initializer[0].external_data if item.key == key).value = text
    split.write_bytes(proto.SerializeToString())
    assert "'w'" in refusal(split).why and len(refusal(split).why) < 200


def test_what_is_too_large_is_refused_before_it_is_read(split: Path) -> None:
    os.truncate(split.with_name("weights.bin"), limits.WEIGHTS_BYTES + 1)
    assert "too large" in refusal(split).what
    os.truncate(split, 2**31)
    assert "too large" in refusal(split).what


def test_tensors_that_share_their_data_count_each(split: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WEIGHTS_BYTES", 800)
    proto = onnx.load(split, load_external_data=False)
    for count in (proto.graph.initializer[0].dims[0], -1000):  # a damaged size does not make up for the others
        proto.graph.initializer.add().CopyFrom(proto.graph.initializer[0])
        proto.graph.initializer[-1].dims[0] = count
    split.write_bytes(proto.SerializeToString())
    assert "it takes 864 bytes with its weights" in refusal(split).why


@pytest.mark.parametrize("place", ["input", "stored", "inside"])
def test_a_tensor_of_very_many_dimensions_is_refused(tmp_path: Path, place: str) -> None:
    proto, many = conv_proto(), [1] * 65
    if place == "input":
        proto.graph.value_info.append(value("many", many))
    elif place == "stored":
        proto.graph.initializer.append(helper.make_tensor("many", onnx.TensorProto.FLOAT, many, [1.0]))
    else:
        proto.graph.node.append(choice("yes", "chosen", node("Identity", ["x"], ["out"]), shape=many))
    assert "65 dimensions, at most 32 are allowed" in refusal(save(proto, tmp_path)).why


def test_sequence_inputs_load(tmp_path: Path) -> None:
    sequence = helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, None)
    proto = make_proto([node("SequenceLength", ["s"], ["n"])], {"s": sequence}, {"n": value("n", [], "int64")})
    assert load(save(proto, tmp_path)).proto.graph.input[0].name == "s"
