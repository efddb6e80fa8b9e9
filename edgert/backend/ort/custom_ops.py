"""Models with custom operators: ONNX Runtime runs the standard parts, Python runs the custom ones.

The parts share bound tensors, so that an operator reads ONNX Runtime's output in place. Its result is copied into the
tensor that the next part reads. The package onnxruntime-extensions also runs Python operators, but converts every
output to a Python list, which is far slower than the copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgert.backend import base
from edgert.backend.ort.runtime import OrtEngine
from edgert.custom_op import Operator
from edgert.errors import BuildError, ModelError
from edgert.graph import Graph, Model, TensorSpec, clean, extract, read, with_shapes, write
from edgert.graph.partition import Part, parts
from edgert.memory import aligned_empty

# A model with custom operators in sections: what ONNX Runtime runs, and what Python runs between them.

PYTHON, ORT = "python", "ort"


@dataclass(frozen=True, slots=True)
class Call:
    """One node that Python runs.

    Attributes:
        name: the node's name.
        operator: its implementation.
        inputs, outputs: tensor names.
        settings: its attributes with defaults filled in.
        constants: inputs that are stored in the model.
    """

    name: str
    operator: Operator
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    settings: Mapping[str, Any]
    constants: Mapping[str, base.Array]

    def __call__(self, tensors: Mapping[str, base.Array]) -> list[base.Array]:
        """Return the outputs; the operator owns these arrays."""
        given = [self.constants[name] if name in self.constants else tensors[name] for name in self.inputs]
        return self.operator(given, self.settings)

    def checked(self, made: Sequence[base.Array], wanted: Sequence[base.Tensor]) -> None:
        """Raise BuildError unless the outputs follow the operator's rules."""
        found = [base.Tensor(tensor.name, one.shape, one.dtype.name) for tensor, one in zip(wanted, made, strict=False)]
        if len(made) != len(wanted) or found != list(wanted):
            found_text = ", ".join(f"{one.dtype} {list(one.shape)}" for one in found)
            rules = ", ".join(f"{one.dtype} {list(one.shape)}" for one in wanted)
            raise BuildError(
                f"node {self.name!r}: {self.operator} breaks its own rules",
                why=f"it returned {found_text}; its shape and dtype rules give {rules}",
                where=str(self.operator.file),
                fix="correct the function, or the rules that edgert.op was given",
            )


@dataclass(frozen=True, slots=True)
class Section:
    """One part: a model for ONNX Runtime, or calls for Python."""

    part: Part
    model: Model | None
    calls: tuple[Call, ...]


def sections(graph: Graph, like: Model) -> list[Section]:
    """Return a model's parts in execution order.

    Args:
        graph: the graph of the model.
        like: the model, whose opset the parts get.

    Raises:
        ModelError: the type of a tensor between parts is not known, or an attribute does not belong to its operator.
    """
    custom, nodes = graph.custom_operators, {node.name: node for node in graph.nodes}
    places = {node.name: PYTHON if node.name in custom else ORT for node in graph.nodes}
    found = []
    for part in parts(graph, places):
        if part.accelerator == PYTHON:
            calls = []
            for node in map(nodes.__getitem__, part.nodes):
                one = custom[node.name]
                constants = {item: graph.constants[item] for item in node.inputs if item in graph.constants}
                settings = one.settings(node.attributes, node.name)
                calls.append(Call(node.name, one, node.inputs, node.outputs, settings, constants))
            found.append(Section(part, None, tuple(calls)))
        else:
            found.append(Section(part, write(extract(graph, part.outputs, part.inputs), like), ()))
    return found


class CustomOpFunction:
    """Model with custom operators for arrays of any size; ``open_part`` opens a part in ONNX Runtime."""

    def __init__(self, model: Model, open_part: Callable[[Model], Any]) -> None:
        self._graph = read(model)
        found = sections(self._graph, model)
        self._sections = [(one, open_part(one.model) if one.model is not None else None) for one in found]

    def get_inputs(self) -> Sequence[TensorSpec]:
        """Return the inputs, as ``InferenceSession.get_inputs`` does."""
        return self._graph.inputs

    def get_outputs(self) -> Sequence[TensorSpec]:
        """Return the outputs, as ``InferenceSession.get_outputs`` does."""
        return self._graph.outputs

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, base.Array]) -> list[base.Array]:
        """Return the named outputs."""
        values = dict(feeds)
        for section, session in self._sections:
            part = section.part
            if session is not None:
                made = session.run(list(part.outputs), {name: values[name] for name in part.inputs})
                values.update(zip(part.outputs, made, strict=True))
            for call in section.calls:
                values.update(zip(call.outputs, call(values), strict=True))
        return [values[name] for name in names or [spec.name for spec in self._graph.outputs]]


Compile = Callable[[Model, base.EngineOptions], OrtEngine]
Run = Callable[[], None]


def compile_with_custom_ops(model: Model, options: base.EngineOptions, compile_part: Compile) -> CustomOpEngine:
    """Compile a model that has custom operators, separately for each profile.

    Args:
        model: the model.
        options: how to compile it.
        compile_part: compiles a part without custom operators.

    Raises:
        BuildError: ONNX Runtime refuses a part, or an operator breaks its rules.
        ModelError: a profile does not fit, or a size is not known before the model runs.
    """
    started = time.perf_counter()
    profiles = options.profiles or {base.DEFAULT_PROFILE: {}}
    chains = {name: _Chain(model, shapes, options, compile_part) for name, shapes in profiles.items()}
    seconds = round(time.perf_counter() - started, 3)
    return CustomOpEngine(chains, str(model.path), {"threads": options.threads, "compile_s": seconds})


class _Chain:
    """Parts of a model at one input size."""

    def __init__(self, model: Model, shapes: base.Shapes, options: base.EngineOptions, compile_part: Compile) -> None:
        ready = clean(with_shapes(model, shapes) if shapes else model)[0]
        self.graph = read(ready)
        self.path = str(model.path)
        alone = replace(options, profiles={}, spans={})
        self.sections = [
            (one, compile_part(one.model, alone) if one.model is not None else None)
            for one in sections(self.graph, ready)
        ]
        self.inputs = tuple(self.tensor(spec.name) for spec in self.graph.inputs)
        self.outputs = tuple(self.tensor(spec.name) for spec in self.graph.outputs)

    def tensor(self, name: str) -> base.Tensor:
        """Return a tensor's type and shape. Raises ModelError where its size is not known."""
        spec = self.graph.specs.get(name)
        sizes = tuple(dim for dim in spec.shape if isinstance(dim, int)) if spec is not None else ()
        if spec is None or not spec.is_static:
            raise ModelError(
                f"the size of tensor {name!r} is not known before the model runs",
                why="it is handed from ONNX Runtime to a custom operator, or back, in memory of a fixed size",
                where=self.path,
                fix="give the model static shapes (input: size), and the operator a shape rule: edgert.op(shape=…)",
            )
        return base.Tensor(name, sizes, spec.dtype)

    def bind(self, tensors: Mapping[str, base.Array]) -> Run:
        """Return a run over the given inputs and outputs; tensors between them are allocated here."""
        names = {name for one, _ in self.sections for name in (*one.part.inputs, *one.part.outputs)}
        names |= {name for one, _ in self.sections for call in one.calls for name in call.outputs}
        between = [self.tensor(name) for name in sorted(names - tensors.keys())]
        arrays = {**{one.name: aligned_empty(one.shape, one.dtype) for one in between}, **tensors}
        runs: list[Run] = []
        for section, engine in self.sections:
            if engine is not None:
                inputs = {one.name: arrays[one.name] for one in engine.inputs}
                runs.append(engine.bind(inputs, {one.name: arrays[one.name] for one in engine.outputs}))
            runs += [self._call(call, arrays) for call in section.calls]

        def run() -> None:
            for one in runs:
                one()

        return run

    def _call(self, call: Call, arrays: Mapping[str, base.Array]) -> Run:
        """Return the run of one operator, whose first result is checked against its rules."""
        wanted = [self.tensor(name) for name in call.outputs]
        outputs = [arrays[name] for name in call.outputs]
        unseen = [True]

        def run() -> None:
            made = call(arrays)
            if unseen:
                call.checked(made, wanted)
                unseen.clear()
            for array, value in zip(outputs, made, strict=True):
                array[...] = value

        return run


class CustomOpEngine:
    """Engine of a model with custom operators, which run in the thread that runs the session."""

    def __init__(self, chains: Mapping[str, _Chain], path: str, info: Mapping[str, Any]) -> None:
        self._chains, self.path = dict(chains), path
        self.profiles = tuple(chains)
        first = chains[self.profiles[0]]
        self.inputs, self.outputs = first.inputs, first.outputs
        self.outputs_known, self.dynamic_batch = True, False
        self.batched = base.share_first_dimension([t.shape for t in self.inputs], [t.shape for t in self.outputs])
        engines = [engine for _, engine in first.sections if engine is not None]
        operators = [str(call.operator) for one, _ in first.sections for call in one.calls]
        cached = bool(engines) and all(engine.info["cached"] for engine in engines)
        self.info: Mapping[str, Any] = {
            **(engines[0].info if engines else {"backend": "python"}),
            **info,
            "operators": operators,
            "cached": cached,
        }
        self.session().run()  # so that an operator that breaks its rules is refused now

    def session(self, profile: str | None = None) -> CustomOpSession:
        if not self._chains:
            raise base.closed_engine(self.path)
        return CustomOpSession(self._chains[base.checked_profile(profile, self.profiles, self.path)])

    def bind(self, inputs: Mapping[str, base.Array], outputs: Mapping[str, base.Array]) -> Run:
        """Return a run over the caller's tensors; see :meth:`edgert.backend.ort.OrtEngine.bind`."""
        return self._chains[self.profiles[0]].bind({**inputs, **outputs})

    def close(self) -> None:
        """Close the sessions of all parts."""
        for engine in (engine for chain in self._chains.values() for _, engine in chain.sections if engine is not None):
            engine.close()
        self._chains.clear()


class CustomOpSession:
    """Session of a model with custom operators; see :class:`~edgert.backend.base.Session`."""

    def __init__(self, chain: _Chain) -> None:
        self.inputs: Mapping[str, base.Array] = {
            one.name: base.bound_input(one.name, one.shape, one.dtype, chain.path) for one in chain.inputs
        }
        self.outputs = [aligned_empty(one.shape, one.dtype) for one in chain.outputs]
        made = dict(zip((one.name for one in chain.outputs), self.outputs, strict=True))
        self._run = chain.bind({**self.inputs, **made})

    def run(self, rows: int | None = None) -> Sequence[base.Array]:
        self._run()
        return self.outputs
