"""Custom operators as TensorRT plugins, on the recording double, and the CUDA source of their kernels."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import edgert
from edgert.backend.base import Span
from edgert.backend.tensorrt import builder as steps, plugin as plugins
from edgert.backend.tensorrt.build_request import BuildRequest, request_of
from edgert.backend.tensorrt.builder import compile_engine
from edgert.backend.tensorrt.library import library_of
from edgert.custom_op import Operator, operator
from edgert.errors import BuildError, DeviceError
from edgert.memory.cuda.driver import LoadedModule
from edgert.memory.cuda.nvrtc import nvrtc
from tests.helpers.operators import EXAMPLE, network, only_here
from tests.helpers.trt_double import Double, FakeLayer, FakeTensor, Script

PLUGGED = ("10.3", "10.7", "10.13", "11.4")


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is gone after it; the example stays; no engine is opened here."""
    monkeypatch.setattr(steps, "_has_gpu", lambda: False)
    with only_here():
        yield


def mish() -> Operator:
    found = operator("demo", "HardMishLite")
    assert found is not None
    return found


class Port:
    """A tensor as a plugin sees it."""

    def __init__(self, trt: Any, dtype: str, dims: tuple[int, ...] = (1, 4, 2, 2), layout: str = "LINEAR") -> None:
        self.type, self.dims, self.format = getattr(trt.DataType, dtype), dims, getattr(trt.TensorFormat, layout)

    @property
    def desc(self) -> Port:
        return self


class Field:
    def __init__(self, name: str, data: Any) -> None:
        self.name, self.data = name, data


@pytest.mark.parametrize("version", PLUGGED)
def test_it_is_registered_once_by_its_domain_before_the_model_is_parsed(version: str) -> None:
    layer = FakeLayer("own0", "PLUGIN_V3", "own0", ("t0",), ("t1",))
    double = Double(version, Script((layer,), (FakeTensor("x"),), (FakeTensor("mean"),)))
    request = request_of(network())
    for _ in range(2):
        compile_engine(library_of(double), replace(request, model=b"onnx"), lambda record: None, lambda step: True)
    registered = [at for at, call in enumerate(double.calls) if call.startswith("IPluginRegistry.register_creator(")]
    assert len(registered) == 1 and "'demo'" in double.calls[registered[0]]
    assert registered[0] < double.calls.index("OnnxParser.parse(<4 bytes>)")


def test_the_request_names_the_file_and_the_node_its_plugin() -> None:
    from onnx import load_from_string

    request = request_of(network())
    assert request.operators == (str(EXAMPLE),)
    node = load_from_string(request.model).graph.node[1]
    reported = {item.name: item.s.decode() for item in node.attribute if item.s}
    assert reported == {"plugin_namespace": "demo", "plugin_version": "1"}


@pytest.mark.parametrize("version", ["8.6", "rtx-1.7"])
def test_a_tensorrt_without_python_plugins_refuses(version: str) -> None:
    with pytest.raises(BuildError, match="cannot run custom operators") as caught:
        compile_engine(library_of(Double(version)), request_of(network()), lambda record: None, lambda step: True)
    assert "TensorRT 10 or later" in caught.value.fix


def refused(**options: Any) -> BuildError:
    with pytest.raises(BuildError) as caught:
        request_of(network(("n", 3, "h", "w")) if "profiles" in options else network(), **options)
    return caught.value


def test_a_dla_never_takes_one() -> None:
    error = refused(placement={"own0": "dla0"})
    assert error.what == "node 'own0' cannot run on dla0" and "a DLA runs no plugins" in error.why


def test_without_a_kernel_there_is_no_plugin() -> None:
    @edgert.op("demo::Plain")
    def plain(x: np.ndarray, *, alpha: float = 0.0) -> np.ndarray:
        return x

    with pytest.raises(BuildError, match="TensorRT cannot run node 'own0'") as caught:
        request_of(network(ops=["Plain"]))
    assert caught.value.why == "demo::Plain has no CUDA kernel" and "cuda=SOURCE" in caught.value.fix


def test_a_rule_that_computes_needs_numbers() -> None:
    @edgert.op("demo::Same", shape=lambda x, **_: x, cuda="x")
    def same(x: np.ndarray, *, alpha: float = 0.0) -> np.ndarray:
        return x

    spans = {"x": Span((1, 3, 8, 8), (1, 3, 8, 8), (1, 3, 16, 16))}
    with pytest.raises(BuildError, match="node 'own0' cannot have inputs with open dimensions"):
        request_of(network(("n", 3, "h", "w"), ["Same"]), profiles=(spans,))
    assert isinstance(request_of(network(("n", 3, "h", "w")), profiles=(spans,)), BuildRequest)


@pytest.mark.parametrize("version", PLUGGED)
def test_a_plugin_reports_what_it_takes_and_gives(version: str) -> None:
    trt = Double(version)
    made = plugins.operator_plugin(trt, mish(), {"alpha": 0.25})
    assert (made.plugin_name, made.plugin_namespace, made.plugin_version, made.num_outputs) == (
        "HardMishLite",
        "demo",
        "1",
        1,
    )
    assert made.get_capability_interface(None) is made and made.clone() is not made
    assert made.get_output_data_types([trt.DataType.HALF]) == [trt.DataType.HALF]
    for dtypes, layout, fits in [
        (("FLOAT", "FLOAT"), "LINEAR", True),
        (("HALF", "HALF"), "LINEAR", True),
        (("HALF", "FLOAT"), "LINEAR", False),
        (("INT32", "INT32"), "LINEAR", False),
        (("FLOAT", "FLOAT"), "CHW32", False),
    ]:
        ports = [Port(trt, dtype, layout=layout) for dtype in dtypes]
        assert all(made.supports_format_combination(at, ports, 1) for at in range(2)) == fits, (dtypes, layout)


def test_attributes_come_from_the_node_and_go_into_the_engine() -> None:
    trt = Double("10.3")
    made = plugins.operator_creator(trt, mish()).create_plugin(
        "own0", [Field("alpha", np.array([0.25], np.float32)), Field("other", None)], 0
    )
    trt.calls.clear()
    made.get_fields_to_serialize()
    assert trt.calls[0] == "PluginField('alpha', array([0.25], dtype=float32), FLOAT32)"


class Driver:
    """libcuda, recording."""

    def __init__(self, code: int = 0) -> None:
        self.calls: list[tuple[str, Any]] = []
        self._code = code

    def __getattr__(self, name: str) -> Any:
        def function(*arguments: Any) -> int:
            if name == "cuGetErrorString":
                arguments[1]._obj.value = b"invalid image"
                return 0
            if name == "cuLaunchKernel":
                size = 8 * (2 * (1 + plugins.MAX_DIMENSIONS) + 2)
                (pointer,) = ctypes.cast(arguments[9], ctypes.POINTER(ctypes.c_void_p * 1)).contents
                self.calls.append((name, [*arguments[1:9], ctypes.string_at(pointer, size)]))
            else:
                self.calls.append((name, arguments))
            return self._code

        return function


def test_enqueue_launches_one_thread_for_each_element(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, trt = Driver(), Double("10.7")
    kernel = LoadedModule(driver, b"cubin").get_function(mish().function.__name__)
    monkeypatch.setattr(plugins, "_compile_kernel", lambda one, dtypes: kernel)
    made = plugins.operator_plugin(trt, mish(), {"alpha": 0.25})
    ports = [Port(trt, "FLOAT", (2, 3, 50))], [Port(trt, "FLOAT", (2, 3, 50))]
    made.enqueue(*ports, [4096], [8192], 0, 77)
    _, (*sizes, reported) = driver.calls[-1]
    assert sizes == [2, 1, 1, 256, 1, 1, 0, 77]
    first = struct.unpack_from(f"<Q{plugins.MAX_DIMENSIONS}q", reported)
    assert first == (4096, 2, 3, 50, 1, 1, 1, 1, 1)
    assert struct.unpack_from("<qd", reported, len(reported) - 16) == (300, 0.25)


def test_nothing_is_launched_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trt = Double("10.7")
    monkeypatch.setattr(plugins, "_compile_kernel", None)
    made = plugins.operator_plugin(trt, mish(), {"alpha": 0.25})
    made.enqueue([Port(trt, "FLOAT", (0, 3))], [Port(trt, "FLOAT", (0, 3))], [4096], [8192], 0, 77)


def test_a_kernel_that_is_not_for_this_gpu_is_named() -> None:
    with pytest.raises(DeviceError, match="cuModuleLoadData failed for kernel k") as caught:
        LoadedModule(Driver(209), b"cubin", "kernel k")
    assert caught.value.why == "invalid image"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_source_has_the_struct_that_is_packed(dtype: str) -> None:
    text = plugins.kernel_source(mish(), [dtype, dtype])
    kind = {"float32": "float", "float16": "half"}[dtype]
    assert f"    const {kind} *x; long long x_size[8];\n    {kind} *y; long long y_size[8];\n" in text
    assert "    long long count;\n    double alpha;\n};" in text and "hard_mish_lite(Arguments a)" in text
    packed, count = plugins.kernel_arguments(mish(), [1, 2], [(2, 3), (2, 3)], {"alpha": 0.5})
    assert count == 6 and len(packed) == 8 * (2 * 9 + 2)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_source_compiles(dtype: str) -> None:
    """No GPU is needed for that."""
    try:
        compiler = nvrtc()
    except DeviceError as error:
        pytest.skip(f"{error.what}: {error.fix}")
    source = plugins.kernel_source(mish(), [dtype, dtype])
    assert compiler.compile(source, "mish.cu", ["--gpu-architecture=sm_87"])[:4] == b"\x7fELF"
