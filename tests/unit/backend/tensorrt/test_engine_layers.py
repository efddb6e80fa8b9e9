"""The engine inspector's JSON, in the form that NVIDIA documents for detailed profiling verbosity."""

import json
from typing import Any

import pytest

from edgert.backend.tensorrt.engine_layers import accelerators, engine_facts, logged_facts
from edgert.errors import BuildError
from tests.helpers.trt_log import parse_log

NODES = {"a": ("t",), "b": ("u",), "c": ("v",), "d": ("w",), "e": ("y",)}


def layer(name: str, kind: str, nodes: str = "", **more: Any) -> dict[str, Any]:
    metadata = "\x1e".join(f"[ONNX Layer: {node}]" for node in nodes.split())
    return {"Name": name, "LayerType": kind, "Inputs": [], "Outputs": [], "Metadata": metadata, **more}


def text(*layers: Any) -> str:
    return json.dumps({"Layers": list(layers), "Bindings": ["x", "y"]})


DLA_ENGINE = text(
    layer("Reformatting CopyNode for Input Tensor 0 to {ForeignNode[a...c]}", "Reformat"),
    layer("x to nvm", "DLAReformat"),
    layer("{ForeignNode[a...c]}", "DLA", "a b c"),
    layer("v from nvm", "DLAReformat"),
    layer("v copy finish", "DLAReformat"),
    layer("d + e", "CaskConvolution", "d e"),
)


def test_where_layers_run() -> None:
    facts = engine_facts(DLA_ENGINE)
    assert accelerators(facts, NODES) == {"a": "dla", "b": "dla", "c": "dla", "d": "gpu", "e": "gpu"}
    assert (facts.reformats, facts.loadables, facts.detailed) == (1, 1, True)


def test_a_region_without_metadata_has_what_lies_between_and_is_not_claimed() -> None:
    facts = engine_facts(text(layer("{ForeignNode[a...d]}", "DLA"), layer("c", "CaskConvolution", "c")))
    assert accelerators(facts, NODES) == {"a": "dla", "b": "dla", "c": "gpu", "d": "dla"}


def test_myelin_regions_are_on_the_gpu() -> None:
    facts = engine_facts(text(layer("{ForeignNode[a...b]}", "Myelin", "a b")))
    assert accelerators(facts, NODES) == {"a": "gpu", "b": "gpu"} and facts.loadables == 0


def test_names_only() -> None:
    """Without detailed verbosity the engine lists names, and a region's accelerator is not known."""
    facts = engine_facts(text("a + b", "{ForeignNode[c...d]}", "PWN(e, z)"))
    assert not facts.detailed
    assert accelerators(facts, NODES) == {"a": "gpu", "b": "gpu", "c": "", "d": "", "e": "gpu"}


def test_the_log_stands_in() -> None:
    facts = logged_facts(
        parse_log("[I] [TRT] [DlaLayer] {ForeignNode[a...c]}\n[I] [TRT] [GpuLayer] POINTWISE: PWN(d, e)\n")
    )
    assert accelerators(facts, NODES) == {"a": "dla", "b": "dla", "c": "dla", "d": "gpu", "e": "gpu"}
    assert facts.loadables == 1


@pytest.mark.parametrize(
    "broken", ["", "[]", "{}", '{"Layers": 3}', '{"Layers": [3]}', '{"Layers": [{"LayerType": "x"}]}']
)
def test_what_cannot_be_read(broken: str) -> None:
    with pytest.raises(BuildError, match="cannot read the engine inspector"):
        engine_facts(broken)
