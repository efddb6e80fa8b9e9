"""Custom operators as TensorRT plugins: IPluginV3, which every release has from 10.0 on, 11 included.

The decorators of ``tensorrt.plugin``, which came with 10.7, are another way to write what this class is; it serves all
releases, those of JetPack 6 (10.3) among them. What only they can do, kernels inside the engine (``aot_impl``), wants
kernels of another form: docs/operators.md. TensorRT calls these methods while it builds, and ``enqueue`` whenever
the engine runs.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from edgert.backend.tensorrt import library as api
from edgert.backend.tensorrt.build_request import DTYPES, NUMPY_NAMES, BuildRequest
from edgert.board.devices import cuda_driver
from edgert.custom_op import Operator, operators
from edgert.errors import DeviceError
from edgert.memory.cuda.nvrtc import DriverKernel

# The CUDA source of an operator made whole: the struct that its kernel takes, and how a value is read and written.
#
# struct Arguments { const float *x; long long x_size[8]; for every input and output: where it is, and its sizes
# float *y; long long y_size[8]; long long count; elements of the first output: one thread for each double alpha;
# attributes: double or long long }; load(a.x, i) → float store(a.y, i, float) of any type, float16 included
#
# Everything in it takes eight bytes, so that there is no padding.

MOST_DIMENSIONS = 8
"""Most dimensions of a TensorRT tensor: Dims::MAX_DIMS."""
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


def source(one: Operator, dtypes: Sequence[str]) -> str:
    """Return CUDA C for tensors of these types, inputs first."""
    names = (*one.inputs, *one.outputs)
    lines = ["struct Arguments {"]
    for name, dtype in zip(names, dtypes, strict=True):
        const = "const " if name in one.inputs else ""
        lines.append(f"    {const}{_TYPES[dtype]} *{name}; long long {name}_size[{MOST_DIMENSIONS}];")
    lines.append("    long long count;")
    lines += [f"    {kind} {name};" for name, kind in _numbers(one).items()]
    return "\n".join([_ACCESS.strip(), *lines, "};", one.cuda.strip(), ""])


def arguments(
    one: Operator, addresses: Sequence[int], shapes: Sequence[Sequence[int]], settings: Mapping[str, Any]
) -> tuple[bytes, int]:
    """Return the struct for one launch, and how many threads it needs."""
    packed = b""
    for address, shape in zip(addresses, shapes, strict=True):
        sizes = [*shape, *[1] * (MOST_DIMENSIONS - len(shape))]
        packed += struct.pack(f"<Q{MOST_DIMENSIONS}q", address, *sizes)
    count = math.prod(shapes[len(one.inputs)])
    packed += struct.pack("<q", count)
    for name, kind in _numbers(one).items():
        packed += struct.pack("<d" if kind == "double" else "<q", settings[name])
    return packed, count


def _numbers(one: Operator) -> dict[str, str]:
    """Return attributes that a kernel gets, with their C types; texts are for the function only."""
    found = {name: default for name, default in one.attributes.items() if not isinstance(default, str)}
    return {name: "double" if isinstance(value, float) else "long long" for name, value in found.items()}


VERSION = "1"
_FIRST = (10, 0)
_CREATORS: dict[tuple[int, str], Any] = {}
"""Creators registered with TensorRT, which does not keep them alive: (module, operator) → its creator."""


def can_plug(library: api.Library) -> bool:
    """Return whether this TensorRT has plugins written in Python: from 10.0, and never TensorRT-RTX."""
    return library.kind != "rtx" and api.release_of(library.version) >= _FIRST


def check_plugins(request: BuildRequest, library: api.Library) -> None:
    """Raise BuildError for custom operators where there are no such plugins."""
    if request.operators and not can_plug(library):
        raise request.refusal(
            f"{library.title} cannot run custom operators",
            f"it takes no plugins written in Python; asked for those of {', '.join(request.operators)}",
            "TensorRT 10 or later (JetPack 6.1 and later), or backend: ort",
        )


def register_operators(trt: api.Trt) -> None:
    """Register every operator with a kernel in TensorRT, by its domain, once.

    Call it before parsing, and before opening an engine that has one.
    """
    for one in operators():
        key = id(trt), str(one)
        if one.cuda and key not in _CREATORS:
            creator = creator_of(trt, one)
            registry: api.IPluginRegistry = trt.get_plugin_registry()
            registry.register_creator(creator, one.domain)
            _CREATORS[key] = creator


def creator_of(trt: api.Trt, one: Operator) -> Any:
    """Return the factory of an operator's plugins, from a node's attributes or from an engine's."""

    class OperatorCreator(trt.IPluginCreatorV3One):  # type: ignore[misc]
        """Plugin creator of one operator. It names its base because pybind11 does not follow ``super``."""

        def __init__(self) -> None:
            trt.IPluginCreatorV3One.__init__(self)
            self.name, self.plugin_namespace, self.plugin_version = one.name, one.domain, VERSION
            self.field_names = trt.PluginFieldCollection(_fields(trt, one.attributes))

        def create_plugin(self, name: str, fields: Any, phase: Any) -> Any:
            return plugin_of(trt, one, {**one.attributes, **_values(fields, one.attributes)})

    return OperatorCreator()


class _OneKernel:
    """Methods of a plugin with one kernel, which needs no scratch memory and gets its sizes at every launch."""

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


def plugin_of(trt: api.Trt, one: Operator, settings: Mapping[str, Any]) -> Any:
    """Return a plugin for one node."""

    bases: Any = (_OneKernel, trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime)

    class OperatorPlugin(*bases):  # type: ignore[misc]
        """The node's plugin, during the build and at run time."""

        def __init__(self) -> None:
            trt.IPluginV3.__init__(self)
            trt.IPluginV3OneCore.__init__(self)
            trt.IPluginV3OneBuild.__init__(self)
            trt.IPluginV3OneRuntime.__init__(self)
            self.plugin_name, self.plugin_namespace, self.plugin_version = one.name, one.domain, VERSION
            self.num_outputs = len(one.outputs)

        def get_capability_interface(self, kind: Any) -> Any:
            return self

        def clone(self) -> Any:
            return plugin_of(trt, one, settings)

        def get_output_data_types(self, types: Sequence[Any]) -> list[Any]:
            dtypes = one.result_dtypes([NUMPY_NAMES[kind.name] for kind in types], one.name)
            return [getattr(trt.DataType, _vendor_name(dtype)) for dtype in dtypes]

        def get_output_shapes(self, inputs: Sequence[Any], shape_inputs: Any, builder: api.IExprBuilder) -> list[Any]:
            if one.shape is None:
                return [trt.DimsExprs(inputs[0]) for _ in one.outputs]
            sizes = [tuple(int(dim.get_constant_value()) for dim in dims) for dims in inputs]
            found = []
            for shape in one.shapes(sizes, settings):
                found.append(trt.DimsExprs(len(shape)))
                for place, size in enumerate(shape):
                    found[-1][place] = builder.constant(size)
            return found

        def supports_format_combination(self, place: int, ports: Sequence[Any], inputs: int) -> bool:
            port: api.DynamicPluginTensorDesc = ports[place]
            desc: api.PluginTensorDesc = port.desc
            if desc.format != trt.TensorFormat.LINEAR:
                return False
            if place < inputs:  # those before it are decided
                known = [_vendor_name(dtype) for dtype in one.dtypes] if place == 0 else list(NUMPY_NAMES)
            else:
                known = [_vendor_name(one.result_dtypes(_dtypes(ports[:inputs]), one.name)[place - inputs])]
            return desc.type.name in known

        def get_fields_to_serialize(self) -> Any:
            return trt.PluginFieldCollection(_fields(trt, settings))

        def attach_to_context(self, context: Any) -> Any:
            return self.clone()

        def enqueue(
            self,
            inputs: Sequence[Any],
            outputs: Sequence[Any],
            given: Sequence[int],
            made: Sequence[int],
            workspace: Any,
            stream: int,
        ) -> None:
            dtypes, shapes = [], []
            for port in (*inputs, *outputs):
                desc: api.PluginTensorDesc = port
                dtypes.append(NUMPY_NAMES[desc.type.name])
                shapes.append(tuple(desc.dims))
            argument, count = arguments(one, [*given, *made], shapes, settings)
            _kernel(one, tuple(dtypes)).launch(argument, count, stream)

    return OperatorPlugin()


def _fields(trt: api.Trt, settings: Mapping[str, Any]) -> list[Any]:
    """Return a field for each attribute, of the types that the ONNX parser makes of attributes."""
    found, kinds = [], trt.PluginFieldType
    for name, value in settings.items():
        if isinstance(value, str):
            found.append(trt.PluginField(name, value.encode(), kinds.CHAR))
        elif isinstance(value, float):
            found.append(trt.PluginField(name, np.array([value], np.float32), kinds.FLOAT32))
        else:
            found.append(trt.PluginField(name, np.array([value], np.int32), kinds.INT32))
    return found


def _values(fields: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields, converted to the number types of the operator's defaults."""
    found: dict[str, Any] = {}
    for one in fields:
        field: api.PluginField = one
        if field.name not in defaults or field.data is None:
            continue
        default = defaults[field.name]
        if isinstance(default, str):
            found[field.name] = bytes(field.data).decode()
        else:
            found[field.name] = type(default)(np.asarray(field.data).reshape(-1)[0])
    return found


def _vendor_name(dtype: str) -> str:
    return DTYPES.get(dtype, "INT64")


def _dtypes(ports: Sequence[Any]) -> list[str]:
    """Return NumPy's names for the types of tensors whose shapes may be open."""
    found = []
    for one in ports:
        port: api.DynamicPluginTensorDesc = one
        desc: api.PluginTensorDesc = port.desc
        found.append(NUMPY_NAMES[desc.type.name])
    return found


@lru_cache(maxsize=64)
def _kernel(one: Operator, dtypes: tuple[str, ...]) -> DriverKernel:
    """Compile the kernel for this machine's GPU when it is first needed. Raises BuildError with the compiler's log."""
    from edgert.memory.cuda.nvrtc import nvrtc

    driver = cuda_driver()
    if driver is None or not driver.gpus:
        raise DeviceError(f"{one} cannot run here", why="there is no GPU")
    architecture = driver.gpus[0].compute.replace(".", "")
    options = [f"--gpu-architecture=sm_{architecture}"]
    name, runs = one.function.__name__, driver.version.partition(".")[0]
    return DriverKernel(nvrtc(int(runs) if runs else None).compile(source(one, dtypes), f"{one}.cu", options), name)
