"""What a bundle asks of each dialect of TensorRT, and in which layout an engine with DLA layers takes its image."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from edgert.backend.ort import Function
from edgert.backend.tensorrt.build_request import Format
from edgert.backend.tensorrt.library import Library, library_of
from edgert.bundle.bundle import open_bundle
from edgert.compiler.engine_specs import (
    BundleModel,
    EngineSpec,
    InputLayout,
    engine_specs,
    extend_placement,
    input_layout,
)
from edgert.compiler.finish import Finished, compiled_engines, finish
from edgert.compiler.model_steps import uniform_feeds
from edgert.config import InputConfig, ModelConfig, load_pipeline
from edgert.errors import BuildError, CalibrationError, PlacementError
from edgert.exporter.trtexec import command, library_named
from edgert.files import FileStore
from edgert.graph import Graph, load, read
from edgert.quantization.lowering.trt_form import check_cache, write_cache
from edgert.reporter import Progress
from tests.helpers import trt_bundle as trt_bundle_helper
from tests.helpers.errors import Exactly, raises
from tests.helpers.models import Typed, conv, make, node
from tests.helpers.trt_bench import ORIN, Bench
from tests.helpers.trt_bundle import SHAPE, SPLIT, bench, engine, int8, model, trt_bundle
from tests.helpers.trt_double import Double

ON_DLA = dict.fromkeys(SPLIT, "dla0")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def library(version: str) -> Library:
    return library_of(Double(version))


def ordered(folder: Path, version: str, engine_name: str, *engines: dict[str, Any], **options: Any) -> list[EngineSpec]:
    with open_bundle(trt_bundle(folder / "dock.edgert", *engines, **options)) as bundle:
        bundle.extract(folder)
        file = load_pipeline(folder / "pipeline.yaml")
        source = BundleModel(folder, bundle.manifest, "parts", file.config.models["parts"])
        return list(engine_specs(source, engine_name, library(version)))


@pytest.mark.parametrize("version", ["8.6", "10.3", "11.4"])
def test_on_the_gpu_everyone_takes_the_qdq_form(folder: Path, version: str) -> None:
    (spec,) = ordered(folder, version, "tensorrt")
    assert spec.request.explicit and spec.request.precision == "int8" and spec.request.placement == {}
    assert not spec.request.calibration and spec.request.title == "dock: parts"
    assert spec.reference == folder / "models/parts/gpu.onnx"


def test_on_a_dla_the_weak_dialect_takes_the_float_model_and_the_cache(folder: Path) -> None:
    (spec,) = ordered(folder, "10.7", "tensorrt-dla")
    request = spec.request
    assert not request.explicit and request.precision == "int8" and request.fp16_nodes == ("relu",)
    assert request.calibration.startswith("TRT-100700-"), "the header is that of the TensorRT that reads it"
    assert dict(request.placement) == {"conv": "dla0"} and request.title == "dock: parts on dla0"
    assert spec.reference == folder / "models/parts/dla.onnx", "which computes what the cache says"


def test_on_a_dla_the_strong_dialect_takes_the_qdq_form_with_its_scales_on_the_dla(folder: Path) -> None:
    (spec,) = ordered(folder, "11.4", "tensorrt-dla", engine(ON_DLA))
    request = spec.request
    assert request.explicit and not request.calibration and not request.fp16_nodes
    assert set(request.placement) == set(request.nodes) and set(request.placement.values()) == {"dla0"}


def test_fp16_is_a_flag_or_stands_in_the_model(folder: Path) -> None:
    (weak,) = ordered(folder, "10.3", "tensorrt-dla", precision="fp16")
    assert weak.request.precision == "fp16" and not weak.request.calibration


def test_engines_that_get_no_frames_are_not_built(folder: Path) -> None:
    found = ordered(folder, "10.3", "tensorrt-dla", engine(ON_DLA, 1.0), engine(dict.fromkeys(SPLIT, "gpu"), 0.0))
    assert [spec.weight for spec in found] == [100]


def test_nothing_on_a_dla(folder: Path) -> None:
    with raises(PlacementError, "no node of model 'parts' was placed on a DLA", why="has it on gpu"):
        ordered(folder, "10.3", "tensorrt-dla", engine(dict.fromkeys(SPLIT, "gpu")))


def test_no_placement(folder: Path) -> None:
    with raises(PlacementError, "no node of model", why="no engines"):
        ordered(folder, "10.3", "tensorrt-dla", drop=("placement",))


def test_no_scales(folder: Path) -> None:
    with raises(BuildError, "has no scales for a DLA", where=Exactly("models.parts"), fix="calibrate:"):
        ordered(folder, "10.3", "tensorrt-dla", drop=("cache",))


@pytest.mark.parametrize(
    ("engine_name", "pools"),
    [
        ("tensorrt-dla", {"WORKSPACE": 1 << 26, "DLA_MANAGED_SRAM": 1 << 19, "DLA_LOCAL_DRAM": 1 << 28}),
        ("tensorrt", {"WORKSPACE": 1 << 26}),
    ],
)
def test_the_builder_is_told_what_the_pipeline_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, engine_name: str, pools: dict[str, int]
) -> None:
    """Pools of a DLA are told where one is used."""
    said = "{workspace: 64MiB, dla_sram: 512KiB, dla_local: 256MiB, optimization: 5"
    section = f"    tensorrt: {said}, version_compatible: true, sparse: true}}\n"
    text = trt_bundle_helper.PIPELINE.replace("stages:", f"{section}stages:")
    monkeypatch.setattr(trt_bundle_helper, "PIPELINE", text)
    (spec,) = ordered(folder, "10.3", engine_name)
    request = spec.request
    assert dict(request.pools.named_limits()) == pools
    assert (request.optimization_level, request.version_compatible) == (5, True)
    assert request.sparse


class TestSpread:
    def test_at_a_cut_the_rounding_stays_where_the_tensor_is_made(self) -> None:
        graph = read(int8("dla"))
        found = extend_placement(graph, {"conv": "dla0"})
        ops = {node.name: node for node in graph.nodes}
        relu = next(node for node in graph.nodes if node.op == "Relu")
        conv = next(node for node in graph.nodes if node.op == "Conv")
        feeding = [graph.producers[name] for name in conv.reads if name in graph.producers]
        assert feeding and all(found[node.name] == "dla0" for node in feeding)
        assert relu.name not in found and set(found) <= set(ops)

    def test_nodes_that_the_form_does_not_have_are_left_out(self) -> None:
        assert extend_placement(read(int8("gpu")), {"folded": "dla0"}) == {}

    def test_a_float_model_keeps_its_placement(self, folder: Path) -> None:
        ordered(folder, "10.3", "tensorrt")
        graph = read(load(folder / "models/parts/model.onnx"))
        assert extend_placement(graph, SPLIT) == SPLIT


def test_a_cache_names_what_the_model_has() -> None:
    graph = read(conv())
    cache = write_cache({"x": 0.5, "y": 0.25}, "10.3.0")
    assert check_cache(cache, [], graph) == "2 scales for TensorRT, 0 nodes in FP16"
    with pytest.raises(CalibrationError, match="names 'z'"):
        check_cache(write_cache({"z": 0.5}, "10.3.0"), [], graph)
    with pytest.raises(CalibrationError, match="names 'Conv_9'"):
        check_cache(cache, ["Conv_9"], graph)
    with pytest.raises(CalibrationError, match="not a TensorRT calibration cache"):
        check_cache("nonsense", [], graph)


FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
SCALE = float(np.float32(300 / 127))
"""Of the bundle's input."""
FIRST_ON_DLA = dict.fromkeys(("conv", "relu", "first", "other"), "dla0")


def graph(op: str = "Conv", kind: int = FLOAT, channels: int = 3, others: int = 0, **attributes: Any) -> Graph:
    """A network whose input is read by a node ``first``, and by ``other`` if there is to be one."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    weights = np.ones((channels, channels // attributes.get("group", 1), 1, 1), dtype)
    given = ["x", "w"] if op == "Conv" else ["x"]
    nodes = [node(op, given, ["y"], name="first", **attributes)]
    nodes += [node("Relu", ["x"], ["z"], name="other")] * others
    shape = (1, channels, 8, 8)
    ends = {"y": Typed(kind, shape)} | ({"z": Typed(kind, shape)} if others else {})
    return read(make(nodes, {"x": Typed(kind, shape)}, ends, {"w": weights} if op == "Conv" else {}))


def requested(given: Graph, config: InputConfig | None = None, **options: Any) -> InputLayout:
    settings = {"placement": FIRST_ON_DLA, "typed": False, "precision": "int8", "scales": {"x": 0.5}, **options}
    return input_layout(given, config or InputConfig(), **settings)


@pytest.mark.parametrize(
    ("given", "options", "wanted"),
    [
        (graph(), {}, Format("DLA_HWC4", "int8", 0.5, optional=True)),
        (graph(), {"fp16_nodes": ("first",)}, Format("DLA_HWC4", "float16", optional=True)),
        (graph(), {"precision": "fp16"}, Format("DLA_HWC4", "float16", optional=True)),
        (graph(), {"precision": "fp32"}, Format("DLA_HWC4", "float16", optional=True)),
        (graph("Relu"), {}, Format("CHW32", "int8", 0.5, optional=True)),
        (graph("Relu"), {"precision": "fp16"}, Format("CHW16", "float16", optional=True)),
        (graph(others=1), {}, Format("CHW32", "int8", 0.5, optional=True)),
        (graph(kind=HALF), {"typed": True}, Format("DLA_HWC4", optional=True)),
        (graph("Relu", HALF), {"typed": True}, Format("CHW16", optional=True)),
        (graph(kind=HALF), {"precision": "fp16"}, Format("DLA_HWC4", "float16", optional=True)),
    ],
)
def test_a_layout_of_the_dla(given: Graph, options: dict[str, Any], wanted: Format) -> None:
    found = requested(given, **options)
    assert found.format == wanted and "no kernel of the GPU changes it" in found.why


@pytest.mark.parametrize(
    ("given", "config", "options", "why"),
    [
        (graph(), {}, {"placement": {"first": "gpu"}}, "node 'first', which reads it, runs on the GPU"),
        (graph(others=1), {}, {"placement": {"first": "dla0"}}, "node 'other', which reads it, runs on the GPU"),
        (graph(others=1), {}, {"fp16_nodes": ("other",)}, "some nodes that read it compute in int8, others in float16"),
        (graph(), {}, {"scales": {}}, "it has no scale for int8"),
        (graph(kind=HALF), {}, {}, "the model takes float16"),
        (graph(), {}, {"typed": True}, "types are in the model, whose input is float32"),
        (graph("Cast", HALF, to=FLOAT), {}, {"typed": True}, "node 'first' changes its type first"),
        (graph(), {"color": "gray"}, {}, "not (N, 1, H, W)"),
        (graph(), {"layout": "nhwc"}, {}, "not (N, 3, H, W)"),
    ],
)
def test_plain_and_why(given: Graph, config: dict[str, Any], options: dict[str, Any], why: str) -> None:
    found = requested(given, InputConfig(**config), **options)
    assert found.format is None and why in found.why and found.describe({}) == f"input 'x' plain: {found.why}"


@pytest.mark.parametrize(("group", "wanted"), [(1, "DLA_HWC4"), (3, "DLA_HWC4")])
def test_one_channel_and_groups(group: int, wanted: str) -> None:
    config = InputConfig(color="gray" if group == 1 else "rgb")
    found = requested(graph(channels=group, group=group), config)
    assert found.format is not None and found.format.layout == wanted


def test_what_is_no_image() -> None:
    flat = read(make([node("Relu", ["x"], ["y"], name="first")], {"x": (1, 8)}, {"y": (1, 8)}))
    assert requested(flat).describe({}) == "inputs plain: the model takes something else than one image"


class TestFinished:
    """Bundles compiled on the recording double."""

    def done(self, folder: Path, on: Bench, **bundle: Any) -> tuple[Finished, list[str]]:
        settings: list[Progress] = []
        made = finish(
            trt_bundle(folder / "dock.edgert", **bundle),
            folder / "out.edgert",
            machine=ORIN,
            trt=on.backend,
            store=FileStore(folder / "store"),
            on_progress=settings.append,
        )
        return made, [one.detail for one in settings if one.state == "note"]

    @pytest.mark.parametrize("version", ["8.6", "10.3", "10.7"])
    def test_int8_is_asked_for_before_precision_and_placement(self, tmp_path: Path, version: str) -> None:
        on = bench(version)
        done, notes = self.done(tmp_path, on)
        calls = on.double.calls
        layout = 1 << int(on.double.TensorFormat.DLA_HWC4)
        at = calls.index(f"ITensor[x].allowed_formats = {layout}")
        assert calls[at + 1] == "ITensor[x].dtype = INT8" and at < calls.index("IBuilderConfig.set_flag(INT8)")
        assert not any(call.startswith("ITensor[y]") for call in calls) and done.engines == {"parts": "tensorrt-dla"}
        assert notes[0].startswith("input 'x' in DLA_HWC4 int8: convolution 'conv' on the DLA reads it")

    @pytest.mark.parametrize("version", ["8.6.2", "10.3.0"])
    def test_trtexec_is_told_the_same(self, tmp_path: Path, version: str) -> None:
        on = bench()
        self.done(tmp_path, on)
        options = command(on.requests[0], library_named(version), "parts").options
        assert "--inputIOFormats=int8:dla_hwc4" in options and not any("--outputIO" in one for one in options)

    def test_fp16(self, tmp_path: Path) -> None:
        on = bench()
        self.done(tmp_path, on, precision="fp16")
        assert on.requests[0].formats == {"x": Format("DLA_HWC4", "float16", optional=True)}
        assert "ITensor[x].dtype = HALF" in on.double.calls

    def test_where_types_stand_in_the_model_nothing_is_asked(self, tmp_path: Path) -> None:
        on = bench("11.4")
        _, notes = self.done(tmp_path, on)
        assert not any("allowed_formats" in call or call.startswith("ITensor[x].dtype") for call in on.double.calls)
        assert "types are in the model, whose input is float32" in notes[0]

    def test_what_is_fed_reaches_the_dla_in_steps(self, tmp_path: Path) -> None:
        """The engine reads (H, W, 4) int8 in rows of 64 bytes, and computes what the model does from it."""
        function, read_there = Function(model()), list[Any]()

        def compute(addresses: dict[str, int], shapes: dict[str, tuple[int, ...]]) -> None:
            steps = on.device.array(addresses["x"], "int8", (8, 64)).reshape(8, 16, 4)[:, :8, :3]
            image = np.ascontiguousarray(steps.transpose(2, 0, 1)[None], np.float32) * np.float32(SCALE)
            read_there.append(image)
            on.device.array(addresses["y"], "float32", SHAPE)[...] = function({"x": image})["y"]

        bound = {"x": (SHAPE, "INT8", "INPUT"), "y": (SHAPE, "FLOAT", "OUTPUT")}
        on = bench(bound=bound, compute=compute, strides={"x": (8 * 64, 1, 64, 4)})
        done, _ = self.done(tmp_path, on)
        with open_bundle(tmp_path / "out.edgert") as bundle:
            (report,) = compiled_engines(bundle)
        assert done.engines == {"parts": "tensorrt-dla"}
        config = ModelConfig.model_validate({"onnx": "model.onnx", "task": {"segment": "argmax"}})
        fed = next(iter(uniform_feeds(model(), config, 1)))["x"]
        tried, checked, *_ = read_there  # the first run only shows whether the DLA takes the layout
        assert not tried.any() and np.abs(checked - fed).max() <= SCALE / 2 + 1e-4 and fed.max() > 100 * SCALE
        assert report.checks.input.startswith("input 'x' in DLA_HWC4 int8")

    def test_the_record_keeps_what_was_built(self, tmp_path: Path) -> None:
        """So that an engine found again is fed as it was built."""
        on, again = bench(), bench()
        self.done(tmp_path, on)
        with open_bundle(tmp_path / "out.edgert") as bundle:
            (entry,) = (one for each in bundle.manifest.compiled.values() for one in each.engines["parts"])
            record = json.loads(bundle.read(entry.record))
        assert record["formats"] == {"x": {"layout": "DLA_HWC4", "dtype": "int8", "scale": SCALE, "optional": True}}
        found = again.backend.find_or_build(on.requests[0], FileStore(tmp_path / "store"))
        assert found.cached and found.request.formats == on.requests[0].formats and again.requests == []
