"""A TensorRT that records how it is used, for machines that have none.

It is made of the names that a version's binding has: whatever is not there is an AttributeError here too, a property
cannot be called, and a subclass may override only what its base has. The numbers of its enumerations are not
TensorRT's, so that code which keeps one fails. What methods give stands in :class:`Script`.
"""

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.helpers.trt_api import Api, Class, api

WALKING = {"get_layer", "get_input", "get_output", "get_error", "get_tensor_name", "get_tensor_mode"}
"""Calls that only look at something; they are not recorded."""


class Value:
    def __init__(self, name: str, number: int) -> None:
        self.name, self.value = name, number

    def __int__(self) -> int:
        return self.value

    def __repr__(self) -> str:
        return self.name


class Enumeration:
    """Its members by name; numbers go down from the count, unlike TensorRT's, which go up from 0."""

    def __init__(self, members: Sequence[str]) -> None:
        self.__members__ = {name: Value(name, len(members) - at) for at, name in enumerate(members)}

    def __getattr__(self, name: str) -> Value:
        try:
            return self.__dict__["__members__"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None


SEVERITY = Enumeration(("INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE"))


@dataclass
class FakeTensor:
    name: str
    shape: tuple[int, ...] = (1, 3, 8, 8)
    dtype: str = "FLOAT"


@dataclass
class FakeLayer:
    """A layer of the network that parsing gives: ``metadata`` is its node's, or empty for a helper."""

    name: str
    kind: str
    node: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dtype: str = "FLOAT"


@dataclass
class Script:
    """What a double answers.

    Attributes:
        layers: the network after parsing.
        inputs, outputs: its tensors.
        errors: of the parser, as (node position, name, operator, text); parsing fails where there are any.
        dla_cores: how many there are.
        cannot: layers that no DLA runs.
        plan: what building gives.
        lines: of the log while building, (severity, text).
        steps: phases while building, (name, parent, steps).
        accepts_cache: whether a timing cache fits.
        core: the core a runtime reports, whatever was set; None for what was set.
        inspector: of the engine.
        opens: whether a plan can be opened.
        foreign: plans that cannot, as those of another build.
        refusal: logged when one is not opened.
        bound: of the engine, name → (shape, dtype, mode); a negative dimension is open.
        strides: name → strides, where they are not those of a C-contiguous array.
        vectors: name → (dimension, components).
        compute: what running does with the arrays at the bound addresses, and the shapes that were set.
        runs: whether a run succeeds.
        layer_ms: (layer, milliseconds) of a run, reported to a profiler.
        memory: bytes that an execution context takes.
        plans: of plans that have other tensors: the same as ``bound``.
        takes_kernels: whether a runtime cache reads what another one wrote.
        refused_reads: how many times it refuses before that, as beside a thread that records.
    """

    layers: Sequence[FakeLayer] = ()
    inputs: Sequence[FakeTensor] = ()
    outputs: Sequence[FakeTensor] = ()
    errors: Sequence[tuple[int, str, str, str]] = ()
    dla_cores: int = 2
    cannot: Sequence[str] = ()
    plan: bytes | None = b"plan"
    lines: Sequence[tuple[str, str]] = ()
    steps: Sequence[tuple[str, str | None, int]] = ()
    accepts_cache: bool = True
    core: int | None = None
    inspector: str = ""
    opens: bool = True
    foreign: Sequence[bytes] = ()
    refusal: str = "Version tag does not match"
    bound: dict[str, tuple[tuple[int, ...], str, str]] = field(default_factory=dict)
    strides: dict[str, tuple[int, ...]] = field(default_factory=dict)
    vectors: dict[str, tuple[int, int]] = field(default_factory=dict)
    compute: Callable[[dict[str, int], dict[str, tuple[int, ...]]], None] = lambda addresses, shapes: None
    runs: bool = True
    layer_ms: Sequence[tuple[str, float]] = ()
    memory: int = 2**20
    plans: dict[bytes, dict[str, tuple[tuple[int, ...], str, str]]] = field(default_factory=dict)
    takes_kernels: bool = True
    refused_reads: int = 0


class Double:
    """The module. ``calls`` is what was done with it, a line each, such as ``IBuilderConfig.set_flag(FP16)``;
    ``kernels`` are the shapes that TensorRT-RTX has compiled some for, of contexts or from a runtime cache."""

    def __init__(self, version: str, script: Script | None = None) -> None:
        self._api: Api = api(version)
        self._script = script or Script()
        self.calls: list[str] = []
        self.kernels: set[str] = set()
        self.__name__ = self._api.module
        self.__version__ = self._api.version
        self._made: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._api:
            raise AttributeError(f"{self.__name__} {self.__version__} has no {name!r}")
        if name in FUNCTIONS:
            return lambda *args: FUNCTIONS[name](self, *args)
        if name not in self._made:
            self._made[name] = Enumeration(self._api.enums[name]) if name in self._api.enums else self._class(name)
        return self._made[name]

    def make(self, kind: str, **state: Any) -> Any:
        made = getattr(self, kind).__new__(getattr(self, kind))
        object.__setattr__(made, "_state", state)
        return made

    def _class(self, name: str) -> type:
        double, script = self, self._script

        class Recorder:
            def __init__(self, *args: Any) -> None:
                object.__setattr__(self, "_state", {"logger": args[-1]} if args else {})
                double.calls.append(f"{name}({shown(args)})")

            def __init_subclass__(cls) -> None:
                own = [item for item in vars(cls) if not item.startswith("_")]
                wrong = [item for item in own if not any(item in one for one in bases_of(double, cls))]
                if wrong:
                    raise AttributeError(f"{name} has no {wrong[0]!r} to override")

            def __getattr__(self, item: str) -> Any:
                if item.startswith("__"):
                    raise AttributeError(item)
                owner = next((one for one in bases_of(double, type(self)) if item in one), None)
                if owner is None:
                    raise AttributeError(f"{name} of {double.__version__} has no {item!r}")
                if item in owner.properties:
                    return property_of(double, script, self, owner.name, item)
                return lambda *args: call(double, script, self, owner.name, item, args)

            def __setattr__(self, item: str, value: Any) -> None:
                if not item.startswith("_"):
                    if not any(item in one.properties for one in bases_of(double, type(self))):
                        raise AttributeError(f"{name} of {double.__version__} has no property {item!r}")
                    owner = f"{name}[{self._state['name']}]" if "name" in self._state else name
                    double.calls.append(f"{owner}.{item} = {shown((value,))}")
                    self._state[item] = value
                else:
                    object.__setattr__(self, item, value)

        Recorder.__name__ = Recorder.__qualname__ = name
        return Recorder


def bases_of(double: Double, kind: type) -> list[Class]:
    """The classes of the binding that a class is made of; a plugin is made of several."""
    known = double._api.classes
    return [known[base.__name__] for base in kind.__mro__ if base.__name__ in known]


FUNCTIONS: dict[str, Callable[..., Any]] = {"get_plugin_registry": lambda double: double.make("IPluginRegistry")}


def shown(args: Sequence[Any]) -> str:
    return ", ".join(_shown(one) for one in args)


def _shown(one: Any) -> str:
    if isinstance(one, (bytes, memoryview)):
        return f"<{len(one)} bytes>"
    state = getattr(one, "_state", None)
    if isinstance(state, dict):
        return str(state.get("name", type(one).__mro__[-2].__name__))
    return repr(one)


def bound_of(script: Script, owner: Any) -> dict[str, tuple[tuple[int, ...], str, str]]:
    return script.plans.get(owner._state.get("plan", b""), script.bound)


def property_of(double: Double, script: Script, owner: Any, kind: str, item: str) -> Any:
    """The value of a property: what was set, or what the script has."""
    if (kind, item) == ("Runtime", "DLA_core") and script.core is not None:
        return script.core
    if item in owner._state:
        return owner._state[item]
    fixed = {
        ("Builder", "num_DLA_cores"): script.dla_cores,
        ("Runtime", "num_DLA_cores"): script.dla_cores,
        ("INetworkDefinition", "num_layers"): len(script.layers),
        ("INetworkDefinition", "num_inputs"): len(script.inputs),
        ("INetworkDefinition", "num_outputs"): len(script.outputs),
        ("OnnxParser", "num_errors"): len(script.errors),
        ("ICudaEngine", "num_io_tensors"): len(bound_of(script, owner)),
        ("ICudaEngine", "device_memory_size"): script.memory,
        ("ICudaEngine", "device_memory_size_v2"): script.memory,
        ("IBuilderConfig", "progress_monitor"): None,
    }
    if (kind, item) not in fixed:
        raise AssertionError(f"the double has no value for {kind}.{item}")
    return fixed[(kind, item)]


def call(double: Double, script: Script, owner: Any, kind: str, item: str, args: tuple[Any, ...]) -> Any:
    if item not in WALKING and kind != "ParserError":
        double.calls.append(f"{kind}.{item}({shown(args)})")
    answer = ANSWERS.get((kind, item))
    if answer is None:
        return None
    return answer(double, script, owner, *args)


def _tensor(double: Double, one: FakeTensor) -> Any:
    return double.make("ITensor", name=one.name, shape=one.shape, dtype=getattr(double.DataType, one.dtype))


def _layer(double: Double, one: FakeLayer) -> Any:
    state = {
        "name": one.name,
        "type": getattr(double.LayerType, one.kind),
        "metadata": f"[ONNX Layer: {one.node}]" if one.node else "",
        "num_inputs": len(one.inputs),
        "num_outputs": len(one.outputs),
    }
    made = double.make("ILayer", **state)
    made._state["fake"] = one
    return made


def _ends(double: Double, owner: Any, names: Sequence[str], index: int) -> Any:
    return _tensor(double, FakeTensor(names[index], dtype=owner._state["fake"].dtype))


def _build(double: Double, script: Script, builder: Any, network: Any, config: Any) -> bytes | None:
    logger, monitor = builder._state["logger"], config._state.get("progress_monitor")
    for severity, text in script.lines:
        logger.log(getattr(SEVERITY, severity), text)
    for name, parent, steps in script.steps if monitor else ():
        monitor.phase_start(name, parent, steps)
        if not all(monitor.step_complete(name, step) for step in range(steps)):
            return None
        monitor.phase_finish(name)
    return script.plan


def _opened(double: Double, script: Script, runtime: Any, plan: bytes) -> Any:
    if script.opens and plan not in script.foreign:
        return double.make("ICudaEngine", plan=plan)
    runtime._state["logger"].log(SEVERITY.ERROR, script.refusal)
    return None


def _error(double: Double, script: Script, index: int) -> Any:
    return double.make("ParserError", index=index)


def _reported(at: int) -> Callable[..., Any]:
    return lambda double, script, owner: script.errors[owner._state["index"]][at]


def _inferred(double: Double, script: Script, context: Any) -> list[str]:
    """The inputs without a shape. Kernels of a TensorRT-RTX that is eager are compiled by then."""
    shapes = context._state["shapes"]
    double.kernels.add(repr(shapes))
    return [name for name, shape in shapes.items() if min(shape, default=1) < 0]


def _execute(double: Double, script: Script, context: Any, stream: int) -> bool:
    script.compute(context._state["addresses"], context._state["shapes"])
    double.kernels.add(repr(context._state["shapes"]))
    for name, ms in script.layer_ms if "profiler" in context._state else ():
        context._state["profiler"].report_layer_time(name, ms)
    return script.runs


def _read_kernels(double: Double, script: Script, cache: Any, content: bytes) -> bool:
    reads = sum(call.startswith("IRuntimeCache.deserialize") for call in double.calls)
    if script.takes_kernels and reads > script.refused_reads and content.startswith(b"["):
        double.kernels.update(ast.literal_eval(content.decode()))
        return True
    return False


def _shape_of(script: Script, context: Any, name: str) -> tuple[int, ...]:
    """Set for an input; an output's open first dimension follows the first input."""
    shapes = context._state["shapes"]
    declared, _, mode = bound_of(script, context)[name]
    shape = shapes.get(name) or declared
    first = next(iter(shapes.values()), (1,))[0]
    follows = mode == "OUTPUT" and len(shape) and shape[0] < 0
    return (first, *shape[1:]) if follows else shape


def _strides(script: Script, context: Any, name: str) -> tuple[int, ...]:
    shape = _shape_of(script, context, name)
    return script.strides.get(name) or tuple(int(np.prod(shape[dim + 1 :])) for dim in range(len(shape)))


def _set(key: str) -> Callable[..., bool]:
    def put(double: Double, script: Script, context: Any, name: str, value: Any) -> bool:
        context._state[key][name] = tuple(value) if key == "shapes" else value
        return True

    return put


ANSWERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("Builder", "create_builder_config"): lambda d, s, o: d.make("IBuilderConfig"),
    ("Builder", "create_network"): lambda d, s, o, *flags: d.make("INetworkDefinition"),
    ("Builder", "create_optimization_profile"): lambda d, s, o: d.make("IOptimizationProfile"),
    ("Builder", "build_serialized_network"): _build,
    ("OnnxParser", "parse"): lambda d, s, o, model: not s.errors,
    ("OnnxParser", "get_error"): lambda d, s, o, index: _error(d, s, index),
    ("ParserError", "node"): _reported(0),
    ("ParserError", "node_name"): _reported(1),
    ("ParserError", "node_operator"): _reported(2),
    ("ParserError", "desc"): _reported(3),
    ("INetworkDefinition", "get_layer"): lambda d, s, o, index: _layer(d, s.layers[index]),
    ("INetworkDefinition", "get_input"): lambda d, s, o, index: _tensor(d, s.inputs[index]),
    ("INetworkDefinition", "get_output"): lambda d, s, o, index: _tensor(d, s.outputs[index]),
    ("ILayer", "get_input"): lambda d, s, o, index: _ends(d, o, o._state["fake"].inputs, index),
    ("ILayer", "get_output"): lambda d, s, o, index: _ends(d, o, o._state["fake"].outputs, index),
    ("IBuilderConfig", "can_run_on_DLA"): lambda d, s, o, layer: layer._state["name"] not in s.cannot,
    ("IBuilderConfig", "create_timing_cache"): lambda d, s, o, content: d.make("ITimingCache", own=not content),
    ("IBuilderConfig", "set_timing_cache"): lambda d, s, o, cache, ignore: s.accepts_cache or cache._state["own"],
    ("IBuilderConfig", "get_timing_cache"): lambda d, s, o: d.make("ITimingCache"),
    ("ITimingCache", "serialize"): lambda d, s, o: b"timings",
    ("Runtime", "deserialize_cuda_engine"): _opened,
    ("ICudaEngine", "create_engine_inspector"): lambda d, s, o: d.make("EngineInspector"),
    ("ICudaEngine", "create_execution_context"): lambda d, s, o, *settings: d.make(
        "IExecutionContext", addresses={}, shapes={}, plan=o._state["plan"]
    ),
    ("ICudaEngine", "create_runtime_config"): lambda d, s, o: d.make("IRuntimeConfig"),
    ("ICudaEngine", "get_tensor_name"): lambda d, s, o, index: list(bound_of(s, o))[index],
    ("ICudaEngine", "get_tensor_mode"): lambda d, s, o, name: getattr(d.TensorIOMode, bound_of(s, o)[name][2]),
    ("ICudaEngine", "get_tensor_dtype"): lambda d, s, o, name: getattr(d.DataType, bound_of(s, o)[name][1]),
    ("ICudaEngine", "get_tensor_shape"): lambda d, s, o, name: bound_of(s, o)[name][0],
    ("ICudaEngine", "get_tensor_location"): lambda d, s, o, name: d.TensorLocation.DEVICE,
    ("ICudaEngine", "get_tensor_components_per_element"): lambda d, s, o, name, index: s.vectors.get(name, (-1, -1))[1],
    ("ICudaEngine", "get_tensor_vectorized_dim"): lambda d, s, o, name, index: s.vectors.get(name, (-1, -1))[0],
    ("IRuntimeConfig", "create_runtime_cache"): lambda d, s, o: d.make("IRuntimeCache"),
    ("IRuntimeCache", "serialize"): lambda d, s, o: repr(sorted(d.kernels)).encode(),
    ("IRuntimeCache", "deserialize"): _read_kernels,
    ("EngineInspector", "get_engine_information"): lambda d, s, o, form: s.inspector,
    ("IExecutionContext", "set_input_shape"): _set("shapes"),
    ("IExecutionContext", "set_tensor_address"): _set("addresses"),
    ("IExecutionContext", "get_tensor_shape"): lambda d, s, o, name: _shape_of(s, o, name),
    ("IExecutionContext", "get_tensor_strides"): lambda d, s, o, name: _strides(s, o, name),
    ("IExecutionContext", "infer_shapes"): _inferred,
    ("IExecutionContext", "set_optimization_profile_async"): lambda d, s, o, index, stream: True,
    ("IExecutionContext", "execute_async_v3"): _execute,
}
"""What methods give; every other one gives None."""
