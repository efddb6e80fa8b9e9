"""Custom operators as TensorRT plugins of IPluginV3, which releases from 10.0 on have.

The decorators of ``tensorrt.plugin`` exist only since 10.7, and JetPack 6 has 10.3. Only they support kernels inside an
engine (``aot_impl``), which have another form: docs/operators.md. TensorRT calls a plugin's methods during the build,
and ``enqueue`` in every run of the engine.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from edgert.backend.tensorrt import library as api
from edgert.backend.tensorrt.build_request import DTYPES, NUMPY_NAMES, BuildRequest
from edgert.board.devices import cuda_driver
from edgert.custom_op import Operator, operators
from edgert.errors import DeviceError
from edgert.memory.cuda.driver import LoadedFunction, LoadedModule, load_driver, with_python_lock

# The CUDA source of an operator, to which the struct of its kernel's arguments and functions for values are added:
#
# struct Arguments {
#     const float *x; long long x_size[8];  // address and sizes of every input
#     float *y; long long y_size[8];        // and of every output
#     long long count;                      // number of elements of the first output, with a thread for each
#     double alpha;                         // attributes: double or long long
# };
# float load(a.x, i); void store(a.y, i, float);  // for every type, including float16
#
# All members have eight bytes, so there is no padding.

_THREADS = 256
"""Number of threads in a block of a kernel."""
MAX_DIMENSIONS = 8
"""Maximum number of dimensions of a TensorRT tensor: Dims::MAX_DIMS."""
_TYPES = {
    "float32": "float",
    "float16": "half",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int32": "int",
    "int64": "long long",
    "bool": "bool",
}
_ACCESS = """
struct half { unsigned short bits; };
template <class T> __device__ float load(const T *p, long long i) { return (float)p[i]; }
template <class T> __device__ void store(T *p, long long i, float v) { p[i] = (T)v; }
__device__ inline float load(const half *p, long long i)
{
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(p[i].bits));
    return wide;
}
__device__ inline void store(half *p, long long i, float v)
{
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(p[i].bits) : "f"(v));
}
"""


def kernel_source(operator: Operator, dtypes: Sequence[str]) -> str:
    """Return CUDA C for tensors of these types, inputs first."""
    names = (*operator.inputs, *operator.outputs)
    lines = ["struct Arguments {"]
    for name, dtype in zip(names, dtypes, strict=True):
        const = "const " if name in operator.inputs else ""
        lines.append(f"    {const}{_TYPES[dtype]} *{name}; long long {name}_size[{MAX_DIMENSIONS}];")
    lines.append("    long long count;")
    lines += [f"    {kind} {name};" for name, kind in _attribute_types(operator).items()]
    return "\n".join([_ACCESS.strip(), *lines, "};", operator.cuda.strip(), ""])


def kernel_arguments(
    operator: Operator, addresses: Sequence[int], shapes: Sequence[Sequence[int]], settings: Mapping[str, Any]
) -> tuple[bytes, int]:
    """Return the struct for one launch, and its number of threads."""
    packed = b""
    for address, shape in zip(addresses, shapes, strict=True):
        sizes = [*shape, *[1] * (MAX_DIMENSIONS - len(shape))]
        packed += struct.pack(f"<Q{MAX_DIMENSIONS}q", address, *sizes)
    count = math.prod(shapes[len(operator.inputs)])
    packed += struct.pack("<q", count)
    for name, kind in _attribute_types(operator).items():
        packed += struct.pack("<d" if kind == "double" else "<q", settings[name])
    return packed, count


def _attribute_types(operator: Operator) -> dict[str, str]:
    """Return the C types of a kernel's attributes, by name; strings are for the Python function only."""
    numbers = {name: default for name, default in operator.attributes.items() if not isinstance(default, str)}
    return {name: "double" if isinstance(value, float) else "long long" for name, value in numbers.items()}


VERSION = "1"
_FIRST = (10, 0)
_CREATORS: dict[tuple[int, str], Any] = {}
"""Creators registered with TensorRT by (module, operator), as TensorRT does not keep them alive."""


def supports_plugins(library: api.Library) -> bool:
    """Return whether this TensorRT supports plugins in Python: from 10.0 on, and never TensorRT-RTX."""
    return library.kind != "rtx" and api.release_of(library.version) >= _FIRST


def check_plugins(request: BuildRequest, library: api.Library) -> None:
    """Raise BuildError for custom operators if this TensorRT does not support plugins in Python."""
    if request.operators and not supports_plugins(library):
        raise request.refusal(
            f"{library.title} cannot run custom operators",
            f"it does not support plugins in Python, which those of {', '.join(request.operators)} are",
            "use TensorRT 10 or later (JetPack 6.1 and later), or backend: ort",
        )


def register_operators(trt: api.Trt) -> None:
    """Register every operator with a kernel in TensorRT, by its domain, once.

    Call it before a model with custom operators is parsed, and before its engine is opened.
    """
    for operator in operators():
        key = id(trt), str(operator)
        if operator.cuda and key not in _CREATORS:
            creator = operator_creator(trt, operator)
            registry: api.IPluginRegistry = trt.get_plugin_registry()
            registry.register_creator(creator, operator.domain)
            _CREATORS[key] = creator


def operator_creator(trt: api.Trt, operator: Operator) -> Any:
    """Return the creator of an operator's plugins, from attributes of a node or of an engine."""

    class OperatorCreator(trt.IPluginCreatorV3One):  # type: ignore[misc]
        """Plugin creator of one operator. It calls its base by name, as pybind11 does not support ``super``."""

        def __init__(self) -> None:
            trt.IPluginCreatorV3One.__init__(self)
            self.name, self.plugin_namespace, self.plugin_version = operator.name, operator.domain, VERSION
            self.field_names = trt.PluginFieldCollection(_plugin_fields(trt, operator.attributes))

        def create_plugin(self, name: str, fields: Any, phase: Any) -> Any:
            return operator_plugin(trt, operator, {**operator.attributes, **_field_values(fields, operator.attributes)})

    return OperatorCreator()


class _StreamNumber(NamedTuple):
    """Stream that TensorRT names by its number, which PyCUDA does not accept."""

    handle: int


class _OneKernel:
    """Methods of a plugin with one kernel, which needs no scratch memory, and whose sizes are arguments of a launch."""

    def configure_plugin(self, inputs: Any, outputs: Any) -> None:
        """Do nothing."""

    def on_shape_change(self, inputs: Any, outputs: Any) -> None:
        """Do nothing."""

    def get_valid_tactics(self) -> list[int]:
        return []

    def set_tactic(self, tactic: int) -> None:
        """Do nothing."""

    def get_workspace_size(self, inputs: Any, outputs: Any) -> int:
        return 0


def operator_plugin(trt: api.Trt, operator: Operator, settings: Mapping[str, Any]) -> Any:
    """Return a plugin for one node, whose attributes are ``settings``."""

    bases: Any = (_OneKernel, trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime)

    class OperatorPlugin(*bases):  # type: ignore[misc]
        """Plugin of the node, during the build and at run time."""

        def __init__(self) -> None:
            trt.IPluginV3.__init__(self)
            trt.IPluginV3OneCore.__init__(self)
            trt.IPluginV3OneBuild.__init__(self)
            trt.IPluginV3OneRuntime.__init__(self)
            self.plugin_name, self.plugin_namespace, self.plugin_version = operator.name, operator.domain, VERSION
            self.num_outputs = len(operator.outputs)

        def get_capability_interface(self, kind: Any) -> Any:
            return self

        def clone(self) -> Any:
            return operator_plugin(trt, operator, settings)

        def get_output_data_types(self, types: Sequence[Any]) -> list[Any]:
            dtypes = operator.result_dtypes([NUMPY_NAMES[kind.name] for kind in types], operator.name)
            return [getattr(trt.DataType, _trt_dtype(dtype)) for dtype in dtypes]

        def get_output_shapes(self, inputs: Sequence[Any], shape_inputs: Any, builder: api.IExprBuilder) -> list[Any]:
            if operator.shape is None:
                return [trt.DimsExprs(inputs[0]) for _ in operator.outputs]
            sizes = [tuple(int(dim.get_constant_value()) for dim in dims) for dims in inputs]
            shapes = []
            for shape in operator.shapes(sizes, settings):
                shapes.append(trt.DimsExprs(len(shape)))
                for dim, size in enumerate(shape):
                    shapes[-1][dim] = builder.constant(size)
            return shapes

        def supports_format_combination(self, position: int, ports: Sequence[Any], inputs: int) -> bool:
            port: api.DynamicPluginTensorDesc = ports[position]
            desc: api.PluginTensorDesc = port.desc
            if desc.format != trt.TensorFormat.LINEAR:
                return False
            if position < inputs:
                supported = [_trt_dtype(dtype) for dtype in operator.dtypes] if position == 0 else list(NUMPY_NAMES)
            else:  # the types of the inputs are decided
                dtypes = operator.result_dtypes(_port_dtypes(ports[:inputs]), operator.name)
                supported = [_trt_dtype(dtypes[position - inputs])]
            return desc.type.name in supported

        def get_fields_to_serialize(self) -> Any:
            return trt.PluginFieldCollection(_plugin_fields(trt, settings))

        def attach_to_context(self, context: Any) -> Any:
            return self.clone()

        def enqueue(
            self,
            inputs: Sequence[Any],
            outputs: Sequence[Any],
            input_addresses: Sequence[int],
            output_addresses: Sequence[int],
            workspace: Any,
            stream: int,
        ) -> None:
            dtypes, shapes = [], []
            for port in (*inputs, *outputs):
                desc: api.PluginTensorDesc = port
                dtypes.append(NUMPY_NAMES[desc.type.name])
                shapes.append(tuple(desc.dims))
            packed, count = kernel_arguments(operator, [*input_addresses, *output_addresses], shapes, settings)
            if count:
                grid, block = (-(-count // _THREADS), 1, 1), (_THREADS, 1, 1)
                kernel = _compile_kernel(operator, tuple(dtypes))
                kernel.prepared_async_call(grid, block, _StreamNumber(stream), packed)

    return OperatorPlugin()


def _plugin_fields(trt: api.Trt, settings: Mapping[str, Any]) -> list[Any]:
    """Return a field for each attribute, of the types that the ONNX parser uses for attributes."""
    fields, kinds = [], trt.PluginFieldType
    for name, value in settings.items():
        if isinstance(value, str):
            fields.append(trt.PluginField(name, value.encode(), kinds.CHAR))
        elif isinstance(value, float):
            fields.append(trt.PluginField(name, np.array([value], np.float32), kinds.FLOAT32))
        else:
            fields.append(trt.PluginField(name, np.array([value], np.int32), kinds.INT32))
    return fields


def _field_values(fields: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of fields by name, converted to the types of the operator's defaults."""
    values: dict[str, Any] = {}
    for one in fields:
        field: api.PluginField = one
        if field.name not in defaults or field.data is None:
            continue
        default = defaults[field.name]
        if isinstance(default, str):
            values[field.name] = bytes(field.data).decode()
        else:
            values[field.name] = type(default)(np.asarray(field.data).reshape(-1)[0])
    return values


def _trt_dtype(dtype: str) -> str:
    return DTYPES.get(dtype, "INT64")


def _port_dtypes(ports: Sequence[Any]) -> list[str]:
    """Return NumPy's names of the types of tensors whose shapes may be open."""
    dtypes = []
    for one in ports:
        port: api.DynamicPluginTensorDesc = one
        desc: api.PluginTensorDesc = port.desc
        dtypes.append(NUMPY_NAMES[desc.type.name])
    return dtypes


@lru_cache(maxsize=64)
def _compile_kernel(operator: Operator, dtypes: tuple[str, ...]) -> LoadedFunction:
    """Return the kernel, compiled for this machine's GPU. Raises BuildError with the compiler's log, or DeviceError."""
    from edgert.memory.cuda.nvrtc import nvrtc

    driver = cuda_driver()
    if driver is None or not driver.gpus:
        raise DeviceError(f"{operator} cannot run here", why="there is no GPU")
    architecture = driver.gpus[0].compute.replace(".", "")
    options = [f"--gpu-architecture=sm_{architecture}"]
    name, major = operator.function.__name__, driver.version.partition(".")[0]
    compiler = nvrtc(int(major) if major else None)
    binary = compiler.compile(kernel_source(operator, dtypes), f"{operator}.cu", options)
    return LoadedModule(with_python_lock(load_driver()), binary, f"kernel {name}").get_function(name)
