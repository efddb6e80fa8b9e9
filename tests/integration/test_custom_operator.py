"""Models with an operator of the user's own, run for real and compared with NumPy."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from onnx import TensorProto

import edgert
from edgert.backend import EngineOptions, backend
from edgert.backend.ort import CustomOpEngine, Function
from edgert.backend.tensorrt.build_request import DTYPES
from edgert.backend.tensorrt.plugin import operator_plugin
from edgert.bundle.bundle import open_bundle
from edgert.compiler.build_target import software
from edgert.compiler.unpack import unpacked
from edgert.custom_op import load_operators, operator
from edgert.engine import load_engine
from edgert.errors import BuildError, ModelError
from edgert.files import FileStore
from edgert.graph import Model, to_bytes
from edgert.memory.cuda import CudaDevice
from edgert.pipeline import Pipeline
from edgert.runtime.records import Embedding
from tests.helpers.gpu import gpu_or_skip, read
from tests.helpers.models import conv, make, node
from tests.helpers.operators import EXAMPLE, mish, network, only_here
from tests.helpers.small_pipeline import TEXT, Build, small_pipeline
from tests.helpers.trt_double import Double


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    with only_here():
        yield


def image(rows: int = 1, size: int = 8) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((rows, 3, size, size)).astype("f4")


def expected(x: np.ndarray, times: int = 1) -> np.ndarray:
    values = Function(without_operators())({"x": x})["t0"]
    for _ in range(times):
        values = mish(values, 0.25)
    return np.asarray(values.mean((2, 3), keepdims=True))


def without_operators() -> Model:
    proto = network((None, 3, None, None)).copied_proto()
    del proto.graph.node[1:]
    proto.graph.output[0].name = "t0"
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return conv().derive(proto)


@pytest.mark.parametrize("times", [1, 3])
def test_an_engine_computes_what_numpy_does(times: int) -> None:
    engine = backend("ort").compile(network(ops=["HardMishLite"] * times), EngineOptions(1))
    assert isinstance(engine, CustomOpEngine) and engine.info["operators"] == ["demo::HardMishLite"] * times
    session = engine.session()
    session.inputs["x"][...] = image()
    np.testing.assert_allclose(session.run()[0], expected(image(), times), rtol=1e-5, atol=1e-6)


def test_sessions_do_not_share_tensors_and_shapes_come_from_profiles() -> None:
    options = EngineOptions(1, {"small": {"x": (1, 3, 8, 8)}, "large": {"x": (2, 3, 16, 16)}})
    engine = backend("ort").compile(network(("n", 3, "h", "w")), options)
    first, second = engine.session(), engine.session("large")
    first.inputs["x"][...], second.inputs["x"][...] = image(), image(2, 16)
    made = first.run()[0]
    np.testing.assert_allclose(second.run()[0], expected(image(2, 16)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(made, expected(image()), rtol=1e-5, atol=1e-6)
    with pytest.raises(ModelError, match="no profile 'lage'; did you mean 'large'"):
        engine.session("lage")


def test_parts_are_kept_between_starts(tmp_path: Path) -> None:
    options = EngineOptions(1, store=FileStore(tmp_path))
    assert not backend("ort").compile(network(), options).info["cached"]
    assert backend("ort").compile(network(), options).info["cached"]


def test_a_function_that_does_not_keep_to_its_rules_is_told() -> None:
    @edgert.op("demo::Wrong")
    def wrong(x: np.ndarray, *, alpha: float = 0) -> np.ndarray:
        return x.astype(np.float64)[:, :1]

    with pytest.raises(BuildError, match="node 'own0': demo::Wrong breaks its own rules") as caught:
        backend("ort").compile(network(ops=["Wrong"]), EngineOptions(1))
    assert "it returned float64 [1, 1, 8, 8]; its shape and dtype rules give float32 [1, 4, 8, 8]" in caught.value.why


def test_a_size_that_is_not_known_beforehand_is_told() -> None:
    nodes = [
        node("NonZero", ["x"], ["at"], name="nonzero"),
        node("Cast", ["at"], ["f"], to=TensorProto.FLOAT, name="cast"),
        node("HardMishLite", ["f"], ["y"], domain="demo", name="own"),
    ]
    model = make(nodes, {"x": (2, 3)}, {"y": None})
    with pytest.raises(ModelError, match="the size of tensor 'y' is not known before the model runs"):
        backend("ort").compile(model, EngineOptions(1))


@pytest.mark.parametrize("name", ["openvino"])
def test_other_engines_refuse_it(name: str) -> None:
    with pytest.raises(BuildError, match="OpenVINO cannot run node 'own0'") as caught:
        backend(name).compile(network(), EngineOptions(1))
    assert "demo::HardMishLite is a custom operator" in caught.value.why and "backend: ort" in caught.value.fix


def test_in_a_pipeline_and_its_bundle(tmp_path: Path) -> None:
    path = small_pipeline(tmp_path)
    (tmp_path / "parts.onnx").write_bytes(to_bytes(network((1, 3, 16, 16))))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "my_operator.py").write_bytes(EXAMPLE.read_bytes())
    path.write_text("ops: [code/my_operator.py]\n" + TEXT)
    Build(path, tmp_path / "a.edgert", tmp_path / "cache", board="host")
    assert Build(path, tmp_path / "a.edgert", tmp_path / "cache", board="host").made == []
    with open_bundle(tmp_path / "a.edgert") as bundle:
        assert bundle.read("code/my_operator.py") == EXAMPLE.read_bytes()
        (model,) = bundle.manifest.models.values()
        assert {"float", "ort"} <= set(model.forms)
    with unpacked(tmp_path / "a.edgert") as found, Pipeline(found.file) as running:
        results = running.results("find", timeout=20)
        running.submit(np.full((24, 24, 3), 90, np.uint8))
        record = next(results).outputs["find"]
        running.finish()
    assert isinstance(record, Embedding)
    wanted = expected(np.full((1, 3, 16, 16), 90 / 255, "f4")).reshape(-1)
    assert np.abs(np.array(record.vector) - wanted).max() < 0.05 * np.abs(wanted).max()


def test_measuring_a_model_runs_it_as_well() -> None:
    function = Function(network(("n", 3, "h", "w")), fused=False)
    assert (function.inputs, function.outputs) == (("x",), ("mean",))
    np.testing.assert_allclose(function({"x": image(2, 6)})["mean"], expected(image(2, 6)), rtol=1e-5, atol=1e-6)


def test_an_operator_that_nobody_registered_is_a_build_error() -> None:
    with pytest.raises(BuildError, match="ONNX Runtime cannot run this model") as caught:
        backend("ort").compile(network(domain="elsewhere"), EngineOptions(1))
    assert "elsewhere" in caught.value.why


def test_from_python(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(to_bytes(network()))
    with load_engine(tmp_path / "m.onnx", cache=False) as engine:
        np.testing.assert_allclose(engine(image()), expected(image()), rtol=1e-5, atol=1e-6)


def test_a_board_gets_it_on_its_gpu(tmp_path: Path) -> None:
    path = small_pipeline(tmp_path, TEXT.replace("int8\n    calibrate: {images: photos, early_stop: false}", "fp16"))
    (tmp_path / "parts.onnx").write_bytes(to_bytes(network((1, 3, 16, 16))))
    (tmp_path / "my_operator.py").write_bytes(EXAMPLE.read_bytes())
    path.write_text("ops: [my_operator.py]\n" + path.read_text())
    Build(path, tmp_path / "a.edgert", tmp_path / "cache")
    with open_bundle(tmp_path / "a.edgert") as bundle:
        (model,) = bundle.manifest.models.values()
        placement = json.loads(bundle.read(model.files["placement"]))
    verdict = next(node for node in placement["dla"]["nodes"] if node["name"] == "own0")
    assert verdict["answer"] == "no" and "HardMishLite" in verdict["reason"]
    assert all(engine["nodes"]["own0"] == "gpu" for engine in placement["engines"])


def test_a_changed_operator_is_a_changed_model_for_the_cache(tmp_path: Path) -> None:
    source = tmp_path / "changing_ops.py"
    text = "import edgert\n@edgert.op('test::Changing')\ndef changing(x):\n    return x\n"
    source.write_text(text)
    load_operators([source])
    before = software()
    source.write_text(text.replace("return x", "return -x"))
    assert before != software() and before["numpy"] == software()["numpy"]


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    """One for all tests: kernels are kept, and gone with its context."""
    gpu = gpu_or_skip()
    yield gpu
    gpu.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float16", 2e-3)])
@pytest.mark.parametrize("shape", [(1,), (2, 3, 50), (1, 64, 80, 81)])
def test_its_kernel_computes_on_a_gpu_what_its_function_does(
    device: CudaDevice, dtype: str, tolerance: float, shape: tuple[int, ...]
) -> None:
    """Compiled and launched as the plugin does it; only who calls the plugin is a stand-in."""
    one, x = operator("demo", "HardMishLite"), (3 * np.random.default_rng(0).standard_normal(shape)).astype(dtype)
    assert one is not None
    port = SimpleNamespace(type=SimpleNamespace(name=DTYPES[dtype]), dims=shape)
    given, made, stream = device.device_block(x.nbytes), device.device_block(x.nbytes), device.stream()
    with device:
        device.driver.memcpy_htod(given.address, x)
        device.synchronize()
        plugin = operator_plugin(cast("Any", Double("10.7")), one, {"alpha": 0.25})
        plugin.enqueue([port], [port], [given.address], [made.address], 0, stream.handle)
    stream.synchronize()
    found = read(device, made.address, x.nbytes).view(dtype).reshape(shape)
    np.testing.assert_allclose(found, one.function(x, alpha=0.25), rtol=tolerance, atol=tolerance)
    given.release()
    made.release()
