"""Nodes that an engine may not have are named."""

from __future__ import annotations

import pytest

from edgert.backend.ort.runtime import open_session, session_settings
from edgert.errors import BuildError
from edgert.graph import Model, from_proto
from edgert.graph.inspection import unsupported_nodes
from tests.unit.graph.graphs import make_proto, node


def model(*kinds: tuple[str, str]) -> Model:
    """A chain of nodes n0, n1, …, each of (domain, operator)."""
    nodes = [node(op, [f"t{n}"], [f"t{n + 1}"], name=f"n{n}", domain=domain) for n, (domain, op) in enumerate(kinds)]
    proto = make_proto(nodes, {"t0": [1, 3]}, {f"t{len(kinds)}": [1, 3]})
    for domain in {domain for domain, _ in kinds if domain}:
        proto.opset_import.add(domain=domain, version=1)
    return from_proto(proto)


def test_standard_operators_and_those_of_onnx_runtime_are_not_named() -> None:
    assert unsupported_nodes(model(("", "Relu"), ("com.microsoft", "Gelu"), ("ai.onnx.ml", "Normalizer"))) == ""


def test_node_operator_and_opset_are_named() -> None:
    told = unsupported_nodes(model(("acme", "Funny"), ("", "Reluu")))
    assert (
        told == "node 'n0' is acme.Funny, outside the ONNX standard; node 'n1' is Reluu, which opset 17 does not have"
    )


def test_of_many_four_are_named() -> None:
    told = unsupported_nodes(model(*[("acme", "Funny")] * 6))
    assert told.count("acme.Funny") == 4 and told.endswith("; and 2 more")


def test_the_error_of_onnx_runtime_names_them() -> None:
    bad = model(("acme", "Funny"))
    with pytest.raises(BuildError, match="ONNX Runtime cannot run this model") as caught:
        open_session(bad.proto.SerializeToString(), session_settings(1), bad)
    assert caught.value.why == "node 'n0' is acme.Funny, outside the ONNX standard" and "edgert.op" in caught.value.fix
