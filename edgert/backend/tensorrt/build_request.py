"""A request for a TensorRT build, as one record without TensorRT objects."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from edgert.backend.base import Span
from edgert.custom_op import source_files
from edgert.errors import BuildError, nearest
from edgert.graph import Model, read, to_bytes, type_inference
from edgert.graph.operators import QDQ
from edgert.units import format_bytes

DLA_LEAST_BYTES = 4096
"""Size of the smallest DLA pool. All are powers of two: NVIDIA's page on DLA memory pools."""


@dataclass(frozen=True, slots=True)
class Pools:
    """Memory limits of a builder and its engine; None is TensorRT's default.

    Attributes:
        dla_sram_bytes: scratch memory on the DLA, 1 MiB per core of an Orin.
        dla_local_bytes: DRAM for intermediate tensors of one loadable; 1 GiB by default.
        dla_global_bytes: DRAM for weights of one loadable; 512 MiB by default.

    Raises:
        BuildError: a limit is not positive, or a DLA pool is no power of two of at least 4 KiB.
    """

    workspace_bytes: int | None = None
    dla_sram_bytes: int | None = None
    dla_local_bytes: int | None = None
    dla_global_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.workspace_bytes is not None and self.workspace_bytes <= 0:
            raise BuildError(f"a workspace cannot have {self.workspace_bytes} bytes", why="it must be positive")
        for name, size_bytes in self.named_limits():
            power = max(DLA_LEAST_BYTES, 1 << max(size_bytes - 1, 0).bit_length())
            if name.startswith("DLA") and size_bytes != power:
                raise BuildError(
                    f"pool {name} cannot have {size_bytes} bytes",
                    why="the DLA compiler accepts powers of two from 4 KiB (4096)",
                    fix=f"use {format_bytes(power)}",
                )

    def named_limits(self) -> Iterator[tuple[str, int]]:
        """Yield TensorRT's name and the limit of each limited pool."""
        sizes = {
            "WORKSPACE": self.workspace_bytes,
            "DLA_MANAGED_SRAM": self.dla_sram_bytes,
            "DLA_LOCAL_DRAM": self.dla_local_bytes,
            "DLA_GLOBAL_DRAM": self.dla_global_bytes,
        }
        return ((name, size) for name, size in sizes.items() if size is not None)


Precision = Literal["fp32", "fp16", "int8"]
GPU = "gpu"
LAYOUTS = ("LINEAR", "CHW2", "CHW4", "CHW16", "CHW32", "HWC", "HWC8", "HWC16", "DLA_LINEAR", "DLA_HWC4")
"""TensorRT's names of the layouts that an input or output may have."""
DTYPES = {"float32": "FLOAT", "float16": "HALF", "int8": "INT8", "int32": "INT32", "uint8": "UINT8", "bool": "BOOL"}
"""TensorRT's names of types for inputs and outputs, by NumPy's names."""
NUMPY_NAMES = {name: dtype for dtype, name in DTYPES.items()} | {"INT64": "int64"}
"""NumPy's names of types, by TensorRT's names; types that NumPy lacks are left out."""


@dataclass(frozen=True, slots=True)
class Format:
    """Memory layout of an input or output.

    Attributes:
        layout: one of :data:`LAYOUTS`. A DLA and a GPU share CHW16 for float16 and CHW32 for int8.
        dtype: NumPy's name of the type; empty for that of the model. Only a weakly typed TensorRT can change it.
        scale: value of one step of an int8 input, for callers that write real numbers; 0 if they write steps.
        optional: whether the engine may be built without this format if a DLA's compiler fails.
    """

    layout: str
    dtype: str = ""
    scale: float = 0.0
    optional: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class BuildRequest:
    """Request for one engine.

    Attributes:
        model: ONNX file that contains its weights.
        nodes: output tensors by node, in execution order; nodes without a name get one.
        explicit: whether the model has QuantizeLinear or DequantizeLinear nodes.
        precision: lowest precision of computations. TensorRT >= 11 and TensorRT-RTX use the model's types instead.
        profiles: shapes by input, one mapping per optimization profile; empty if the model's shapes are static.
        placement: ``gpu``, ``dla0`` or ``dla1`` by node; other nodes run on the GPU.
        fp16_nodes: nodes that stay float16 in an INT8 engine (8.6 to 10.x), if TensorRT can.
        calibration: text of a calibration cache (8.6 to 10.x); empty for none.
        timing_cache: kernel timings of earlier builds; empty for none.
        optimization_level: 0 to 5; None is TensorRT's default, 3.
        operators: files of the model's custom operators, which become plugins.
        compute: CUDA compute capabilities to build for, such as ``("8.6",)``; TensorRT-RTX only; empty for all.
    """

    model: bytes
    nodes: Mapping[str, tuple[str, ...]]
    title: str = "model"
    opset: int = 0
    explicit: bool = False
    precision: Precision = "fp32"
    profiles: tuple[Mapping[str, Span], ...] = ()
    placement: Mapping[str, str] = field(default_factory=dict)
    fp16_nodes: tuple[str, ...] = ()
    calibration: str = ""
    pools: Pools = field(default_factory=Pools)
    formats: Mapping[str, Format] = field(default_factory=dict)
    timing_cache: bytes = b""
    version_compatible: bool = False
    sparse: bool = False
    optimization_level: int | None = None
    compute: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (*self.placement, *self.fp16_nodes):
            if name not in self.nodes:
                raise self.refusal(
                    f"no node {name!r}{nearest(name, self.nodes)}", "a placement or a float16 setting names it"
                )
        for name, form in self.formats.items():
            if form.layout not in LAYOUTS or form.dtype not in ("", *DTYPES):
                known = ", ".join((*LAYOUTS, *DTYPES))
                raise self.refusal(f"tensor {name!r} cannot be {form.layout} {form.dtype}".rstrip(), f"known: {known}")
        if self.optimization_level is not None and not 0 <= self.optimization_level <= 5:
            raise self.refusal(f"unknown optimization level {self.optimization_level}", "levels are 0 to 5")
        places = (GPU, "dla0", "dla1")
        for name, accelerator in self.placement.items():
            if accelerator not in places:
                raise self.refusal(f"node {name!r} cannot be placed on {accelerator!r}", f"known: {', '.join(places)}")
        cores = sorted({one for one in self.placement.values() if one != GPU})
        if len(cores) > 1:
            raise self.refusal("one engine cannot use two DLA cores", f"nodes are placed on {' and '.join(cores)}")
        dynamic = [name for profile in self.profiles for name, span in profile.items() if not span.is_fixed]
        if cores and dynamic:
            raise self.refusal(
                f"input {dynamic[0]!r} has several shapes in an engine with DLA layers", "a DLA supports one shape only"
            )

    @property
    def dla_core(self) -> int | None:
        """Number of the DLA core that is used, or None."""
        cores = {one for one in self.placement.values() if one != GPU}
        return int(cores.pop().removeprefix("dla")) if cores else None

    @property
    def all_on_dla(self) -> bool:
        """Whether every node is placed on the DLA."""
        return all(self.placement.get(name, GPU) != GPU for name in self.nodes)

    def refusal(self, what: str, why: str, fix: str = "") -> BuildError:
        """Return a BuildError about this request."""
        return BuildError(what, why=why, where=self.title, fix=fix)


def request_of(model: Model, **options: Any) -> BuildRequest:
    """Return the request for a model; ``options`` are fields of :class:`BuildRequest`.

    Raises BuildError: an option names an unknown node or layout, or a node that the core cannot run; or a custom
    operator has no kernel. Raises ModelError: the model is damaged, or too large for one ONNX file.
    """
    graph = read(model)
    nodes = graph.nodes
    explicit = any(node.op in QDQ for node in nodes)
    names = {node.name: node.outputs for node in nodes}
    files = source_files(graph.custom_operators.values())
    fields = {"title": str(model.path), "opset": graph.opset, "explicit": explicit, "operators": files, **options}
    request = BuildRequest(to_bytes(type_inference.for_plugins(model)), names, **fields)
    for node, operator in graph.custom_operators.items():
        if not operator.cuda:
            raise request.refusal(
                f"TensorRT cannot run node {node!r}",
                f"{operator} has no CUDA kernel",
                "write edgert.op(…, cuda=SOURCE), or use backend: ort, which runs its function",
            )
        if request.placement.get(node, GPU) != GPU:
            raise request.refusal(
                f"node {node!r} cannot run on {request.placement[node]}",
                f"{operator} is a custom operator, and a DLA runs no plugins",
                f"set placement: {{{node!r}: gpu}}",
            )
        is_open = any(not span.is_fixed for spans in request.profiles for span in spans.values())
        if operator.shape is not None and is_open:
            raise request.refusal(
                f"node {node!r} cannot have inputs with open dimensions",
                f"the shape rule of {operator} computes with numbers",
                "use fixed sizes in input: shape, or an operator whose output has the shape of its input",
            )
    return request
