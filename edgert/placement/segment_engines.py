"""Engines made of segments: as simulated steps on accelerators, and compiled to run on this machine without copies.

Every tensor that one segment passes to another has several slots. While a segment writes slot 1 for frame n + 1, the
next segment reads slot 0 of frame n. The channel between them blocks the writer before it reaches a slot in use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgert.backend import EngineOptions, Store, Tensor
from edgert.backend.base import Array, share_first_dimension
from edgert.backend.ort import CustomOpEngine, OrtBackend, OrtEngine
from edgert.errors import EdgertError, PlacementError
from edgert.graph import Graph, Model
from edgert.memory import aligned_empty
from edgert.placement.cutting import Part, cut

if TYPE_CHECKING:
    from edgert.placement.problem import Assignment, Network

# An engine as steps, in the order in which its execution context runs them for a frame.

_AMOUNTS = ("time_ms", "traffic_bytes", "energy_mj")  # fields of a step that add up
_NO_TIME_MS = 1e-9  # rounding may leave a little of a time that should be 0


@dataclass(frozen=True, slots=True)
class Step:
    """Work that occupies an accelerator, or only takes time.

    Attributes:
        accelerator: accelerator that runs only this step meanwhile; None for a step that only takes time.
        time_ms: duration alone on the board.
        traffic_bytes: bytes to and from DRAM.
        slowdown: factor by which a step on a CPU core takes longer while all other cores are busy.
        threads: number of cores that share the step.
        energy_mj: energy alone at full clocks, beyond the idle board's.
    """

    accelerator: str | None
    time_ms: float
    traffic_bytes: float = 0.0
    slowdown: float = 1.0
    threads: int = 1
    energy_mj: float = 0.0

    def times(self, factor: float) -> Step:
        """Return one step for this many runs of the step, one after the other."""
        return replace(self, **{name: getattr(self, name) * factor for name in _AMOUNTS})


def steps(network: Network, assignment: Assignment) -> tuple[Step, ...]:
    """Return the segments as steps, each after the transitions of its inputs; outputs return home at the end.

    A tensor makes one transition to an accelerator, before the first segment there that reads it. The source
    accelerator is busy right after its own segment. The accelerators that reformat and receive the tensor are busy
    right before the reading segment; the rest of the transition only takes time. The times add up to the latency of a
    run. Traffic and energy of a transition count for the accelerator that moves the tensor.
    """
    from edgert.placement.run_load import segments, transitions_of  # needed for plans, not to start a pipeline

    cuts = segments(network, assignment)
    place = {unit: index for index, segment in enumerate(cuts) for unit in segment.units}
    before: list[list[Step]] = [[] for _ in range(len(cuts) + 1)]
    after: list[list[Step]] = [[] for _ in cuts]
    for edge, start, end, transition in transitions_of(network, assignment):
        shares, mover = transition.busy(start, end), 1 if transition.gpu_ms else 0
        given, *taken = (
            Step(name, busy_ms, transition.traffic_bytes * is_mover, energy_mj=transition.energy_mj * is_mover)
            for name, busy_ms, is_mover in ((*share, number == mover) for number, share in enumerate(shares))
        )
        taken.append(Step(None, transition.time_ms - sum(busy_ms for _, busy_ms in shares)))
        reader = min((place[unit] for unit in edge.consumers if assignment[unit] == end), default=len(cuts))
        before[reader] += taken
        (before[reader] if edge.producer is None else after[place[edge.producer]]).append(given)
    found: list[Step] = []
    for index, segment in enumerate(cuts):
        costs = [network.units[unit].costs[segment.accelerator] for unit in segment.units]
        traffic_bytes = sum(cost.traffic_bytes for cost in costs)
        energy_mj = sum(cost.energy_mj for cost in costs)
        run = Step(segment.accelerator, sum(cost.time_ms for cost in costs), traffic_bytes, energy_mj=energy_mj)
        found += [*_grouped_by_accelerator(before[index], segment.accelerator), run, *after[index]]
    return _merge_neighbors([*found, *_grouped_by_accelerator(before[-1], network.home)])


def _grouped_by_accelerator(found: list[Step], last: str) -> list[Step]:
    """Return the steps grouped by accelerator, so that each is occupied once, with ``last`` at the end."""
    return sorted(found, key=lambda step: (step.accelerator == last, step.accelerator is None, step.accelerator or ""))


def _merge_neighbors(found: list[Step]) -> tuple[Step, ...]:
    """Return the steps with neighbors on one accelerator merged, and without steps that take no time."""
    joined: list[Step] = []
    for step in found:
        if step.time_ms <= _NO_TIME_MS:
            continue
        if joined and joined[-1].accelerator == step.accelerator:
            before = joined.pop()
            both = {name: getattr(before, name) + getattr(step, name) for name in _AMOUNTS}
            step = replace(step, **both)
        joined.append(step)
    return tuple(joined)


_Engine = OrtEngine | CustomOpEngine


class SegmentedEngine:
    """The engines of all segments of one model, each for one thread.

    ``inputs``, ``outputs``, ``outputs_known`` and ``batched`` are those of :class:`~edgert.backend.Engine`, for the
    complete model.

    Attributes:
        segments: segments in the order in which they run.
        info: properties for the summary.
        tensors: tensors by name: inputs, outputs, and those passed between segments.
    """

    def __init__(self, parts: Sequence[Part], engines: Sequence[_Engine], graph: Graph, path: Path) -> None:
        self.segments, self._engines, self._path = tuple(parts), tuple(engines), path
        self.tensors: Mapping[str, Tensor] = {t.name: t for one in engines for t in (*one.inputs, *one.outputs)}
        missing = [spec.name for spec in graph.outputs if spec.name not in self.tensors]
        if missing:
            raise PlacementError(
                f"no segment computes output {missing[0]!r}",
                why="this output is an input or a stored tensor of the model",
                where=str(path),
                fix="placement: auto, or one accelerator for the whole model",
            )
        self.inputs: tuple[Tensor, ...] = tuple(
            self.tensors[spec.name] for spec in graph.inputs if spec.name in self.tensors
        )
        self.outputs: tuple[Tensor, ...] = tuple(self.tensors[spec.name] for spec in graph.outputs)
        self.outputs_known = all(spec.is_static for spec in graph.outputs)
        self.batched = share_first_dimension([t.shape for t in self.inputs], [t.shape for t in self.outputs])
        self.info: Mapping[str, Any] = {
            **engines[0].info,
            "threads": 1,
            "segments": [str(part) for part in parts],
            "cached": all(engine.info["cached"] for engine in engines),
            "compile_s": round(sum(engine.info["compile_s"] for engine in engines), 3),
        }

    def chain(self, waiting: int) -> Chain:
        """Return a chain with its own tensors.

        Args:
            waiting: maximum number of frames that wait between two segments.
        """
        return Chain(self, self._engines, 1 + (waiting + 1) * (len(self.segments) - 1))

    def lives(self, name: str) -> tuple[int, int]:
        """Return the first and the last segment that use a tensor; an output of the model lives until the end."""
        users = [n for n, s in enumerate(self.segments) if name in s.inputs or name in s.outputs]
        leaves = any(name == tensor.name for tensor in self.outputs)
        return users[0], len(self.segments) - 1 if leaves else users[-1]

    def close(self) -> None:
        """Free the engines' memory."""
        for engine in self._engines:
            engine.close()


class Chain:
    """Tensors in slots, and every segment bound to them; each segment may run in one thread at a time.

    Attributes:
        slots: number of sets of tensors; frame n uses set n modulo this number.
        segments: number of segments.
    """

    def __init__(self, engine: SegmentedEngine, engines: Sequence[_Engine], slots: int) -> None:
        self.slots, self.segments = slots, len(engines)
        self._parts = engine.segments
        self._sets: list[dict[str, Array]] = [{} for _ in range(slots)]
        for name, tensor in engine.tensors.items():
            first, last = engine.lives(name)  # a tensor of only one segment is the same array in all sets
            arrays = [aligned_empty(tensor.shape, tensor.dtype) for _ in range(slots if last > first else 1)]
            for array in arrays:
                array.fill(0)
            for number, tensors in enumerate(self._sets):
                tensors[name] = arrays[number % len(arrays)]
        self._outputs = [[tensors[tensor.name] for tensor in engine.outputs] for tensors in self._sets]
        self._runs = [
            [
                one.bind({t.name: tensors[t.name] for t in one.inputs}, {t.name: tensors[t.name] for t in one.outputs})
                for tensors in self._sets
            ]
            for one in engines
        ]

    def tensors(self, slot: int) -> Mapping[str, Array]:
        """Return the slot's tensors, by name; write the model's inputs before running its first segment."""
        return self._sets[slot]

    def run(self, segment: int, slot: int) -> None:
        """Run one segment on one slot and wait for it; raise BuildError that names the segment."""
        try:
            self._runs[segment][slot]()
        except EdgertError as error:
            error.where = f"{error.where}, segment {segment + 1} of {self.segments}: {self._parts[segment]}"
            raise

    def outputs(self, slot: int) -> Sequence[Array]:
        """Return the model's outputs, in its order, after its last segment has run; valid until the slot's next use."""
        return self._outputs[slot]


def compile_segments(model: Model, graph: Graph, parts: Sequence[Part], store: Store | None) -> SegmentedEngine:
    """Compile every segment with ONNX Runtime, for one thread each.

    Args:
        model: cleaned model with static shapes.
        graph: graph of ``model``.
        parts: parts of the model, one for each segment.
        store: cache of compiled engines; None for none.

    Raises:
        PlacementError: the model cannot be cut there.
        BuildError: ONNX Runtime refuses a segment.
    """
    options = EngineOptions(threads=1, store=store)
    with ExitStack() as unused:
        compiled = (OrtBackend().compile(cut(graph, part, model), options) for part in parts)
        engines = [unused.enter_context(closing(engine)) for engine in compiled]
        segmented = SegmentedEngine(parts, engines, graph, model.path)
        unused.pop_all()
    return segmented
