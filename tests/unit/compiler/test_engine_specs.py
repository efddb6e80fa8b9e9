"""What a bundle asks of each dialect of TensorRT, and what the weakly typed form promises."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgert.backend.tensorrt.library import Library, library_of
from edgert.bundle.bundle import open_bundle
from edgert.compiler.engine_specs import BundleModel, EngineSpec, engine_specs, extend_placement
from edgert.config import load_pipeline
from edgert.errors import BuildError, CalibrationError, PlacementError
from edgert.graph import load, read
from edgert.quantization.lowering.trt_form import check_cache, write_cache
from tests.helpers import trt_bundle as trt_bundle_helper
from tests.helpers.models import conv
from tests.helpers.trt_bundle import SPLIT, engine, int8, trt_bundle
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
    with pytest.raises(PlacementError, match="no node of model 'parts' was placed on a DLA") as caught:
        ordered(folder, "10.3", "tensorrt-dla", engine(dict.fromkeys(SPLIT, "gpu")))
    assert "has it on gpu" in caught.value.why


def test_no_placement(folder: Path) -> None:
    with pytest.raises(PlacementError, match="no node of model") as caught:
        ordered(folder, "10.3", "tensorrt-dla", drop=("placement",))
    assert "no engines" in caught.value.why


def test_no_scales(folder: Path) -> None:
    with pytest.raises(BuildError, match="has no scales for a DLA") as caught:
        ordered(folder, "10.3", "tensorrt-dla", drop=("cache",))
    assert "calibrate:" in caught.value.fix and caught.value.where == "models.parts"


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
