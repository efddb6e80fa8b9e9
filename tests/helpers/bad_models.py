"""Twenty-odd ways in which a new model of the demo's detector is no good, and operators that misbehave."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.helpers.command import ROOT

GOOD = ROOT / "pipelines" / "assets" / "parts.onnx"
OPERATORS = '''\
"""Operators that misbehave from some call of a process on; the first ones of each process are in order."""
import os, time
import edgert

CALLS = {}

def called(name):
    CALLS[name] = CALLS.get(name, 0) + 1
    return CALLS[name]

@edgert.op("bad::Crash")
def crash(x):
    os.abort()

@edgert.op("bad::Hang")
def hang(x):
    time.sleep(60)
    return x

@edgert.op("bad::Fails")
def fails(x):
    raise ValueError("no")

@edgert.op("bad::FailsLater")
def fails_later(x):
    if called("fails") > 30:
        raise ValueError("no more")
    return x

@edgert.op("bad::HangsLater")
def hangs_later(x):
    if called("hangs") == 12:
        time.sleep(8)
    return x

@edgert.op("bad::Slow")
def slow(x):
    time.sleep(0.12)
    return x

@edgert.op("bad::NanLater")
def nan_later(x):
    return x * float("nan") if called("nan") > 12 else x

@edgert.op("bad::SlowLater")
def slow_later(x):
    if called("slow") > 12:
        time.sleep(0.12)
    return x
'''
Change = Callable[[onnx.ModelProto], None]


def behind(nodes: Sequence[onnx.NodeProto], **weights: object) -> Change:
    def change(proto: onnx.ModelProto) -> None:
        graph = proto.graph
        for node in graph.node:
            node.output[:] = ["raw" if one == "rows" else one for one in node.output]
        graph.node.extend(nodes)
        graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items())

    return change


def operator(name: str) -> Change:
    def change(proto: onnx.ModelProto) -> None:
        behind([helper.make_node(name, ["raw"], ["rows"], domain="bad")])(proto)
        proto.opset_import.append(helper.make_opsetid("bad", 1))

    return change


def times(*factors: float, plus: Sequence[float] = (0.0,)) -> Change:
    nodes = [helper.make_node("Mul", ["raw", "by"], ["more"]), helper.make_node("Add", ["more", "plus"], ["rows"])]
    return behind(nodes, by=np.array(factors, np.float32), plus=np.array(plus, np.float32))


def _resized(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.shape.dim[3].dim_value = 352


def _of_bytes(proto: onnx.ModelProto) -> None:
    graph = proto.graph
    graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    for node in graph.node:
        node.input[:] = ["real" if one == "images" else one for one in node.input]
    graph.node.insert(0, helper.make_node("Cast", ["images"], ["real"], to=TensorProto.FLOAT))


def _with_prompt(proto: onnx.ModelProto) -> None:
    proto.graph.input.append(helper.make_tensor_value_info("prompt", TensorProto.FLOAT, (1, 8)))


def _noisy(proto: onnx.ModelProto) -> None:
    random = np.random.default_rng(0)
    for tensor in proto.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.ndim == 4:
            noise = array.std() * random.standard_normal(array.shape)
            tensor.CopyFrom(numpy_helper.from_array((array + noise).astype(np.float32), tensor.name))


def _blind(proto: onnx.ModelProto) -> None:
    """Sees an image upside down: a wrong preprocessing."""
    graph = proto.graph
    for node in graph.node:
        node.input[:] = ["seen" if one == "images" else one for one in node.input]
    ends = {"starts": [-1], "ends": [-(2**31)], "axes": [2], "steps": [-1]}
    graph.initializer.extend(numpy_helper.from_array(np.array(value, np.int64), name) for name, value in ends.items())
    graph.node.insert(0, helper.make_node("Slice", ["images", *ends], ["seen"]))


def _huge(proto: onnx.ModelProto) -> None:
    shape = np.array([1, 300_000, 300_000], np.int64)
    nodes = [
        helper.make_node("ReduceMean", ["raw"], ["few"], keepdims=1),
        helper.make_node("Mul", ["few", "nothing"], ["one"]),
        helper.make_node("Expand", ["one", "huge"], ["large"]),
        helper.make_node("ReduceMax", ["large"], ["most"], keepdims=0),
        helper.make_node("Add", ["raw", "most"], ["rows"]),
    ]
    behind(nodes, huge=shape, nothing=np.float32(0))(proto)


def _fewer_classes(proto: onnx.ModelProto) -> None:
    ends = {"starts": np.array([0], np.int64), "ends": np.array([9], np.int64), "axes": np.array([2], np.int64)}
    behind([helper.make_node("Slice", ["raw", *ends], ["rows"])], **ends)(proto)
    proto.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 9


_ROLLED = np.array([0, 1, 2, 3, 4, 6, 7, 8, 9, 5], np.int64)
BAD: dict[str, Change] = {
    "other size": _resized,
    "input of bytes": _of_bytes,
    "a second input": _with_prompt,
    "unknown operator": behind([helper.make_node("Frobnicate", ["raw"], ["rows"])]),
    "fewer classes": _fewer_classes,
    "not a number": times(float("nan")),
    "infinite": times(float("inf")),
    "wrong classes": behind([helper.make_node("Gather", ["raw", "at"], ["rows"], axis=2)], at=_ROLLED),
    "finds nothing": times(1, 1, 1, 1, 0, 1, 1, 1, 1, 1),
    "finds everything": times(1, 1, 1, 1, 0, 0, 0, 0, 0, 0, plus=[0] * 4 + [1] * 6),
    "boxes elsewhere": times(1.0, plus=[9, 9] + [0] * 8),
    "boxes too large": times(1.0, plus=[0, 0, 1, 1] + [0] * 6),
    "random": behind(
        [helper.make_node("RandomUniformLike", ["raw"], ["noise"]), helper.make_node("Mul", ["raw", "noise"], ["rows"])]
    ),
    "bad weights": _noisy,
    "image upside down": _blind,
    "out of memory": _huge,
    "crashing operator": operator("Crash"),
    "failing operator": operator("Fails"),
    "operator that hangs": operator("Hang"),
    "operator that fails later": operator("FailsLater"),
    "operator that hangs later": operator("HangsLater"),
    "slower": operator("Slow"),
}
"""Kind → what is done to the good model. Two more are files: none, and one that is cut off."""
LATER: dict[str, Change] = {
    "fails": operator("FailsLater"),
    "not a number": operator("NanLater"),
    "slow": operator("SlowLater"),
    "hangs": operator("HangsLater"),
}
"""Models that become bad after they took over."""


def written(path: Path, change: Change) -> Path:
    proto = onnx.load(str(GOOD))
    change(proto)
    path.write_bytes(proto.SerializeToString())
    return path
