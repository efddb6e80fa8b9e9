"""A built engine against its plan; forms of detectors are compared by their final boxes."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest

from edgert.backend.tensorrt.build_process import BuildResult
from edgert.backend.tensorrt.build_request import BuildRequest
from edgert.backend.tensorrt.log import LogRecord
from edgert.backend.tensorrt.network import Layer
from edgert.compiler.engine_checks import check_placement
from edgert.compiler.model_steps import BOXES_TOLERANCE, BOXES_TOLERANCE_INT8, TOLERANCE, distance, tolerance
from edgert.errors import BuildError, PlacementError
from tests.helpers.trt_log import parse_log

NODES = {"conv": ("c",), "resize": ("r",), "head": ("y",), "const": ("k",)}
PLAN = {"conv": "dla0", "resize": "dla0", "head": "gpu", "const": "gpu"}
REQUEST = BuildRequest(b"", NODES, title="parts.onnx", placement=PLAN)
LAYERS = (
    Layer("conv", "CONVOLUTION", "[ONNX Layer: conv]", ("x",), ("c",)),
    Layer("resize_0", "RESIZE", "[ONNX Layer: resize]", ("c",), ("r",)),
    Layer("head", "CONVOLUTION", "[ONNX Layer: head]", ("r",), ("y",)),
)
MOVED = (
    "[W] [TRT] resize_0: For bilinear resize, DLA only supports half pixel coordinates.\n"
    "[W] [TRT] Layer 'resize_0' (RESIZE): Unsupported on DLA. Switching this layer's device type to GPU.\n"
)


def engine(dla: str, gpu: str) -> str:
    def layer(nodes: str, kind: str) -> dict[str, object]:
        marks = "\x1e".join(f"[ONNX Layer: {node}]" for node in nodes.split())
        return {"Name": nodes, "LayerType": kind, "Metadata": marks}

    reformat = {"Name": "Reformatting CopyNode for Input Tensor 0", "LayerType": "Reformat"}
    return json.dumps({"Layers": [reformat, layer(dla, "DLA"), layer(gpu, "CaskConvolution")], "Bindings": []})


def result(inspector: str = "", log: tuple[LogRecord, ...] = (), refused: tuple[str, ...] = ()) -> BuildResult:
    return BuildResult(b"plan", b"", log, inspector, LAYERS, refused, "TensorRT 10.3.0", 1.0)


AS_PLANNED = result(engine("conv resize", "head"))
ELSEWHERE = result(engine("conv", "resize head"), parse_log(MOVED))


def test_as_planned() -> None:
    found = check_placement(REQUEST, AS_PLANNED)
    assert found["misplaced"] == [] and found["source"] == "inspector"
    assert (found["layers"], found["loadables"], found["reformats"]) == (3, 1, 1)
    assert found["nodes"] == {  # one node of the plan became no layer
        "": {"planned": 0, "actual": 1},
        "dla0": {"planned": 2, "actual": 2},
        "gpu": {"planned": 2, "actual": 1},
    }


def test_strict_names_the_node_and_the_reason() -> None:
    with pytest.raises(PlacementError, match="1 of 4 nodes run elsewhere than planned: 'resize'") as caught:
        check_placement(REQUEST, ELSEWHERE)
    assert "runs on gpu, not dla0" in caught.value.why and "half pixel" in caught.value.why
    assert caught.value.where == "parts.onnx"


def test_warn_says_it_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="edgert.steps"):
        found = check_placement(REQUEST, ELSEWHERE, "warn")
    assert "'resize'" in caplog.text
    ((*moved, reason),) = found["misplaced"]
    assert moved == ["resize", "dla0", "gpu"] and "half pixel" in reason


def test_the_log_is_enough() -> None:
    log = parse_log("[I] [TRT] [DlaLayer] {ForeignNode[conv...resize]}\n[I] [TRT] [GpuLayer] CONVOLUTION: head\n")
    found = check_placement(REQUEST, result(log=log))
    assert found["source"] == "log" and found["misplaced"] == []


def test_names_alone_do_not_tell_but_the_log_does() -> None:
    """An inspector without details cannot say where a fused region runs."""
    log = parse_log("[I] [TRT] [DlaLayer] {ForeignNode[conv...resize]}\n[I] [TRT] [GpuLayer] CONVOLUTION: head\n")
    names = json.dumps({"Layers": ["{ForeignNode[conv...resize]}", "head"], "Bindings": []})
    assert check_placement(REQUEST, result(names, log))["source"] == "log"


def test_nobody_can_tell() -> None:
    with pytest.raises(PlacementError, match=r"cannot tell where the layers of parts\.onnx run"):
        check_placement(REQUEST, result())


def test_without_a_dla_there_is_nothing_to_tell() -> None:
    found = check_placement(replace(REQUEST, placement={}), result())
    assert found["source"] == "" and found["misplaced"] == []


def test_refused_before_building_is_a_reason_too() -> None:
    with pytest.raises(PlacementError, match="elsewhere") as caught:
        check_placement(REQUEST, result(engine("conv", "resize head"), refused=("resize",)))
    assert "TensorRT reports that it cannot run on a DLA" in caught.value.why


def test_an_inspector_that_cannot_be_read() -> None:
    with pytest.raises(BuildError, match="cannot read the engine inspector"):
        check_placement(REQUEST, result("nonsense"))


BOXES = np.array([[0, 0, 10, 10], [20, 20, 60, 70], [5, 5, 50, 90]], np.float32)
LABELS, SCORES = np.array([1, 2, 3]), np.array([0.9, 0.8, 0.7], np.float32)
FOUND = {"boxes": BOXES, "labels": LABELS, "scores": SCORES}


def test_boxes_that_change_places_are_the_same() -> None:
    turned = {name: array[::-1] for name, array in FOUND.items()}
    apart = distance([FOUND, FOUND], [turned, FOUND])
    assert apart["relative_error"] == 0 and apart["boxes"] == "100.0% of 6 and 6 boxes agree"
    assert tolerance(apart, TOLERANCE["fp16"], "fp16") == BOXES_TOLERANCE["fp16"]
    assert tolerance(apart, TOLERANCE["gpu"], "gpu") == BOXES_TOLERANCE_INT8


def test_boxes_that_one_form_lacks_are_an_error() -> None:
    fewer = {name: array[:1] for name, array in FOUND.items()}
    assert distance([FOUND], [fewer])["relative_error"] == 0.5
    assert distance([FOUND], [{"boxes": np.full(3, np.nan)}])["relative_error"] is None


def test_other_outputs_are_compared_number_by_number() -> None:
    logits = {"logits": np.array([[1.0, 2.0]])}
    apart = distance([logits], [{"logits": np.array([[1.0, 2.2]])}])
    assert "boxes" not in apart and 0.05 < apart["relative_error"] < 0.1
    assert tolerance(apart, 0.02, "fp16") == 0.02
