"""Records of published rows in ``configs/costs/published.yaml``, and a table of timings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from edgert.board.record import Board, board
from edgert.board.sections import Mode
from edgert.placement.cost.coefficients import DlaCost, GpuCost
from edgert.placement.cost.formulas import (
    Speed,
    dla_seconds,
    dla_speed,
    gpu_seconds,
    gpu_speed,
    gpu_waves,
    recorded_share,
)
from edgert.placement.cost.work import Numbers, Table, Work, table, units
from tools.networks.table import build

_CALLERS = {"Python": "torch2trt", "inference only": "ultralytics", "NumPy preprocessing": "numpy"}
"""What a source measures → whose Python call is in its times."""
CALL_US = {"torch2trt": 200.0, "ultralytics": 200.0, "numpy": 20_000.0}
"""Where the fit starts for what such a call adds; preprocessing on a Jetson Nano's CPU takes tens of milliseconds."""
PUBLISHED = Path(__file__).parents[2] / "configs" / "costs" / "published.yaml"


@dataclass(frozen=True, slots=True)
class Timing:
    """One published time; ``caller``: whose call was timed, ``recorded``: as a CUDA graph, ``part``: a unit."""

    board: Board
    mode: Mode
    model: str
    size: int
    precision: str
    batch: int
    accelerator: str
    time_ms: float
    source: str
    publisher: str
    caller: str = ""
    recorded: bool = False
    part: int | None = None

    @property
    def works(self) -> tuple[Work, ...]:
        """Timed units."""
        found = works(self.model, self.size)
        return found if self.part is None else (found[self.part],)


@cache
def works(model: str, size: int) -> tuple[Work, ...]:
    """Return the units of a network with work, at batch 1."""
    return tuple(work for work in units(build(model, size)) if work.kind != "view")


@cache
def published() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(PUBLISHED.read_text(encoding="utf-8"))
    return data


def timings(soc: str, accelerator: str) -> list[Timing]:
    found = [*_networks(), *_layers()]
    return [row for row in found if row.board.soc == soc and row.accelerator == accelerator]


def set_mode(record: Board, name: str, clocks: dict[str, float]) -> Mode:
    return record.mode(name).model_copy(update={key: float(value) for key, value in clocks.items()})


def groups(kind: str) -> Iterator[tuple[Board, Mode, dict[str, Any]]]:
    """Yield the published groups of a kind, each with its board in the mode and with the clocks that it names."""
    for group in published()[kind]:
        record = board(group["board"])
        yield record, set_mode(record, group["mode"], group.get("clocks", {})), group


def _networks() -> Iterator[Timing]:
    for record, mode, group in groups("timings"):
        caller = next((name for measures, name in _CALLERS.items() if group["measures"].startswith(measures)), "")
        recorded = group.get("recorded", False)
        for model, size, precision, batch, accelerator, time_ms in group["rows"]:
            what = (model, size, precision, batch, accelerator, time_ms)
            yield Timing(record, mode, *what, group["source"], group["publisher"], caller, recorded)


def _layers() -> Iterator[Timing]:
    group = published()["layers"]
    record = board(group["board"])
    mode = set_mode(record, group["mode"], group["clocks"])
    for part, time_ms in enumerate(group["milliseconds"]):
        what = (group["model"], 1280, "int8", 1, "dla0", time_ms)
        yield Timing(record, mode, *what, group["source"], group["publisher"], part=part)


# Many timings as one table, so that a set of coefficients predicts all of them in one go.


class Design:
    """Inputs of the formulas for timings, all of a GPU or all of a DLA."""

    def __init__(self, rows: Sequence[Timing], fp16_share: float) -> None:
        self.rows = list(rows)
        tables, repeats = zip(*(_distinct(table(row.works, row.batch)) for row in rows), strict=True)
        counts = [len(item) for item in tables]
        self._repeats = np.concatenate(repeats)
        self._table = Table(*(np.concatenate([getattr(one, part.name) for one in tables]) for part in fields(Table)))
        self._starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.intp)
        self._speed = _joined([_speed(row, fp16_share) for row in rows], counts)
        self._recorded = np.repeat(
            [recorded_share(row.mode, "graph" if row.recorded else "kernels") for row in rows], counts
        )
        self._runs = np.array([row.part is None for row in rows], dtype=np.float64)
        self._waves = gpu_waves(self._table, self._speed)
        self.callers = tuple(sorted({row.caller for row in rows} - {""}))
        self._calls = np.array([[row.caller == name for name in self.callers] for row in rows], dtype=np.float64)
        self.measured_ms: Numbers = np.array([row.time_ms for row in rows])
        self.models = np.array([row.model for row in rows])

    def predict_ms(self, cost: GpuCost | DlaCost, call_us: Mapping[str, float] | None = None) -> Numbers:
        """Return the milliseconds of every timing; ``call_us`` is added where the call was timed, too."""
        if isinstance(cost, GpuCost):
            seconds = gpu_seconds(self._table, self._speed, cost, self._recorded, self._waves)
        else:
            seconds = dla_seconds(self._table, self._speed, cost)
        sums: Numbers = np.add.reduceat(self._repeats * seconds, self._starts)
        added = self._calls @ np.array([(call_us or {}).get(name, 0.0) for name in self.callers])
        return np.asarray(1e3 * (sums + (self._runs * cost.run_us + added) * 1e-6))


def _distinct(whole: Table) -> tuple[Table, Numbers]:
    """Return the distinct units of a network, and the number of each."""
    columns = np.stack([getattr(whole, part.name) for part in fields(Table)])
    rows, repeats = np.unique(columns, axis=1, return_counts=True)
    return Table(*rows), repeats.astype(np.float64)


def _speed(row: Timing, fp16_share: float) -> Speed:
    if row.accelerator == "gpu":
        return gpu_speed(row.board, row.mode, row.precision)  # type: ignore[arg-type]
    speed = dla_speed(row.board, row.mode, row.precision, 0, fp16_share)  # type: ignore[arg-type]
    assert speed is not None, f"{row.board.name} has no DLA for {row.precision}"
    return speed


def _joined(speeds: Sequence[Speed], counts: Sequence[int]) -> Speed:
    columns = ([getattr(speed, column.name) for speed in speeds] for column in fields(Speed))
    return Speed(*(np.repeat(np.array(column, dtype=np.float64), counts) for column in columns))
