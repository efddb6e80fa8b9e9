"""A bundle with a real small model, for TensorRT: float, Q/DQ and calibration cache, placed on GPU and DLA."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from edgert.backend.ort import Function
from edgert.bundle.bundle import save_bundle
from edgert.bundle.manifest import ModelEntry
from edgert.compiler.finish import finish
from edgert.config import PipelineFile, load_pipeline
from edgert.graph import Model, TensorSpec, read, to_bytes, write
from edgert.quantization.lowering.lower import lower
from edgert.quantization.lowering.trt_form import write_cache
from edgert.quantization.scheme.scheme import scheme
from tests.helpers.bundles import manifest_of
from tests.helpers.models import make, node
from tests.helpers.trt_bench import ORIN, Bench
from tests.helpers.trt_double import FakeLayer

SHAPE = (1, 3, 8, 8)
CLOSE = {"relative_error": 0.01, "tolerance": 0.7}
SPLIT = {"conv": "dla0", "relu": "gpu"}
PIPELINE = """\
name: dock
models:
  parts:
    onnx: models/parts/model.onnx
    task: {segment: argmax}
    input: {resize: stretch}
stages:
  cam: {source: "synthetic:noise", size: 64x64, limit: 3}
  look: {infer: parts, from: cam}
  out: {sink: "null", from: look}
"""


def model() -> Model:
    weights = np.random.default_rng(0).normal(0, 0.3, (3, 3, 3, 3)).astype(np.float32)
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["y"], name="relu"),
    ]
    return make(nodes, {"x": SHAPE}, {"y": SHAPE}, {"w": weights})


def int8(target: str) -> Model:
    graph = read(model())
    return write(lower(graph, scheme(graph, target), lambda names: 300.0), model())  # type: ignore[arg-type]


def members(engines: list[dict[str, Any]], precision: str = "int8") -> dict[str, bytes]:
    scales = {"x": 300 / 127, "c": 300 / 127, "y": 300 / 127}
    found = {
        "pipeline.yaml": PIPELINE.encode(),
        "models/parts/model.onnx": to_bytes(model()),
        "models/parts/placement.json": json.dumps({"requested": "auto", "dla": None, "engines": engines}).encode(),
        "models/parts/quality.json": json.dumps({"forms": dict.fromkeys(("float", "gpu", "dla"), CLOSE)}).encode(),
    }
    if precision == "int8":
        found |= {
            "models/parts/gpu.onnx": to_bytes(int8("gpu")),
            "models/parts/dla.onnx": to_bytes(int8("dla")),
            "models/parts/calibration.cache": write_cache(scales, "10.3.0").encode(),
            "models/parts/fp16_nodes.json": json.dumps({"nodes": ["relu"], "layer_precisions": ""}).encode(),
        }
    return found


def engine(nodes: dict[str, str], share: float = 1.0) -> dict[str, Any]:
    return {"share": share, "accelerators": sorted(set(nodes.values())), "nodes": nodes, "predicted": {}}


def trt_bundle(
    path: Path,
    *engines: dict[str, Any],
    precision: str = "int8",
    drop: tuple[str, ...] = (),
    gpu: bytes = b"",
    **changes: Any,
) -> Path:
    """Writes the bundle; without the files and forms named in ``drop``, and with another form for GPUs if given."""
    content = members(list(engines or (engine(SPLIT),)), precision)
    if gpu:
        content["models/parts/gpu.onnx"] = gpu
    port = TensorSpec("x", SHAPE, "float32")
    kinds = {"cache": "calibration.cache", "fp16_nodes": "fp16_nodes.json"}
    kinds |= {name: f"{name}.json" for name in ("placement", "quality")}
    forms = {"float": "model.onnx", "gpu": "gpu.onnx", "dla": "dla.onnx"}
    here = {name: f"models/parts/{file}" for name, file in {**kinds, **forms}.items()}
    here = {name: file for name, file in here.items() if file in content and name not in drop}
    entry = ModelEntry(
        source="parts.onnx",
        digest="0" * 64,
        precision=precision,
        inputs=[port],
        outputs=[port],
        forms={name: file for name, file in here.items() if name in forms},
        files={name: file for name, file in here.items() if name in kinds},
    )
    named = {"pipeline.yaml", *here.values()}
    content = {file: data for file, data in content.items() if file in named}
    given = {"engines": ["tensorrt-dla", "tensorrt", "onnxruntime"], "sources": {}, "models": {"parts": entry}}
    save_bundle(path, manifest_of(content, **{**given, **changes}), content)
    return path


LAYERS = (
    FakeLayer("conv", "CONVOLUTION", "conv", ("x",), ("c",)),
    FakeLayer("relu", "ACTIVATION", "relu", ("c",), ("y",)),
)


def bench(version: str = "10.3", *, error: float = 0.0, **options: Any) -> Bench:
    """A backend whose engines compute what the model does, but for a relative error."""
    bound = {name: (SHAPE, "FLOAT", mode) for name, mode in (("x", "INPUT"), ("y", "OUTPUT"))}
    function = Function(model())

    def compute(addresses: dict[str, int], shapes: dict[str, tuple[int, ...]]) -> None:
        given = made.device.array(addresses["x"], "float32", SHAPE)
        made.device.array(addresses["y"], "float32", SHAPE)[...] = function({"x": given})["y"] * (1 + error)

    made = Bench(version, **{"bound": bound, "layers": LAYERS, "compute": compute, **options})
    return made


def finished(folder: Path, *engines: dict[str, Any], precision: str = "int8", **script: Any) -> Path:
    """The bundle as an Orin NX finished it."""
    path = folder / "out.edgert"
    made = trt_bundle(folder / "dock.edgert", *engines, precision=precision)
    finish(made, path, machine=ORIN, trt=bench(**script).backend)
    return path


def of_pipeline(folder: Path, text: str = PIPELINE) -> PipelineFile:
    """The pipeline of the small bundle, its model beside it."""
    (folder / "models/parts").mkdir(parents=True, exist_ok=True)
    (folder / "models/parts/model.onnx").write_bytes(to_bytes(model()))
    (folder / "p.yaml").write_text(text)
    return load_pipeline(folder / "p.yaml")
