"""Outputs beside the one that is needed: raw heads of detectors, heads for training."""

import json
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np
import onnx
import pytest

from edgert import Pipeline
from edgert.backend.gpu import GpuTensor
from edgert.config import DetectTask, load_pipeline
from edgert.errors import ModelError
from edgert.stages.decode.detection import Detector
from edgert.stages.decode.kinds import SubsetDecoder, checked_decoder, decoder_for
from edgert.stages.decode.yolo import YoloV5
from edgert.stages.gpu.readers import why_on_host
from edgert.validation import validate
from edgert.wiring.check import check
from edgert.wiring.starter import starter
from tests.helpers.models import constant

TABLE: Any = np.zeros((1, 252, 7), np.float32)
TABLE[0, 3] = 32, 32, 20, 20, 0.9, 0.95, 0.3
HEADS = {name: np.zeros((1, 3, side, side, 7)) for name, side in (("345", 8), ("403", 4), ("461", 2))}
PIPELINE = """
models: {{m: {{onnx: m.onnx, task: {{detect: {decoder}}}, input: {{std: 255}}}}}}
stages:
  s: {{source: 'images:a.png'}}
  i: {{infer: m, from: s}}
  o: {{sink: jsonl, from: i, path: o.jsonl}}
"""


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(constant({"output": TABLE, **HEADS}).proto, tmp_path / "m.onnx")
    cv2.imwrite(str(tmp_path / "a.png"), np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
    (tmp_path / "p.yaml").write_text(PIPELINE.format(decoder="yolov5"))
    return tmp_path / "p.yaml"


def objects(pipeline: Path) -> Any:
    """What the model's stage gave for the one image, as plain data."""
    with Pipeline(pipeline) as one:
        one.run()
    return json.loads((pipeline.parent / "o.jsonl").read_text())["outputs"]["i"]


def test_run_new_check_and_validate_agree(pipeline: Path) -> None:
    (found,) = objects(pipeline)["objects"]
    assert found["box"] == [22, 22, 42, 42] and found["score"] == pytest.approx(0.855)
    assert validate(pipeline).models == 1
    made = starter(pipeline.with_name("m.onnx"), directory=pipeline.parent)
    assert "task: {detect: yolov5," in made.text and made.stub is None
    made.write(pipeline.with_name("new.yaml"), force=False)
    task = load_pipeline(pipeline.with_name("new.yaml")).config.models["net"].task
    assert isinstance(task, DetectTask) and task.detect == "yolov5"
    report = check(pipeline, [pipeline.with_name("a.png")])
    assert not report.findings and report.record.boxes.tolist() == [[22, 22, 42, 42]]  # type: ignore[union-attr]


def test_another_decoder_is_refused_and_the_right_one_named(pipeline: Path) -> None:
    pipeline.write_text(PIPELINE.format(decoder="yolox"))
    with pytest.raises(ModelError, match="cannot read the model's outputs") as caught:
        validate(pipeline)
    assert "these look like 'detect: yolov5'" in caught.value.fix


def test_a_decoder_of_ones_own_gets_every_output(pipeline: Path) -> None:
    (pipeline.parent / "own.py").write_text("def read(outputs, geometry):\n    return len(outputs)\n")
    pipeline.write_text(PIPELINE.format(decoder="yolov5").replace("{detect: yolov5}", "{python: own:read}"))
    assert objects(pipeline) == 4


def test_heads_for_training_are_left_out_by_their_name() -> None:
    decoder = decoder_for(DetectTask(detect="yolov5"), ())
    shapes = (252, 7), (252, 7)
    with pytest.raises(ModelError):
        checked_decoder(decoder, shapes, (64, 64))
    found = checked_decoder(decoder, shapes, (64, 64), ["aux_boxes", "boxes"])
    assert isinstance(found, SubsetDecoder) and found.places == (1,)


def test_kernels_read_the_output_that_is_needed() -> None:
    arrays = [*HEADS.values(), TABLE]
    outputs = [GpuTensor(f"o{n}", one.shape, "float32", cast("Any", None)) for n, one in enumerate(arrays)]
    decoder = Detector(YoloV5())
    assert "one output, not 4" in why_on_host(outputs, [True] * 4, decoder, (64, 64))
    few = checked_decoder(decoder, [one.shape[1:] for one in outputs], (64, 64))
    assert not why_on_host(outputs, [True] * 4, few, (64, 64))
    assert not why_on_host(outputs, [False, False, False, True], few, (64, 64))


def test_masks_beside_open_boxes_are_left_out(pipeline: Path) -> None:
    """torchvision's Mask R-CNN: how many boxes there are depends on the image, so that no shape is known before."""
    boxes, scores = np.array([[4, 8, 30, 40], [0, 0, 9, 9]], np.float32), np.array([0.9, 0.1])  # two: one is a batch
    arrays = {"boxes": boxes, "labels": np.ones(2), "scores": scores, "masks": np.zeros((2, 1, 64, 64))}
    proto = constant(arrays).proto
    for output in proto.graph.output:
        output.type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(proto, pipeline.with_name("m.onnx"))
    pipeline.write_text(PIPELINE.format(decoder="yolov10"))
    (found,) = objects(pipeline)["objects"]
    assert found["box"] == [4, 8, 30, 40] and found["score"] == pytest.approx(0.9)
