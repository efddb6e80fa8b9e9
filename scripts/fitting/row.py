"""Published rows: ``configs/costs/published.yaml`` as records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from edgert.board.record import Board, board
from edgert.board.sections import Mode
from edgert.placement.cost.fused_kernels import units
from edgert.placement.cost.work import Work
from scripts.networks.table import build

PUBLISHED = Path(__file__).parents[2] / "configs" / "costs" / "published.yaml"


@dataclass(frozen=True, slots=True)
class Timing:
    """One published time.

    Attributes:
        board: as edgert knows it.
        mode: power mode, with clocks that were set by hand.
        model, size: network and side of its input.
        precision, batch: as built.
        accelerator: ``"gpu"`` or ``"dla0"``.
        time_ms: of one run, which is one batch.
        source: address.
        is_call: whether a Python call around the engine was timed, not the engine.
        part: index of the one unit that was timed; None: the whole network.
    """

    board: Board
    mode: Mode
    model: str
    size: int
    precision: str
    batch: int
    accelerator: str
    time_ms: float
    source: str
    is_call: bool = False
    part: int | None = None

    @property
    def works(self) -> tuple[Work, ...]:
        """The units that were timed."""
        found = works(self.model, self.size)
        return found if self.part is None else (found[self.part],)


@cache
def works(model: str, size: int) -> tuple[Work, ...]:
    """Units of a network that do something, at batch 1."""
    return tuple(work for work in units(build(model, size)) if work.kind != "view")


@cache
def published() -> dict[str, Any]:
    """The whole file."""
    data: dict[str, Any] = yaml.safe_load(PUBLISHED.read_text(encoding="utf-8"))
    return data


def timings(soc: str, accelerator: str) -> list[Timing]:
    """Every published time of one chip on its GPU or on one DLA core, single layers included."""
    found = [*_networks(), *_layers()]
    return [row for row in found if row.board.soc == soc and row.accelerator == accelerator]


def set_mode(record: Board, name: str, clocks: dict[str, float]) -> Mode:
    """A power mode with clocks set by hand."""
    return record.mode(name).model_copy(update={key: float(value) for key, value in clocks.items()})


def _networks() -> Iterator[Timing]:
    for group in published()["timings"]:
        record = board(group["board"])
        mode = set_mode(record, group["mode"], group.get("clocks", {}))
        is_call = group["measures"].startswith("Python")
        for model, size, precision, batch, accelerator, time_ms in group["rows"]:
            yield Timing(record, mode, model, size, precision, batch, accelerator, time_ms, group["source"], is_call)


def _layers() -> Iterator[Timing]:
    group = published()["layers"]
    record = board(group["board"])
    mode = set_mode(record, group["mode"], group["clocks"])
    for part, time_ms in enumerate(group["milliseconds"]):
        yield Timing(record, mode, group["model"], 1280, "int8", 1, "dla0", time_ms, group["source"], part=part)
