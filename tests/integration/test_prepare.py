"""Prepared models compute what the originals do, compared by ONNX Runtime."""

from typing import Any

import numpy as np
import pytest

from edgert.backend.ort import Function
from edgert.errors import ModelError
from edgert.graph import Model, clean, inputs, load, raise_opset, read, with_shapes
from edgert.graph.opset import opset
from edgert.quantization.calibrated import prepare
from edgert.quantization.scheme.units import tensors_to_calibrate
from tests.helpers.evaluation_data import data
from tests.helpers.models import make, node

SHAPES: dict[str, dict[str, tuple[int, ...]]] = {"ppocr_mobile_v2_det_ch": {"x": (1, 3, 320, 448)}}
TENSORS = {  # model → tensors worth a range: the image, and all that its nodes compute
    "deeplab_v3_mnv2_05": 109,
    "fastestdet": 212,
    "mobilenet_v1_025_224": 59,
    "nanodet_m_320": 242,
    "person_reid_retail_0288": 496,
    "ppocr_mobile_v2_det_ch": 174,
    "squeezenet_fp32": 68,
    "ultraface_rfb_320": 129,
    "yolox_nano_416": 370,
}


def noise(model: Model) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {spec.name: 50 * random.standard_normal(spec.shape).astype(np.float32) for spec in inputs(model)}


@pytest.mark.parametrize("name", sorted(TENSORS))
def test_prepared_models_compute_the_same(name: str) -> None:
    loaded = load(data("models", f"{name}.onnx"))
    model, shapes = with_shapes(loaded, SHAPES.get(name, {})), SHAPES.get(name)
    ready = prepare(loaded, shapes)
    assert opset(ready) == 17
    assert prepare(loaded, shapes).digest == ready.digest
    assert len(tensors_to_calibrate(read(ready))) == TENSORS[name]
    feeds = noise(model)
    before, after = (Function(item, fused=False)(feeds) for item in (model, ready))
    assert before.keys() == after.keys()
    for output, array in before.items():
        assert float(np.abs(array - after[output]).max()) <= 1e-4 * float(np.abs(array).max()), output


def test_raising_the_opset_alone_changes_no_bit() -> None:
    for name in ("deeplab_v3_mnv2_05", "nanodet_m_320", "ultraface_rfb_320"):
        model, _ = clean(load(data("models", f"{name}.onnx")))
        raised = raise_opset(model, 17)
        kept = {output for node in model.proto.graph.node for output in node.output}
        assert kept <= {output for node in raised.proto.graph.node for output in node.output}
        feeds = noise(model)
        before, after = (Function(item, fused=False)(feeds) for item in (model, raised))
        for output, array in before.items():
            np.testing.assert_array_equal(after[output], array)


def test_models_that_cannot_be_prepared_name_the_cause() -> None:
    with pytest.raises(ModelError) as caught:
        prepare(load(data("models", "fns_candy.onnx")))
    assert "ImageScaler" in caught.value.why
    with pytest.raises(ModelError, match="already quantized") as caught:
        prepare(load(data("models", "mobilenet_v2_quant.onnx")))
    assert "'input_QuantizeLinear'" in caught.value.why
    with pytest.raises(ModelError, match="open dimensions"):
        prepare(load(data("models", "ppocr_mobile_v2_det_ch.onnx")))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("old", "scales"),
    [
        *((old, scales) for old in (7, 9, 10) for scales in ((2, 2), (1.5, 2.5))),
        *((10, scales) for scales in ((0.5, 0.5), (0.6, 0.4), (1, 0.75))),  # Upsample never shrinks
    ],
)
def test_old_resampling_is_kept_to_the_bit(old: int, scales: tuple[float, float], mode: str) -> None:
    values, op = [1.0, 1.0, *map(float, scales)], "Resize" if old == 10 else "Upsample"
    given = {"scales": values} if old == 7 else {}
    resize = node(op, ["x"] if given else ["x", "s"], ["y"], mode=mode, name="up", **given)
    stored = {} if given else {"s": np.array(values, np.float32)}
    shape = [1, 2, None, None]
    model = make([resize], {"x": shape}, {"y": shape}, stored, opset=old, ir=4)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 2, 10, 12)).astype(np.float32)}
    before, after = (Function(item, fused=False)(feeds)["y"] for item in (model, raise_opset(model, 17)))
    np.testing.assert_array_equal(after, before)
