"""The memory of a planned row, part by part.

Of a board: weights and tensors of every engine, by accelerator, a CUDA context, and the host's frames. What TensorRT
keeps for itself is not in it: it depends on its version, and no figures of it are published for these boards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgert.assemble.memory import QUEUES, engine_parts, frame_parts, sizes_of
from edgert.budget.footprint import Footprint, Part, shrunk
from edgert.config import PipelineFile
from edgert.placement.constraints import Placement, engine_bytes
from edgert.placement.problem import Assignment, Network

NOT_PLANNED = "memory: what TensorRT and Python keep for themselves is not in it; edgert run measures it"
CONTEXT_BYTES = 197 * 2**20
"""Of a CUDA context on a Jetson, whose memory host and GPU share: what TensorRT logged as "Init CUDA" on a Jetson Nano
(https://github.com/wang-xinyu/tensorrtx/issues/1145). With CUDA's lazy loading, the default since 12.2, it is less: a
whole process was at 37 MiB after it on an Orin NX (https://github.com/OE4T/meta-tegra/pull/2243)."""
_CONTEXT_NOTE = "modeled: context of a Jetson Nano; less since CUDA 12.2"


def row_memory(file: PipelineFile, machine_bytes: int, parts_of: Callable[[PipelineFile], Sequence[Part]]) -> Footprint:
    """A row's memory, with queues as short as its budget or its machine asks for; the engines are those it placed.

    Args:
        machine_bytes: the most that programs can have there.
        parts_of: called with the pipeline, and with ones whose queues are shorter.
    """
    budget_bytes = file.config.budgets.memory
    return shrunk(file, lambda one: Footprint(tuple(parts_of(one)), budget_bytes, machine_bytes), [QUEUES])[1]


def board_parts(file: PipelineFile, networks: Sequence[Network], placement: Placement) -> tuple[Part, ...]:
    """Of a placement on a board; ``networks`` in its order."""
    engines = [
        part
        for network, placed in zip(networks, placement.networks, strict=True)
        for engine in placed.engines
        for part in _engine(network, engine.assignment)
    ]
    context = Part("CUDA", "gpu", "runtime", CONTEXT_BYTES, _CONTEXT_NOTE)
    return (*engines, context, *frame_parts(file))


def host_parts(file: PipelineFile, placement: Placement) -> tuple[Part, ...]:
    """Of a placement on the cores of this machine, where ONNX Runtime runs the models."""
    config = file.config
    engines = [
        part
        for placed in placement.networks
        for part in engine_parts(placed.name, sizes_of(config, placed.name), len(placed.engines))
    ]
    return (*engines, *frame_parts(file))


def _engine(network: Network, assignment: Assignment) -> list[Part]:
    """Weights lie with the accelerator that reads them; tensors are shared by all that the engine runs on."""
    weights: dict[str, int] = {}
    for unit, name in zip(network.units, assignment, strict=True):
        weights[name] = weights.get(name, 0) + unit.weight_bytes
    tensors = engine_bytes(network) - sum(weights.values())
    where = "+".join(weights)
    parts = [Part(network.name, name, "weights", size) for name, size in weights.items()]
    return [*parts, Part(network.name, where, "activations", tensors, "inputs and outputs among them")]
