"""The graph passes on real models, with ONNX Runtime as the judge."""

import random
import time
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from edgert.backend.ort import Function
from edgert.errors import ModelError
from edgert.graph import Model, clean, count, inspect, load, outputs, to_bytes, with_shapes
from tests.helpers.evaluation_data import data, feeds
from tests.helpers.models import node, save

DYNAMIC: dict[str, dict[str, tuple[int, ...]]] = {
    "ppocr_mobile_v2_det_ch": {"x": (1, 3, 320, 448)},
    "fns_candy": {"inputImage": (1, 3, 720, 720)},
}
# name → (nodes after cleaning, multiply-adds). Published for comparison: MobileNetV1 0.25 41 M (arXiv 1704.04861,
# table 7), MobileNetV2 1.0 300 M (arXiv 1801.04381, table 4), SqueezeNet 1.1 0.35 G (its authors' repository),
# NanoDet-m 0.72 GFLOPs and YOLOX-Nano 1.08 GFLOPs (their READMEs; 2 FLOPs per multiply-add, elementwise work included).
EXPECTED = {
    "deeplab_v3_mnv2_05": (108, 725_849_344),
    "fastestdet": (211, 121_491_744),
    "fns_candy": (59, 20_353_167_360),
    "mobilenet_v1_025_224": (58, 41_030_272),
    "mobilenet_v2_quant": (70, 300_774_272),
    "nanodet_m_320": (238, 342_223_200),
    "person_reid_retail_0288": (493, 82_297_664),
    "ppocr_mobile_v2_det_ch": (173, 669_117_120),
    "squeezenet_fp32": (67, 349_151_936),
    "ultraface_rfb_320": (128, 100_418_560),
    "yolox_nano_416": (369, 522_553_408),
}
RUNNABLE = sorted(EXPECTED.keys() - {"fns_candy"})  # its pre-ONNX operators have no kernels


def model_path(name: str) -> Path:
    return data("models", f"{name}.onnx")


@lru_cache(maxsize=2)
def fixed(name: str) -> Model:
    return with_shapes(load(model_path(name)), DYNAMIC.get(name, {}))


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("fused", [True, False])
def test_cleaned_models_compute_the_same(name: str, fused: bool) -> None:
    model = fixed(name)
    cleaned, _ = clean(model)
    (feed,) = feeds(name, model, 1, folder="text" if "ocr" in name else "coco_val")
    before, after = (Function(item, fused=fused)(feed) for item in (model, cleaned))
    for spec, first, second in zip(outputs(model), before.values(), after.values(), strict=True):
        assert first.shape == second.shape == spec.shape
        largest = float(np.abs(first).max())
        assert largest > 0
        assert float(np.abs(first - second).max()) <= 1e-4 * largest, spec.name


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_cleaning_counts_and_determinism(name: str) -> None:
    model = fixed(name)
    before = to_bytes(model)
    cleaned, changes = clean(model)
    nodes, macs = EXPECTED[name]
    assert len(cleaned.proto.graph.node) == nodes
    assert sum(cost.macs for cost in count(cleaned)) == sum(cost.macs for cost in count(model)) == macs
    assert to_bytes(model) == before
    assert to_bytes(clean(model)[0]) == to_bytes(cleaned)
    assert clean(cleaned)[1] == ()
    assert len(to_bytes(cleaned)) <= len(before) * 1.01
    assert bool(changes) == (to_bytes(cleaned) != before)


def test_known_parameter_counts() -> None:
    # Keras counts 475,544 for MobileNet(alpha=0.25); the file has two more, the ends of its Clip nodes.
    assert inspect(model_path("mobilenet_v1_025_224")).params == 475_544 + 2
    # torchvision counts 1,235,496 for squeezenet1_1; the file has one more, the ratio of its Dropout.
    assert inspect(model_path("squeezenet_fp32")).params == 1_235_496 + 1


def test_batchnorms_and_shape_chains_are_gone() -> None:
    for name in ("ultraface_rfb_320", "mobilenet_v1_025_224", "ppocr_mobile_v2_det_ch"):
        left = {node.op_type for node in clean(fixed(name))[0].proto.graph.node}
        assert not left & {"BatchNormalization", "Constant", "Shape", "Gather", "Unsqueeze", "Identity", "Dropout"}


@pytest.mark.timing
def test_ultraface_becomes_much_faster() -> None:
    """Its weights among the graph inputs keep ONNX Runtime from folding; measured alternately, on one thread."""
    model = fixed("ultraface_rfb_320")
    (feed,) = feeds("ultraface_rfb_320", model, 1)
    sessions = [Function(model), Function(clean(model)[0])]
    best_ns = [2**62, 2**62]
    for _ in range(40):
        for position, item in enumerate(sessions):
            start_ns = time.thread_time_ns()
            item(feed)
            best_ns[position] = min(best_ns[position], time.thread_time_ns() - start_ns)
    assert best_ns[0] >= 2 * best_ns[1]


def test_a_real_model_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    data = model_path("ultraface_rfb_320").read_bytes()
    rng = random.Random(0)
    cut = tmp_path / "cut.onnx"
    for length in [1, 2, 16, len(data) - 1, *(rng.randrange(len(data)) for _ in range(12))]:
        cut.write_bytes(data[:length])
        with pytest.raises(ModelError):
            load(cut)


def test_the_old_style_model_loads_and_is_described() -> None:
    summary = inspect(model_path("fns_candy"))
    assert "operators that opset 7 does not have: Affine, Crop, ImageScaler" in "\n".join(summary.warnings)
    assert [str(item) for item in summary.inputs] == ["inputImage float32[?, 3, 720, 720]"]
    assert summary.metadata["author"] == "Justin Johnson"


def test_the_quantized_model_is_recognized() -> None:
    summary = inspect(model_path("mobilenet_v2_quant"))
    assert summary.quantized == "qoperator"
    assert summary.macs == EXPECTED["mobilenet_v2_quant"][1]


def test_the_dynamic_model_says_what_it_needs() -> None:
    summary = inspect(model_path("ppocr_mobile_v2_det_ch"))
    assert len(summary.dynamic) == 3
    assert summary.macs is None
    shaped = inspect(model_path("ppocr_mobile_v2_det_ch"), {"x": (1, 3, 320, 448)})
    assert shaped.outputs[0].shape == (1, 1, 320, 448)
    with pytest.raises(ModelError, match="input 'x'"):
        inspect(model_path("ppocr_mobile_v2_det_ch"), {"x": (1, 4, 320, 448)})


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_transposed_convolutions_in_groups_take_norms_and_sums_in(groups: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(groups)
    arrays = {name: rng.standard_normal(12).astype(np.float32) for name in "gbm"}
    arrays["v"] = rng.random(12).astype(np.float32) + 0.1
    arrays["k"] = rng.standard_normal((12, 1, 1)).astype(np.float32)
    arrays["w"] = rng.standard_normal((6, 12 // groups, 3, 3)).astype(np.float32)
    nodes = [
        node("ConvTranspose", ["x", "w"], ["c"], group=groups, strides=[2, 2]),
        node("Add", ["c", "k"], ["d"]),
        node("BatchNormalization", ["d", "g", "b", "m", "v"], ["y"]),
    ]
    model = load(save(tmp_path / "m.onnx", nodes, {"x": (1, 6, 5, 5)}, {"y": (1, 12, 11, 11)}, arrays))
    cleaned, _ = clean(model)
    assert [node.op_type for node in cleaned.proto.graph.node] == ["ConvTranspose"]
    feed = {"x": rng.standard_normal((1, 6, 5, 5)).astype(np.float32)}
    before, after = (Function(item)(feed)["y"] for item in (model, cleaned))
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-4 * float(np.abs(before).max()))
