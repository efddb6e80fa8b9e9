"""Q/DQ models in the forms of a DLA: their own scales, no images."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

from edgert.backend.ort import Function
from edgert.cli import app
from edgert.errors import ModelError
from edgert.graph import Model, load, read, to_bytes, write
from edgert.quantization import calibrated, from_qdq, run
from edgert.quantization.lowering.lower import lower
from edgert.quantization.lowering.trt_form import dla_scales, parse_cache
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.units import Target
from tests.helpers.models import make, node
from tests.unit.quantization.nets import after_conv, amax_of, feeds_of, graph_of, residual, shuffled


def in_qdq(model: Model, target: Target = "dla") -> Model:
    graph = graph_of(model)
    return write(lower(graph, scheme(graph, target), amax_of(model, feeds_of(model))), model)


def measured(model: Model) -> Mapping[str, float]:
    graph = graph_of(model)
    return dla_scales(graph, scheme(graph, "dla"), amax_of(model, feeds_of(model)))


def scales_in(model: Model) -> dict[str, float]:
    """Tensor that a Q rounds → its scale."""
    graph = read(model)
    pairs = [one for one in graph.nodes if one.op == "QuantizeLinear"]
    return {one.inputs[0]: float(graph.constants[one.inputs[1]]) for one in pairs}


def saved(model: Model, path: Path) -> Path:
    path.write_bytes(to_bytes(model))
    return path


def quantize(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["quantize", *map(str, words)], env={"COLUMNS": "250"})
    return done.exit_code, f"{done.output}{done.exception or ''}"


@pytest.mark.parametrize("model", [residual(), shuffled()], ids=["residual", "shuffled"])
class TestRoundTrip:
    def test_the_scales_that_went_in_come_out(self, model: Model) -> None:
        found, wanted = from_qdq.qdq_model(in_qdq(model)), measured(model)
        assert len(found.scales) > 5
        for name, scale in found.scales.items():
            assert scale == pytest.approx(wanted[name], rel=1e-6), name
        assert set(wanted) - set(found.scales) <= {"y"}  # what leaves the DLA is not rounded there

    def test_the_typed_form_comes_back(self, model: Model) -> None:
        before = in_qdq(model)
        after = from_qdq.qdq_model(before).dla_form()
        assert scales_in(after) == pytest.approx(scales_in(before), rel=1e-6)
        feeds = feeds_of(model)
        wanted, made = (Function(one, fused=False)(feeds)["y"] for one in (before, after))
        np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-4)


def test_a_gpu_model_gets_a_scale_wherever_one_follows() -> None:
    model = shuffled()
    found, wanted = from_qdq.qdq_model(in_qdq(model, "gpu")), measured(model)
    assert {name: found.scales[name] for name in ("x", "r0", "j")} == pytest.approx(
        {name: wanted[name] for name in ("x", "r0", "j")}, rel=1e-6
    )
    typed = read(found.dla_form())
    assert {one.op for one in typed.nodes} >= {"Conv", "QuantizeLinear", "DequantizeLinear"}


def test_what_reads_a_tensor_without_a_scale_stays_in_floating_point() -> None:
    model = after_conv(node("LeakyRelu", ["t"], ["u"], name="act", alpha=0.1))
    graph = graph_of(model)
    half = write(lower(graph, scheme(graph, "gpu", ["b"]), amax_of(model, feeds_of(model))), model)
    found = from_qdq.qdq_model(half)
    assert found.float_nodes == ("b",)
    assert any("'u'" in text for text in found.problems)
    typed = read(found.dla_form())
    reader = next(one for one in typed.nodes if one.name == "b")
    assert typed.producers[reader.inputs[0]].op == "LeakyRelu"


class TestCommand:
    def test_a_cache_and_the_float_model_without_images(self, tmp_path: Path) -> None:
        model = residual()
        path = saved(in_qdq(model), tmp_path / "net.onnx")
        code, output = quantize(path, "--target", "cache", "--trt", "8.6.2", "-o", tmp_path / "net.cache")
        assert code == 0, output
        text = (tmp_path / "net.cache").read_text()
        assert text.startswith("TRT-8602-")
        scales = parse_cache(text)
        plain = load(tmp_path / "net.float.onnx")
        assert not run.is_quantized(plain)
        assert set(scales) <= read(plain).names
        assert scales == pytest.approx({name: measured(model)[name] for name in scales}, rel=1e-6)
        assert "tensor 'y'" in output  # it has no scale, and is named
        assert not (tmp_path / "net.layer_precisions").exists()

    def test_the_form_for_a_dla(self, tmp_path: Path) -> None:
        path = saved(in_qdq(residual(), "gpu"), tmp_path / "net.onnx")
        code, output = quantize(path, "--target", "dla", "-o", tmp_path / "net.dla.onnx")
        assert code == 0, output
        assert set(scales_in(load(tmp_path / "net.dla.onnx"))) >= {"x", "r0", "r1", "r2"}

    def test_layers_that_were_left_in_float_are_exceptions(self, tmp_path: Path) -> None:
        model = residual()
        graph = graph_of(model)
        low = write(lower(graph, scheme(graph, "gpu", ["c1"]), amax_of(model, feeds_of(model))), model)
        code, output = quantize(saved(low, tmp_path / "net.onnx"), "--target", "cache", "-o", tmp_path / "net.cache")
        assert code == 0, output
        assert (tmp_path / "net.layer_precisions").read_text() == "c1:fp16"

    @pytest.mark.parametrize(
        "words", [("--images", "photos"), ("--keep", "c1"), ("--max-drop", "0.01"), ("--method", "mse")]
    )
    def test_what_is_for_float_models_is_refused(self, tmp_path: Path, words: tuple[str, ...]) -> None:
        path = saved(in_qdq(residual()), tmp_path / "net.onnx")
        code, output = quantize(path, "--target", "cache", *words)
        assert code != 0
        assert words[0] in output and "quantized already" in output

    def test_a_zero_point_off_the_middle_is_refused_and_nothing_is_written(self, tmp_path: Path) -> None:
        proto = onnx.load_from_string(to_bytes(in_qdq(residual())))
        first = next(one for one in proto.graph.node if one.op_type == "QuantizeLinear")
        for tensor in proto.graph.initializer:
            if tensor.name == first.input[2]:
                tensor.CopyFrom(numpy_helper.from_array(np.array(3, np.int8), tensor.name))
        path = tmp_path / "net.onnx"
        path.write_bytes(proto.SerializeToString())
        code, output = quantize(path, "--target", "cache", "-o", tmp_path / "net.cache")
        assert code != 0
        assert "zero point 3" in output and "symmetric" in output
        assert sorted(one.name for one in tmp_path.iterdir()) == ["net.onnx"]

    def test_a_version_without_caches_is_refused_first(self, tmp_path: Path) -> None:
        path = saved(in_qdq(residual()), tmp_path / "net.onnx")
        code, output = quantize(path, "--target", "cache", "--trt", "11.4.1")
        assert code != 0 and "reads no calibration cache" in output

    def test_other_forms_name_the_way_to_a_dla(self) -> None:
        with pytest.raises(ModelError, match="--target cache"):
            calibrated.prepare(in_qdq(residual()))


def test_a_model_without_layers_is_refused() -> None:
    tensors = {"s": np.float32(0.1), "z": np.int8(0)}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"),
        node("DequantizeLinear", ["q", "s", "z"], ["d"], name="dq"),
        node("Relu", ["d"], ["y"], name="relu"),
    ]
    with pytest.raises(ModelError, match="nothing that could run in INT8"):
        from_qdq.qdq_model(make(nodes, {"x": (1, 4, 6, 6)}, {"y": None}, tensors))
