"""Two-input exports: what tells the image's size is a constant, and the image all that is fed."""

import hashlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgert import Pipeline
from edgert.config.model_section import DetectTask
from edgert.engine import load_engine
from edgert.errors import ModelError
from edgert.graph import inputs, load
from edgert.stages.crop import Geometry
from edgert.stages.decode.kinds import decoder_for
from edgert.wiring.starter import starter
from tests.helpers.models import Typed, choice, constant, make_proto, node

IMAGE = ("N", 3, 64, 96)
ROWS = np.array([[0.5, 0.5, 0.25, 0.5, 0.9, 2], [0.25, 0.5, 0.25, 0.25, 0.6, 1]], np.float32)


def deployed(
    path: Path, image: Any = IMAGE, size: str = "orig_target_sizes", kind: int = TensorProto.INT64, ir: int = 8
) -> Path:
    """Labels, boxes and scores as RT-DETR's export writes them, x1, y1, x2, y2 in pixels of the size it is told."""
    corners = np.hstack([ROWS[:, :2] - ROWS[:, 2:4] / 2, ROWS[:, :2] + ROWS[:, 2:4] / 2])
    stored = {"corners": corners, "found": ROWS[:, 4], "kinds": ROWS[:, 5].astype(np.int64), "zero": np.float32(0)}
    nodes = [
        node("Cast", [size], ["asked"], to=TensorProto.FLOAT),
        node("Concat", ["asked", "asked"], ["both"], axis=1),
        node("ReduceMean", ["images"], ["mean"], keepdims=0),
        node("Mul", ["mean", "zero"], ["nothing"]),
        node("Mul", ["corners", "both"], ["pixels"]),
        node("Add", ["pixels", "nothing"], ["boxes"]),
        node("Add", ["found", "nothing"], ["scores"]),
        node("Identity", ["kinds"], ["labels"]),
    ]
    results = {"labels": Typed("int64", (2,)), "boxes": (2, 4), "scores": (2,)}
    feeds = {"images": image, size: Typed(kind, ("N", 2))}
    onnx.save(make_proto(nodes, feeds, results, stored, ir=ir, listed=ir < 4), path)
    return path


@pytest.mark.parametrize("ir", [3, 8])
def test_boxes_come_out_in_network_pixels_and_go_where_the_image_is(tmp_path: Path, ir: int) -> None:
    model = load(deployed(tmp_path / "m.onnx", ir=ir))
    assert [spec.name for spec in inputs(model)] == ["images"]
    with load_engine(model, shapes={"images": (1, 3, 64, 96)}, cache=False) as engine:
        outputs = engine(np.zeros((1, 3, 64, 96), np.float32))
    geometry = Geometry(10, 10, -20, 0, (96, 64), (0, 0, 920, 640))
    record: Any = decoder_for(DetectTask(detect="detr"), ())(outputs, geometry)
    np.testing.assert_allclose(record.boxes, [[340, 160, 580, 480], [100, 240, 340, 400]])
    assert record.classes.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("name", "kind", "wanted"),
    [
        ("orig_target_sizes", TensorProto.INT64, [96, 64]),
        ("orig_target_sizes", TensorProto.INT32, [96, 64]),
        ("im_shape", TensorProto.FLOAT, [64, 96]),
        ("scale_factor", TensorProto.FLOAT, [1, 1]),
    ],
)
@pytest.mark.parametrize("image", [IMAGE, (1, 64, 96, 3)])
def test_each_has_its_two_numbers(tmp_path: Path, image: Any, name: str, kind: int, wanted: list[int]) -> None:
    graph = load(deployed(tmp_path / "m.onnx", image, name, kind)).proto.graph
    (bound,) = [onnx.numpy_helper.to_array(item) for item in graph.initializer if item.name == name]
    assert bound.tolist() == [wanted] and bound.dtype == helper.tensor_dtype_to_np_dtype(kind)


@pytest.mark.parametrize(
    ("image", "name", "kind"),
    [
        (("N", 3, "H", "W"), "orig_target_sizes", TensorProto.INT64),
        (IMAGE, "other", TensorProto.INT64),
        ((3, 64, 96), "scale_factor", TensorProto.FLOAT),
        (IMAGE, "im_shape", TensorProto.STRING),
        (IMAGE, "im_shape", 999),
    ],
)
def test_others_stay_inputs(tmp_path: Path, image: Any, name: str, kind: int) -> None:
    model = load(deployed(tmp_path / "m.onnx", image, name, kind))
    assert [spec.name for spec in inputs(model)] == ["images", name]


def test_an_engine_of_one_s_own_is_fed_all_of_them(tmp_path: Path) -> None:
    path = deployed(tmp_path / "m.onnx", (1, 3, 64, 96))
    assert load(path).engine_key != load(path, bound=False).engine_key
    shapes = {"images": (1, 3, 64, 96), "orig_target_sizes": (1, 2)}
    with load_engine(path, shapes=shapes, cache=False) as engine:
        _, boxes, _ = engine(np.zeros((1, 3, 64, 96), np.float32), np.array([[960, 640]]))
        np.testing.assert_allclose(boxes[0], [360, 160, 600, 480])
        with pytest.raises(ModelError, match="'orig_target_sizes' is missing"):
            engine(np.zeros((1, 3, 64, 96), np.float32))


@pytest.mark.parametrize("opset", [11, 12, 17])
@pytest.mark.parametrize(
    ("shape", "wanted"),
    [((3, 64, 48), (1, 3, 64, 48)), ((64, 48, 3), (1, 64, 48, 3)), ((3, "h", "w"), (1, 3, "h", "w"))],
)
def test_an_image_without_a_batch_dimension_gets_one(tmp_path: Path, shape: Any, wanted: Any, opset: int) -> None:
    """The input is read inside of a branch as well."""
    nodes = [choice("yes", "same", node("Identity", ["x"], ["inside"])), node("Add", ["x", "same"], ["y"])]
    proto = make_proto(nodes, {"x": shape}, {"y": shape}, {"yes": np.array(True)}, opset=opset, ir=7)
    onnx.save(proto, tmp_path / "m.onnx")
    model = load(tmp_path / "m.onnx")
    assert inputs(model)[0].shape == wanted
    as_it_is = load(tmp_path / "m.onnx", bound=False)
    assert inputs(as_it_is)[0].shape == shape and as_it_is.engine_key != model.engine_key
    assert as_it_is.digest == model.digest == hashlib.sha256(model.path.read_bytes()).hexdigest()
    onnx.checker.check_model(model.proto, full_check=True)
    sizes = tuple(size if isinstance(size, int) else 16 for size in wanted)
    image = np.random.default_rng(0).random(sizes, np.float32)
    with load_engine(model, shapes={"x": sizes}) as engine:
        assert np.array_equal(engine(image), image[0] * 2)


@pytest.mark.parametrize("shape", [(1, 64, 48), (1, 3, 64, 48), (3, 64), (16, 64, 48), (3, 4, 3), (1, 80, 3000)])
def test_other_inputs_stay_as_they_are(tmp_path: Path, shape: tuple[int, ...]) -> None:
    onnx.save(constant({"y": [[0.1, 0.9]]}, shape).proto, tmp_path / "m.onnx")
    model = load(tmp_path / "m.onnx")
    assert inputs(model)[0].shape == shape and model.engine_key == load(model.path, bound=False).engine_key


def test_an_image_without_a_batch_dimension_runs_and_a_gray_one_is_named(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((64, 64, 3), np.uint8))
    (tmp_path / "p.yaml").write_text(
        "models: {m: {onnx: m.onnx, task: {classify: auto}, input: {std: 255}}}\n"
        "stages:\n  s: {source: 'images:a.png'}\n  i: {infer: m, from: s}\n  o: {sink: callback, from: i}\n"
    )
    for shape in ((3, 64, 64), (64, 64, 3)):
        onnx.save(constant({"y": [[0.1, 0.9]]}, shape).proto, tmp_path / "m.onnx")
        seen = list[Any]()
        with Pipeline(
            tmp_path / "p.yaml", callbacks={"o": lambda one, seen=seen: seen.append(one.outputs["i"])}
        ) as one:
            one.run()
        assert seen[0].classes.tolist() == [1, 0]
        assert "task: {classify: auto" in starter(tmp_path / "m.onnx").text
    onnx.save(constant({"y": [[0.1, 0.9]]}, (1, 64, 64)).proto, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="has no batch dimension") as caught:
        starter(tmp_path / "m.onnx")
    assert caught.value.fix == "export the model with an input of [1, 1, 64, 64]"
