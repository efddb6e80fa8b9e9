"""What a build gives, and what it says on the way."""

from __future__ import annotations

from dataclasses import dataclass

from edgert.backend.trt.log import LogRecord
from edgert.backend.trt.mapping import Layer


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of a phase; phases are nested.

    Attributes:
        phase: what TensorRT calls it.
        parent: the phase it is part of, empty for none.
        step, steps: how far it is; ``step == steps`` ends it.
    """

    phase: str
    parent: str
    step: int
    steps: int


@dataclass(frozen=True, slots=True, eq=False)
class BuildResult:
    """An engine and how it came about.

    Attributes:
        plan: the serialised engine.
        timing_cache: what was measured, for the next build; empty where this TensorRT measures nothing.
        log: what TensorRT said, without the verbose lines that mean nothing to edgert.
        inspector: its own JSON about the engine's layers; empty where the engine cannot be opened, as without a GPU.
        layers: of the network that TensorRT's parser made.
        refused: nodes placed on a DLA whose layers TensorRT says cannot run there, before building.
        library: ``TensorRT 10.3.0``.
        seconds: spent building.
    """

    plan: bytes
    timing_cache: bytes
    log: tuple[LogRecord, ...]
    inspector: str
    layers: tuple[Layer, ...]
    refused: tuple[str, ...]
    library: str
    seconds: float
