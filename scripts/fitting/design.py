"""Many timings as one table, so that a set of coefficients predicts all of them in one go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from edgert.placement.cost.coefficients import DlaCost, GpuCost
from edgert.placement.cost.speeds import Speed, dla_speed, gpu_speed
from edgert.placement.cost.times import dla_seconds, gpu_seconds
from edgert.placement.cost.work import Numbers, joined, table
from scripts.fitting.row import Timing


class Design:
    """The inputs of the formulas for these timings, all of the GPU or all of a DLA."""

    def __init__(self, rows: Sequence[Timing], fp16_share: float) -> None:
        self.rows = list(rows)
        tables = [table(row.works, row.batch) for row in rows]
        counts = [len(item) for item in tables]
        self._table = joined(tables)
        self._starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.intp)
        self._speed = _joined([_speed(row, fp16_share) for row in rows], counts)
        self._runs = np.array([row.part is None for row in rows], dtype=np.float64)
        self._calls = np.array([row.is_call for row in rows], dtype=np.float64)
        self.measured_ms: Numbers = np.array([row.time_ms for row in rows])
        self.models = np.array([row.model for row in rows])

    @property
    def has_calls(self) -> bool:
        """Whether some timings are of a Python call."""
        return bool(self._calls.any())

    def predict_ms(self, cost: GpuCost | DlaCost, call_us: float = 0.0) -> Numbers:
        """Milliseconds of every timing; ``call_us`` is what a Python call adds where that was timed."""
        if isinstance(cost, GpuCost):
            seconds = gpu_seconds(self._table, self._speed, cost)
        else:
            seconds = dla_seconds(self._table, self._speed, cost)
        sums: Numbers = np.add.reduceat(seconds, self._starts)
        return np.asarray(1e3 * (sums + (self._runs * cost.run_us + self._calls * call_us) * 1e-6))


def _speed(row: Timing, fp16_share: float) -> Speed:
    if row.accelerator == "gpu":
        return gpu_speed(row.board, row.mode, row.precision)  # type: ignore[arg-type]
    speed = dla_speed(row.board, row.mode, row.precision, 0, fp16_share)  # type: ignore[arg-type]
    assert speed is not None, f"{row.board.name} has no DLA for {row.precision}"
    return speed


def _joined(speeds: Sequence[Speed], counts: Sequence[int]) -> Speed:
    columns = ([getattr(speed, column.name) for speed in speeds] for column in fields(Speed))
    return Speed(*(np.repeat(np.array(column, dtype=np.float64), counts) for column in columns))
