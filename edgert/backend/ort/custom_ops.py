"""Models with custom operators: ONNX Runtime runs the standard parts, Python runs the custom ones.

The parts share bound tensors, so an operator reads ONNX Runtime's output in place. Its result is copied into the tensor
that the next part reads. The package onnxruntime-extensions also runs Python operators, but converts every output to a
Python list, which is far slower than the copy.
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
from edgert.graph import Graph, Model, TensorSpec, clean, extract, partition, read, with_shapes, write
from edgert.memory import aligned_empty

# Sections of a model: those that ONNX Runtime runs, and the calls of Python between them.

PYTHON, ORT = "python", "ort"


@dataclass(frozen=True, slots=True)
class Call:
    """One node that Python runs. ``constants`` are inputs that are stored in the model."""

    name: str
    operator: Operator
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    settings: Mapping[str, Any]
    constants: Mapping[str, base.Array]

    def __call__(self, tensors: Mapping[str, base.Array]) -> list[base.Array]:
        """Return the outputs; the operator owns these arrays."""
        arrays = [self.constants[name] if name in self.constants else tensors[name] for name in self.inputs]
        return self.operator(arrays, self.settings)

    def check_outputs(self, arrays: Sequence[base.Array], expected: Sequence[base.Tensor]) -> None:
        """Raise BuildError unless the outputs have the shapes and dtypes of the operator's rules."""
        returned = [(array.dtype.name, array.shape) for array in arrays]
        wanted = [(tensor.dtype, tensor.shape) for tensor in expected]
        if returned != wanted:
            returned_text, wanted_text = (
                ", ".join(f"{dtype} {list(shape)}" for dtype, shape in each) for each in (returned, wanted)
            )
            raise BuildError(
                f"node {self.name!r}: {self.operator} breaks its own rules",
                why=f"it returned {returned_text}; its shape and dtype rules give {wanted_text}",
                where=str(self.operator.file),
                fix="correct the function, or the rules that edgert.op was given",
            )


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a model: a model for ONNX Runtime, or calls of Python."""

    part: partition.Part
    model: Model | None
    calls: tuple[Call, ...]


def sections(graph: Graph, like: Model) -> list[Section]:
    """Return a model's parts in execution order.

    Raises ModelError: the type of a tensor between parts is unknown, or an attribute does not belong to its operator.
    """
    custom, nodes = graph.custom_operators, {node.name: node for node in graph.nodes}
    places = {node.name: PYTHON if node.name in custom else ORT for node in graph.nodes}
    found = []
    for part in partition.parts(graph, places):
        if part.accelerator == PYTHON:
            calls = []
            for node in map(nodes.__getitem__, part.nodes):
                operator = custom[node.name]
                constants = {name: graph.constants[name] for name in node.inputs if name in graph.constants}
                settings = operator.settings(node.attributes, node.name)
                calls.append(Call(node.name, operator, node.inputs, node.outputs, settings, constants))
            found.append(Section(part, None, tuple(calls)))
        else:
            found.append(Section(part, write(extract(graph, part.outputs, part.inputs), like), ()))
    return found


class CustomOpFunction:
    """Model with custom operators for arrays of any size. ``open_part`` opens standard parts in ONNX Runtime."""

    def __init__(self, model: Model, open_part: Callable[[Model], Any]) -> None:
        self._graph = read(model)
        self._sections = [
            (section, open_part(section.model) if section.model is not None else None)
            for section in sections(self._graph, model)
        ]

    def get_inputs(self) -> Sequence[TensorSpec]:
        """Return the inputs, as ``InferenceSession.get_inputs`` does."""
        return self._graph.inputs

    def get_outputs(self) -> Sequence[TensorSpec]:
        """Return the outputs, as ``InferenceSession.get_outputs`` does."""
        return self._graph.outputs

    def run(self, names: Sequence[str], feeds: Mapping[str, base.Array], options: Any) -> list[base.Array]:
        """Return the named outputs; ``options`` are those of ``InferenceSession.run``."""
        values = dict(feeds)
        for section, session in self._sections:
            part = section.part
            if session is not None:
                outputs = session.run(list(part.outputs), {name: values[name] for name in part.inputs}, options)
                values.update(zip(part.outputs, outputs, strict=True))
            for call in section.calls:
                values.update(zip(call.outputs, call(values), strict=True))
        return [values[name] for name in names]


Compile = Callable[[Model, base.EngineOptions], OrtEngine]
Run = Callable[[], None]


def compile_with_custom_ops(model: Model, options: base.EngineOptions, compile_part: Compile) -> CustomOpEngine:
    """Compile a model with custom operators, separately for each profile.

    ``compile_part`` compiles a part without custom operators. Raises BuildError: ONNX Runtime does not support a part,
    or an operator breaks its rules. Raises ModelError: a profile does not fit, or a size is unknown before the model
    runs.
    """
    started = time.perf_counter()
    profiles = options.profiles or {base.DEFAULT_PROFILE: {}}
    chains = {name: _Chain(model, shapes, options, compile_part) for name, shapes in profiles.items()}
    seconds = round(time.perf_counter() - started, 3)
    return CustomOpEngine(chains, str(model.path), {"threads": options.threads, "compile_s": seconds})


class _Chain:
    """Parts of a model at one input size."""

    def __init__(self, model: Model, shapes: base.Shapes, options: base.EngineOptions, compile_part: Compile) -> None:
        cleaned = clean(with_shapes(model, shapes) if shapes else model)[0]
        self.graph = read(cleaned)
        self.path = str(model.path)
        static = replace(options, profiles={}, spans={})
        self.sections = [
            (section, compile_part(section.model, static) if section.model is not None else None)
            for section in sections(self.graph, cleaned)
        ]
        self.inputs = tuple(self.tensor(spec.name) for spec in self.graph.inputs)
        self.outputs = tuple(self.tensor(spec.name) for spec in self.graph.outputs)

    def tensor(self, name: str) -> base.Tensor:
        """Return a tensor's type and shape. Raises ModelError if its size is unknown."""
        spec = self.graph.specs.get(name)
        sizes = tuple(dim for dim in spec.shape if isinstance(dim, int)) if spec is not None else ()
        if spec is None or not spec.is_static:
            raise ModelError(
                f"the size of tensor {name!r} is not known before the model runs",
                why="ONNX Runtime and a custom operator share it in memory of a fixed size",
                where=self.path,
                fix="give the model static shapes (input: size), and the operator a shape rule: edgert.op(shape=…)",
            )
        return base.Tensor(name, sizes, spec.dtype)

    def bind(self, tensors: Mapping[str, base.Array]) -> Run:
        """Return a run on these inputs and outputs, by name; tensors between sections are allocated here."""
        names = {name for section, _ in self.sections for name in (*section.part.inputs, *section.part.outputs)}
        names |= {name for section, _ in self.sections for call in section.calls for name in call.outputs}
        between = [self.tensor(name) for name in sorted(names - tensors.keys())]
        arrays = {**{one.name: aligned_empty(one.shape, one.dtype) for one in between}, **tensors}
        runs: list[Run] = []
        for section, engine in self.sections:
            if engine is not None:
                inputs = {one.name: arrays[one.name] for one in engine.inputs}
                runs.append(engine.bind(inputs, {one.name: arrays[one.name] for one in engine.outputs}))
            runs += [self._bind_call(call, arrays) for call in section.calls]

        def run() -> None:
            for run_section in runs:
                run_section()

        return run

    def _bind_call(self, call: Call, arrays: Mapping[str, base.Array]) -> Run:
        """Return the run of one operator, whose first result is checked against its rules."""
        expected = [self.tensor(name) for name in call.outputs]
        outputs = [arrays[name] for name in call.outputs]
        is_checked = False

        def run() -> None:
            nonlocal is_checked
            results = call(arrays)
            if not is_checked:
                call.check_outputs(results, expected)
                is_checked = True
            for array, value in zip(outputs, results, strict=True):
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
        operators = [str(call.operator) for section, _ in first.sections for call in section.calls]
        cached = bool(engines) and all(engine.info["cached"] for engine in engines)
        self.info: Mapping[str, Any] = {
            **(engines[0].info if engines else {"backend": "python"}),
            **info,
            "operators": operators,
            "cached": cached,
        }
        self.session().run()  # an operator that breaks its rules fails here

    def session(self, profile: str | None = None) -> CustomOpSession:
        if not self._chains:
            raise base.closed_error(self.path)
        return CustomOpSession(self._chains[base.checked_profile(profile, self.profiles, self.path)])

    def bind(self, inputs: Mapping[str, base.Array], outputs: Mapping[str, base.Array]) -> Run:
        """Return a run on the caller's tensors; see :meth:`edgert.backend.ort.OrtEngine.bind`."""
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
        outputs = dict(zip((one.name for one in chain.outputs), self.outputs, strict=True))
        self._run = chain.bind({**self.inputs, **outputs})

    def run(self, rows: int | None = None) -> Sequence[base.Array]:
        self._run()
        return self.outputs
