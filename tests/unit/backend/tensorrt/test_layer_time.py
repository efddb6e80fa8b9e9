"""What each layer takes, by a recording TensorRT's profiler, and the nodes that it is reported for."""

import json
from collections.abc import Iterator, Sequence

import pytest

from edgert.backend.tensorrt import engine_layers, library, trt_engine
from tests.helpers.trt_api import EVERY
from tests.helpers.trt_device import FakeDevice
from tests.helpers.trt_double import Double, Script

FIXED: dict[str, tuple[tuple[int, ...], str, str]] = {
    "x": ((1, 3, 2, 2), "FLOAT", "INPUT"),
    "y": ((1, 3, 2, 2), "FLOAT", "OUTPUT"),
}
NODES = {name: (f"{name}:0",) for name in ("conv", "relu", "pool", "add", "out")}


class Wavering(Sequence[tuple[str, float]]):
    """Times that are others in every run: the second layer's 1, 2, 3 … ms."""

    def __init__(self) -> None:
        self.runs = 0

    def __iter__(self) -> Iterator[tuple[str, float]]:
        self.runs += 1
        return iter([("a", 0.25), ("b", float(self.runs)), ("a", 0.5)])

    def __getitem__(self, at: object) -> tuple[str, float]:  # type: ignore[override]
        raise NotImplementedError

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize("version", EVERY)
def test_the_median_of_every_layer_in_the_order_they_run(version: str) -> None:
    double = Double(version, Script(bound=FIXED, layer_ms=Wavering()))
    session = trt_engine.TrtEngine(b"plan", library.library_of(double), FakeDevice()).session()
    assert list(engine_layers.layer_times(session, runs=5).items()) == [("a", 0.75), ("b", 3.0)]
    at = double.calls.index("IExecutionContext.profiler = IProfiler")
    runs = [number for number, call in enumerate(double.calls) if "execute_async_v3" in call]
    assert len([number for number in runs if number < at]) == 3 and len([number for number in runs if number > at]) == 5


def layer(name: str, kind: str, *nodes: str) -> dict[str, object]:
    return {"Name": name, "LayerType": kind, "Metadata": "\x1e".join(f"[ONNX Layer: {node}]" for node in nodes)}


def test_nodes_of_layers() -> None:
    layers: list[dict[str, object]] = [
        layer("Reformatting CopyNode for Input Tensor 0", "Reformat"),
        layer("conv + relu", "CaskConvolution", "conv", "relu"),
        {"Name": "pool", "LayerType": "CaskPooling"},
        {"Name": "{ForeignNode[add...out]}", "LayerType": "DLA"},
        {"Name": "out to nvm", "LayerType": "DLA"},
    ]
    facts = engine_layers.engine_facts(json.dumps({"Layers": layers}))
    times = {"conv + relu": 2.0, "pool": 1.0, "{ForeignNode[add...out]}": 4.0, "out to nvm": 0.5, "new": 0.1}
    found = engine_layers.times_with_nodes(times, facts, NODES)
    assert [tuple(one.values()) for one in found] == [
        ("conv + relu", 2.0, ["conv", "relu"], "gpu", False),
        ("pool", 1.0, ["pool"], "gpu", False),
        ("{ForeignNode[add...out]}", 4.0, ["add", "out"], "dla", False),
        ("out to nvm", 0.5, [], "dla", True),
        ("new", 0.1, [], "", False),
    ]


def test_a_region_has_what_is_between_its_ends_and_nobody_claims() -> None:
    layers = [{"Name": "pool", "LayerType": "CaskPooling"}, {"Name": "{ForeignNode[conv...out]}", "LayerType": "DLA"}]
    facts = engine_layers.engine_facts(json.dumps({"Layers": layers}))
    (region,) = engine_layers.times_with_nodes({"{ForeignNode[conv...out]}": 1.0}, facts, NODES)
    assert region["nodes"] == ["conv", "relu", "add", "out"]
