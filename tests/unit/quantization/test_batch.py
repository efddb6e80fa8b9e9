"""INT8 models that take several images, and those that cannot."""

from typing import Any

import numpy as np
import pytest

from edgert.backend.base import EngineOptions
from edgert.backend.ort import Function
from edgert.backend.tensorrt.trt_backend import static_request
from edgert.board.host import saturates_bytes
from edgert.errors import ModelError
from edgert.graph import Model, inputs, outputs
from edgert.quantization import batched, calibrated, quantizer
from edgert.quantization.calibration.range_calibrator import calibrate
from edgert.quantization.scheme.units import Target
from tests.helpers.models import make, node
from tests.unit.quantization.network import IMAGES, SIZE, network


def random_images(count: int = IMAGES) -> list[dict[str, Any]]:
    random = np.random.default_rng(1)
    return [{"x": random.uniform(0, 1, (1, 3, SIZE, SIZE)).astype(np.float32)} for _ in range(count)]


def int8(target: Target) -> Model:
    model, feeds = calibrated.prepare(network()), random_images()
    table = calibrate(model, feeds, early_stop=False)
    return quantizer.Quantizer(model, table, quantizer.Recipe(target)).round_only().model


def tail(nodes: list[Any], shape: tuple[int, ...], stored: dict[str, Any] | None = None) -> Model:
    """A convolution, and what comes behind it."""
    weights = {"w": np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype("f4"), **(stored or {})}
    conv = node("Conv", ["x", "w"], ["c"], name="conv")
    return calibrated.prepare(make([conv, *nodes], {"x": (1, 3, SIZE, SIZE)}, {"y": shape}, weights))


@pytest.mark.parametrize("target", ["ort", "gpu"])
def test_a_batch_is_what_its_images_are_alone(target: Target) -> None:
    model, feeds = int8(target), random_images(5)
    made = batched.open_batch(model, feeds)
    assert [spec.shape[0] for spec in (*inputs(made), *outputs(made))] == ["batch", "batch"]
    run = Function(made)
    together = run({"x": np.concatenate([feed["x"] for feed in feeds])})["y"]
    # Float sums behind the integers, one row or several in a kernel: on the GPU, and of the last product where ONNX
    # Runtime computes bytes exactly because they would saturate (it then leaves a Gemm that ends in float as it is).
    bound = 0.0 if target == "ort" and not saturates_bytes() else 1e-6
    assert np.abs(together - np.concatenate([run(feed)["y"] for feed in feeds])).max() <= bound
    assert np.abs(together - np.concatenate([Function(model)(feed)["y"] for feed in feeds])).max() <= bound


def test_tensorrt_gets_a_profile_from_one_row_to_a_full_batch() -> None:
    made = batched.open_batch(int8("gpu"), random_images(2))
    request = static_request(made, EngineOptions(profiles={"default": {"x": (4, 3, SIZE, SIZE)}}))
    assert request.precision == "int8"
    ((name, span),) = request.profiles[0].items()
    assert name == "x" and (span.least[0], span.usual[0], span.most[0]) == (1, 4, 4)


def test_a_model_of_other_rows_is_left_alone() -> None:
    made = batched.open_batch(calibrated.prepare(network()))
    assert batched.open_batch(made) is made


CASES = {
    "the first only": (
        tail([node("Slice", ["c", "zero", "one", "zero"], ["y"], name="first")], (1, 4, 14, 14),
             {"zero": np.array([0]), "one": np.array([1])}),
        "output 'y' of node 'first' (Slice) has no dimension for the batch",
    ),
    "a mean over all": (
        tail([node("ReduceMean", ["c"], ["m"], name="mean", axes=[0]),
              node("Add", ["c", "m"], ["y"], name="add")], (1, 4, 14, 14)),
        "output 'y' of node 'add' (Add) differs",
    ),
    "an output without rows": (
        tail([node("Squeeze", ["c", "zero"], ["y"], name="squeeze")], (4, 14, 14), {"zero": np.array([0])}),
        "Name:'squeeze'",
    ),
    "an output of another form": (
        tail([node("Transpose", ["c"], ["y"], name="turn", perm=[1, 0, 2, 3])], (4, 1, 14, 14)),
        "output 'y' of node 'turn' (Transpose) has no dimension for the batch",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("model", "reason"), CASES.values(), ids=CASES)
def test_what_holds_it_to_one_image_is_named(model: Model, reason: str) -> None:
    with pytest.raises(ModelError, match="takes one image at a time") as caught:
        batched.open_batch(model)
    assert reason in caught.value.why and "leave batch out" in caught.value.fix and "export" in caught.value.fix


def test_what_the_file_can_and_int8_cannot_is_not_the_exports_fault() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv"),
        node("Shape", ["x"], ["sizes"], end=1),
        node("Slice", ["c", "zero", "sizes", "zero"], ["y"], name="all"),  # of one, once that is folded
    ]
    stored = {"w": np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype("f4"), "zero": np.array([0])}
    file, feeds = make(nodes, {"x": ("n", 3, SIZE, SIZE)}, {"y": ("n", 4, 14, 14)}, stored), random_images(2)
    assert batched.accepts_several(file, feeds) and not batched.accepts_several(calibrated.prepare(file), feeds)
    with pytest.raises(ModelError) as caught:
        batched.open_batch(calibrated.prepare(file), feeds, file=file)
    assert "node 'all' (Slice)" in caught.value.why and "the file has an open batch" in caught.value.why
    assert caught.value.fix == "leave batch out of its stages, or precision: fp16 or fp32"
