"""Watts: MLPerf's measurements at the wall, and NVIDIA's ratios of images a second and watt between DLA and GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import yaml
from scipy.optimize import least_squares

from edgert.board.record import Board, board
from edgert.board.sections import Mode
from edgert.placement.cost.coefficients import Accuracy, DlaCost, GpuCost, coefficients
from edgert.placement.cost.formulas import gpu_bytes, gpu_seconds, gpu_speed
from edgert.placement.cost.power import ChipPower, PowerCost, power
from edgert.placement.cost.work import Numbers, table
from scripts.fitting.chip import rounded
from scripts.fitting.published import PUBLISHED, Design, Timing, set_mode, works

START = PowerCost(static_w=8.0, gpu_w=1.5, dla_w=2.0, dram_pj_per_byte=60.0)
_KEYS = ("static_w", "gpu_w", "dla_w")
_PULL, _OUTLIER = 0.1, 0.1
_FASTEST = {"tegra194": {"agx-xavier-32gb": "MAXN", "xavier-nx-8gb": "MODE_20W_6CORE"},
            "tegra234": {"agx-orin-64gb": "MAXN"}}  # fmt: skip

_HEAD = "# Written by scripts/fit_power from configs/costs/published_power.yaml; what the keys mean: docs/costs.md.\n"
_ASSUMED = {"cost.dram_pj_per_byte": "typical of LPDDR4X and LPDDR5 with their controllers; no Jetson's is published"}
_NO_POWER = "no published power of this chip with a network that is known; where the fit of the others starts"


@cache
def rows_of() -> dict[str, Any]:
    """The file of published watts."""
    data: dict[str, Any] = yaml.safe_load(PUBLISHED.with_name("published_power.yaml").read_text(encoding="utf-8"))
    return data


@dataclass(frozen=True, slots=True)
class Draw:
    """One measured power.

    Attributes:
        board, mode: with the clocks that were set.
        model: for the table.
        traffic_bytes_s: DRAM bytes a second at the published rate.
        dlas: DLA cores that were busy; the GPU always was.
        busy: share of the time that the GPU was, by the model.
        watts: at the wall.
    """

    board: Board
    mode: Mode
    model: str
    traffic_bytes_s: float
    dlas: int
    busy: float
    watts: float


def draws(soc: str, gpu: GpuCost) -> list[Draw]:
    """Every published power of one chip whose network is known."""
    found = []
    for group in rows_of()["watts"]:
        record = board(group["board"])
        if record.soc == soc:
            found += [_draw(record, row, gpu) for row in group["rows"]]
    return found


def _draw(record: Board, row: Sequence[float], gpu: GpuCost) -> Draw:
    model, size, batch, gpu_mhz, dla_mhz, emc_mhz, watts, fps = row
    clocks = {"gpu_mhz": gpu_mhz, "emc_mhz": emc_mhz} | ({"dla_mhz": dla_mhz} if dla_mhz else {})
    mode = set_mode(record, _FASTEST[record.soc][record.name], clocks)
    columns = table(works(str(model), int(size)), max(batch, 1))
    speed = gpu_speed(record, mode, "int8")
    traffic = float(gpu_bytes(columns, speed).sum()) / max(batch, 1) * fps
    seconds = float(gpu_seconds(columns, speed, gpu).sum()) / max(batch, 1)
    return Draw(record, mode, str(model), traffic, 0 if batch else 2, min(seconds * fps, 1.0) if batch else 1.0, watts)


def predict_w(row: Draw, cost: PowerCost) -> float:
    """Watts of a run with the GPU and perhaps both DLA cores busy."""
    found = power(row.board, row.mode, cost)
    engines = found.gpu_w * row.busy + found.dla_w * row.dlas
    return found.static_w + engines + row.traffic_bytes_s * found.dram_pj_per_byte * 1e-12


def main() -> int:
    """The command."""
    chips = {soc: _chip(soc) for soc in ("tegra186", "tegra194", "tegra210", "tegra234", "tegra264")}
    data = {soc: chip.model_dump(exclude_none=True, mode="json") for soc, chip in chips.items()}
    text = yaml.safe_dump(rounded(data), sort_keys=False, width=118, allow_unicode=True)
    PUBLISHED.with_name("power.yaml").write_text(_HEAD + text, encoding="utf-8")
    return 0


def _chip(soc: str) -> ChipPower:
    costs = coefficients(soc)
    watts = leave_one_out_power(soc, costs.gpu, costs.dla)
    errors, accuracy = [abs(watt / row.watts - 1) for row, watt in watts], None
    if errors:
        median, p90 = (round(float(np.quantile(errors, part)), 3) for part in (0.5, 0.9))
        accuracy = Accuracy(rows=len(errors), models=len({row.model for row, _ in watts}), median=median, p90=p90)
    assumed = {**_ASSUMED, **({} if errors else {"cost": _NO_POWER})}
    return ChipPower(cost=fit_power(soc, costs.gpu, costs.dla), accuracy=accuracy, assumed=assumed)


def fit_power(soc: str, gpu: GpuCost, dla: DlaCost | None, rows: Sequence[Draw] | None = None) -> PowerCost:
    """Static, GPU and DLA watts of one chip; a chip without a published power keeps where the fit starts."""
    rows = draws(soc, gpu) if rows is None else rows
    ratios = _ratios(gpu, dla) if soc == "tegra234" and dla else []
    if not rows:
        return START
    first = np.log([getattr(START, key) for key in _KEYS])

    def residuals(values: Numbers) -> Numbers:
        cost = START.model_copy(update=dict(zip(_KEYS, np.exp(values).tolist(), strict=True)))
        errors = [np.log(predict_w(row, cost) / row.watts) for row in rows]
        shares = [0.3 * np.log(_ratio(cost, mode, gain) / ratio) for mode, gain, ratio in ratios]
        return np.concatenate([errors, shares, _PULL * (values - first)])

    found = least_squares(residuals, first, loss="soft_l1", f_scale=_OUTLIER)
    return START.model_copy(update=dict(zip(_KEYS, np.exp(found.x).tolist(), strict=True)))


def leave_one_out_power(soc: str, gpu: GpuCost, dla: DlaCost | None) -> list[tuple[Draw, float]]:
    """Each network's watts by a fit to the others'."""
    rows = draws(soc, gpu)
    found = []
    for model in dict.fromkeys(row.model for row in rows):
        cost = fit_power(soc, gpu, dla, [row for row in rows if row.model != model])
        found += [(row, predict_w(row, cost)) for row in rows if row.model == model]
    return found


def _ratios(gpu: GpuCost, dla: DlaCost) -> list[tuple[Mode, float, float]]:
    """(mode, images a second of a DLA core over the GPU's by the model, published ratio per watt)."""
    record = board("agx-orin-64gb")
    found = []
    for model, size, gpu_batch, dla_batch, *ratios in rows_of()["dla_over_gpu"]["rows"]:
        for name, ratio in zip(("MAXN", "MODE_50W", "MODE_30W", "MODE_15W"), ratios, strict=True):
            mode = record.mode(name)
            rows = [Timing(record, mode, model, size, "int8", batch, accelerator, 1.0, "")
                    for batch, accelerator in ((gpu_batch, "gpu"), (dla_batch, "dla0"))]  # fmt: skip
            gpu_ms = Design(rows[:1], 1.0).predict_ms(gpu)[0] / gpu_batch
            dla_ms = Design(rows[1:], dla.fp16_share).predict_ms(dla)[0] / dla_batch
            found.append((mode, float(gpu_ms / dla_ms), float(ratio)))
    return found


def _ratio(cost: PowerCost, mode: Mode, gain: float) -> float:
    found = power(board("agx-orin-64gb"), mode, cost)
    return gain * found.gpu_w / found.dla_w
