"""Double of TensorRT in a box, with the names of a version's binding, whose engines run in ONNX Runtime.

The package is installed as ``tensorrt``, beside :mod:`trt_double` and :mod:`trt_api` of the tests, which refuse every
name that the version has not. An engine is the version and the model it was made of; another version's is refused. It
says nothing about TensorRT's kernels, times or what a DLA can run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

from tensorrt.helpers import trt_double
from tensorrt.helpers.trt_double import Double, FakeLayer, FakeTensor, Script

VERSION, DLA_CORES = (Path(__file__).parent / "version").read_text().split()
_KINDS = {"Conv": "CONVOLUTION", "Relu": "ACTIVATION", "Sigmoid": "ACTIVATION", "Concat": "CONCATENATION"}
_TYPES = {1: "FLOAT", 2: "UINT8", 3: "INT8", 6: "INT32", 7: "INT64", 9: "BOOL", 10: "HALF"}
"""onnx.TensorProto.DataType → TensorRT's."""
_MAGIC = f"engine of the double of TensorRT {VERSION}\n".encode()

double = Double(VERSION, Script(dla_cores=int(DLA_CORES)))
__version__ = double.__version__
for _severity in ("INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE"):  # pybind11 shows them on the class, too
    setattr(double.Logger, _severity, _severity)


def __getattr__(name: str) -> Any:
    return getattr(double, name)


def _parse(of: Double, script: Script, parser: Any, content: bytes) -> bool:
    import onnx

    model = onnx.load_from_string(bytes(content))
    onnx.checker.check_model(model, full_check=False)
    graph = model.graph
    constants = {one.name for one in graph.initializer}
    script.inputs = [_tensor(one) for one in graph.input if one.name not in constants]
    script.outputs = [_tensor(one) for one in graph.output]
    script.layers = [
        FakeLayer(node.name, _KINDS.get(node.op_type, "ELEMENTWISE"), node.name, tuple(node.input), tuple(node.output))
        for node in graph.node
        if node.op_type != "Constant"
    ]
    script.plan = _MAGIC + bytes(content)
    return True


def _tensor(one: Any) -> FakeTensor:
    kind = one.type.tensor_type
    return FakeTensor(one.name, tuple(dim.dim_value or -1 for dim in kind.shape.dim), _TYPES[kind.elem_type])


def _build(of: Double, script: Script, builder: Any, network: Any, config: Any) -> bytes | None:
    placed = config._state.get("dla", set())
    runs = groupby(script.layers, key=lambda layer: layer.name in placed)
    lines: list[tuple[str, str]] = []
    for on_dla, found in runs:
        names = [layer.name for layer in found]
        node = f"{{ForeignNode[{names[0]}...{names[-1]}]}}" if len(names) > 1 else names[0]
        lines += [("INFO", f"[DlaLayer] {node}")] if on_dla else [("INFO", f"[GpuLayer] {name}") for name in names]
    script.lines = lines
    script.steps = (("Building the engine", None, 4),)
    return _own_build(of, script, builder, network, config)


def _set_device(of: Double, script: Script, config: Any, layer: Any, device: Any) -> None:
    if str(device) == "DLA":
        config._state.setdefault("dla", set()).add(layer._state["name"])


def _open(of: Double, script: Script, runtime: Any, plan: Any) -> Any:
    content = bytes(plan)
    if not content.startswith(_MAGIC):
        severity = trt_double.Enumeration(("INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE")).ERROR
        runtime._state["logger"].log(severity, "The engine plan file is not compatible with this version of TensorRT")
        return None
    return of.make("ICudaEngine", script=_running(content[len(_MAGIC) :]))


def _running(model: bytes) -> Script:
    """Return the properties of an engine, and the function that it computes."""
    import numpy as np
    import onnx
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1  # not one for each of the board's cores, which are more than there are
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")  # or an emulator waits for minutes
    session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    graph = onnx.load_from_string(model).graph
    names = {one.name for one in session.get_inputs()}
    inputs = [_tensor(one) for one in graph.input if one.name in names]
    outputs = [_tensor(one) for one in graph.output]
    bound = {
        one.name: (one.shape, one.dtype, mode)
        for mode, some in (("INPUT", inputs), ("OUTPUT", outputs))
        for one in some
    }
    dtypes = {one.name: onnx.helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type) for one in graph.input}

    def compute(addresses: dict[str, int], shapes: dict[str, tuple[int, ...]]) -> None:
        feeds = {}
        for one in inputs:
            shape, dtype = shapes.get(one.name) or one.shape, np.dtype(dtypes[one.name])
            size = int(np.prod(shape)) * dtype.itemsize
            memory = (ctypes.c_uint8 * size).from_address(addresses[one.name])
            feeds[one.name] = np.ctypeslib.as_array(memory).view(dtype).reshape(shape)
        for one, made in zip(outputs, session.run([one.name for one in outputs], feeds), strict=True):
            whole = np.ascontiguousarray(made)
            ctypes.memmove(addresses[one.name], whole.ctypes.data, whole.nbytes)

    return Script(bound=bound, compute=compute, dla_cores=int(DLA_CORES))


def _context(of: Double, script: Script, engine: Any, *settings: Any) -> Any:
    return of.make("IExecutionContext", addresses={}, shapes={}, script=script)


def _of_object(whole: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``whole`` with the script of its engine; the double in the tests has only one."""

    def answer(of: Double, script: Script, owner: Any, *further: Any) -> Any:
        of.calls.clear()  # it would grow with every frame
        return whole(of, owner._state.get("script", script), owner, *further)

    return answer


_own_build = trt_double.ANSWERS[("Builder", "build_serialized_network")]
trt_double.ANSWERS |= {
    ("OnnxParser", "parse"): _parse,
    ("Builder", "build_serialized_network"): _build,
    ("IBuilderConfig", "set_device_type"): _set_device,
    ("Runtime", "deserialize_cuda_engine"): _open,
    ("ICudaEngine", "create_execution_context"): _context,
}
trt_double.call, trt_double.property_of = _of_object(trt_double.call), _of_object(trt_double.property_of)
