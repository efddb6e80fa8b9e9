"""Fit of watts to measurements at the plug, of modules and of rails, and to efficiency ratios of DLA and GPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import scipy
import yaml

from edgert.board.record import Board, board
from edgert.board.sections import Mode
from edgert.placement.cost import power as watts
from edgert.placement.cost.board_network import gpu_work
from edgert.placement.cost.coefficients import Accuracy, coefficients
from edgert.placement.cost.formulas import gpu_bytes, gpu_seconds, gpu_speed
from edgert.placement.cost.work import Numbers, table
from tools.fitting.chip import rounded
from tools.fitting.published import PUBLISHED, Design, Timing, set_mode, works

_HEAD = "# Written by tools/fit_power from configs/costs/published_power.yaml; what the keys mean: docs/costs.md.\n"
_CLOCKS = {
    "tegra186": watts.Clocks(gpu=1300.5, cpu=2035),
    "tegra194": watts.Clocks(gpu=1377, cpu=2265.6, dla=1395.2),
    "tegra210": watts.Clocks(gpu=921.6, cpu=1479),
    "tegra234": watts.Clocks(gpu=1300.5, cpu=2201.6, dla=1600),
    "tegra264": watts.Clocks(gpu=1575, cpu=2601),
}
"""The highest of configs/boards."""
_START = {"gpu_w": 1.7, "stalled": 0.65, "dla_w": 3.0, "cpu_w": 0.55, "dram_pj_per_byte": 50.0, "overhead": 1.2}
_PULL = {"gpu_w": 0.1, "stalled": 0.3, "dla_w": 0.1, "cpu_w": 0.1, "dram_pj_per_byte": 0.5, "overhead": 0.3}
"""How firmly each number is held to where the fit starts: hardly where rows tell it, firmly where they do not."""
_OUTLIER = 0.1
_EFFICIENCY = 0.88
_CARRIER_W = 3.0
_STRESS, _ORDINARY = 0.8, 0.35
"""Parts of its peak at which a GPU multiplies in an endless matrix product, and in an application that is not named."""
_BATCH = 16
"""Of a GPU whose batch a source does not name."""
_FASTEST = {"agx-xavier-32gb": "MAXN", "xavier-nx-8gb": "MODE_20W_6CORE", "agx-orin-64gb": "MAXN"}
_FITTED = ("tegra234", "tegra194")


@dataclass(frozen=True, slots=True)
class Draw:
    """One measured power, of the ``wall``, the ``module`` or a ``rail``; ``gpu``: shares of time and peak."""

    board: Board
    mode: Mode
    idle_w: float
    model: str
    gpu: tuple[float, float]
    dlas: int
    cores: float
    bytes_s: float
    meter: str
    watts: float
    source: str

    def predicted_w(self, cost: watts.PowerCost, carriers: Mapping[str, float]) -> float:
        """Return the predicted watts; an unknown carrier counts as the mean of the others."""
        if self.meter == "rail":
            cost = cost.model_copy(update={"overhead": 1.0})
        made = watts.power(self.board, self.mode, cost)
        engines = made.gpu_w * self.gpu[0] + made.math_w * self.gpu[1] + made.dla_w * self.dlas
        drawn = self.idle_w + engines + made.cpu_w * self.cores + self.bytes_s * made.dram_pj_per_byte * 1e-12
        if self.meter != "wall":
            return drawn
        usual = float(np.mean(list(carriers.values()))) if carriers else _CARRIER_W
        return drawn / _EFFICIENCY + carriers.get(self.board.name, usual)


@cache
def rows_of() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(PUBLISHED.with_name("published_power.yaml").read_text(encoding="utf-8"))
    return data


def draws(soc: str) -> list[Draw]:
    found = []
    for kind, made in (("watts", _at_the_wall), ("module", _of_the_module), ("rails", _of_a_rail)):
        for group in rows_of()[kind]:
            record = board(group["board"])
            if record.soc == soc:
                found += [made(record, group, row) for row in group["rows"]]
    return found


def _at_the_wall(record: Board, group: Mapping[str, Any], row: Sequence[Any]) -> Draw:
    """Return a run at full rate, on the GPU alone or with both DLA cores; one CPU core is assumed to feed it."""
    model, size, batch, gpu_mhz, dla_mhz, emc_mhz, read_w, fps = row
    clocks = {"gpu_mhz": gpu_mhz, "emc_mhz": emc_mhz} | ({"dla_mhz": dla_mhz} if dla_mhz else {})
    mode = set_mode(record, _FASTEST[record.name], clocks)
    cost, speed, frames = coefficients(record.soc).gpu, gpu_speed(record, mode, "int8"), batch or _BATCH
    columns = table(works(model, int(size)), frames)
    seconds = gpu_seconds(columns, speed, cost)
    running, at_peak = (float(part.sum() / seconds.sum()) for part in gpu_work(columns, seconds, speed, cost))
    gpu = running, at_peak  # a run follows the last, so that its parts of the time are those of the whole
    bytes_s = float(gpu_bytes(columns, speed, cost).sum()) / frames * fps
    near = min(record.modes, key=lambda one: abs((one.emc_mhz or 0.0) - emc_mhz))  # whose memory's clock is nearest
    idle_w = record.idle_w(near)
    assert idle_w is not None
    return Draw(record, mode, idle_w, model, gpu, 0 if batch else 2, 1, bytes_s, "wall", read_w, group["source"])


def _of_the_module(record: Board, group: Mapping[str, Any], row: Sequence[Any]) -> Draw:
    model, name, gpu_mhz, busy, cores, share, read_w = row
    mode = set_mode(record, name, {"gpu_mhz": gpu_mhz})
    idle_w, rate = record.idle_w(mode), record.bandwidth_gb_s(mode)
    assert idle_w is not None and rate is not None
    gpu = busy, busy * (_STRESS if model == "gemm" else _ORDINARY)
    return Draw(record, mode, idle_w, model, gpu, 0, cores, share * rate * 1e9, "module", read_w, group["source"])


def _of_a_rail(record: Board, group: Mapping[str, Any], row: Sequence[Any]) -> Draw:
    mode = record.mode(row[0])
    is_gpu = group["engine"] == "gpu"
    gpu, cores = (1.0, _STRESS) if is_gpu else (0.0, 0.0), 0 if is_gpu else mode.cpu_cores or 0
    return Draw(record, mode, group["idle_w"], "gemm", gpu, 0, cores, 0.0, "rail", row[1], group["source"])


Solution = tuple[watts.PowerCost, dict[str, float]]
"""Numbers of a chip, and watts of the carriers at the plug."""


def fit_power(soc: str, rows: Sequence[Draw], start: Mapping[str, float]) -> Solution:
    """Return the numbers of one chip for these rows, and the power of the carriers of its kits."""
    keys, carriers = list(start), sorted({row.board.name for row in rows if row.meter == "wall"})
    first = np.log([*start.values(), *([_CARRIER_W] * len(carriers))])
    ratios = _ratios() if soc == "tegra234" else []
    pulls = np.array([*(_PULL[key] for key in keys), *([0.05] * len(carriers))])

    def solution(values: Numbers) -> Solution:
        numbers = np.exp(values).tolist()
        made = dict(zip(keys, numbers, strict=False))
        made = {**made, "stalled": min(made["stalled"], 1.0), "overhead": max(made["overhead"], 1.0)}
        return watts.PowerCost(clocks=_CLOCKS[soc], **made), dict(zip(carriers, numbers[len(keys) :], strict=True))

    def residuals(values: Numbers) -> Numbers:
        cost, carried = solution(values)
        errors = [np.log(row.predicted_w(cost, carried) / row.watts) for row in rows]
        shares = [0.3 * np.log(_ratio(cost, mode, gain) / ratio) for mode, gain, ratio in ratios]
        return np.concatenate([errors, shares, pulls * (values - first)])

    found = scipy.optimize.least_squares(residuals, first, loss="soft_l1", f_scale=_OUTLIER)
    return solution(found.x)


def left_out(soc: str, start: Mapping[str, float]) -> list[tuple[Draw, float]]:
    """Return the watts of each network by a fit to the others."""
    rows, found = draws(soc), []
    for model in dict.fromkeys(row.model for row in rows):
        solution = fit_power(soc, [row for row in rows if row.model != model], start)
        found += [(row, row.predicted_w(*solution)) for row in rows if row.model == model]
    return found


@dataclass(frozen=True, slots=True)
class Fitted:
    chip: watts.ChipPower
    trials: list[tuple[Draw, float]]


def fit_all() -> dict[str, Fitted]:
    found: dict[str, Fitted] = {}
    start = dict(_START)
    for soc in _FITTED:
        rows = draws(soc)
        cost, carriers = fit_power(soc, rows, start)
        trials = left_out(soc, start)
        whole = [abs(predicted / row.watts - 1) for row, predicted in trials if row.meter != "rail"]
        median, p90 = (round(float(np.quantile(whole, part)), 3) for part in (0.5, 0.9))
        models = len({row.model for row, _ in trials if row.meter != "rail"})
        more = rows_of()["repeated"]
        sold = {more["board"]: float(np.mean([again - first for _, first, again in more["rows"]]))}
        chip = watts.ChipPower(
            cost=cost.model_copy(update={"decoder_w": decoder_w()}),
            wall=watts.Wall(
                efficiency=_EFFICIENCY,
                carrier_w=carriers,
                peripherals_w={name: round(more_w, 2) for name, more_w in sold.items() if name in carriers},
                source=f"efficiency assumed, carriers fitted to what is left; peripherals: {more['source']}",
            ),
            accuracy=Accuracy(rows=len(whole), models=models, median=median, p90=p90),
            assumed=_ASSUMED[soc],
            sources=tuple(dict.fromkeys(row.source for row in rows)),
        )
        found[soc] = Fitted(chip, trials)
        start = {**start, "cpu_w": cost.cpu_w or 0.0, "overhead": cost.overhead, "stalled": cost.stalled}
    orin = found["tegra234"].chip.cost
    return {**found, **{soc: Fitted(chip, []) for soc, chip in _others(orin).items()}}


def _others(orin: watts.PowerCost) -> dict[str, watts.ChipPower]:
    """Return the numbers of chips with at most one row of a rail."""
    thor = draws("tegra264")
    kept = orin.model_copy(update={"clocks": _CLOCKS["tegra264"], "dla_w": None})
    one_w = watts.power(thor[0].board, thor[0].mode, kept.model_copy(update={"overhead": 1.0}))
    drawn_w = one_w.gpu_w * thor[0].gpu[0] + one_w.math_w * thor[0].gpu[1]
    gpu_w = (orin.gpu_w or 0.0) * (thor[0].watts - thor[0].idle_w) / drawn_w
    found = {
        "tegra264": watts.ChipPower(
            cost=kept.model_copy(update={"gpu_w": gpu_w}), assumed=_ASSUMED["tegra264"], sources=(thor[0].source,)
        )
    }
    for soc in ("tegra186", "tegra210"):
        nothing = {"clocks": _CLOCKS[soc], "gpu_w": None, "dla_w": None, "decoder_w": decoder_w()}
        found[soc] = watts.ChipPower(cost=orin.model_copy(update=nothing), assumed=_ASSUMED[soc])
    return found


def decoder_w() -> float:
    """Return the watts of a Jetson Nano's decoder, without those of its GPU and CPU."""
    rows = rows_of()["decoder"]
    whole, gpu, cpu = (after - before for before, after in zip(rows["before"], rows["with"], strict=True))
    return round(float(whole - gpu - cpu), 3)


_NANO = {
    "cost.decoder_w": "the video decoder draws what a Jetson Nano's does; none of another is published",
    "encoder": "the video encoder draws nothing; none is published",
}
_ORIN = "a processor core draws what AGX Orin's does; none of this chip is published"
_ASSUMED = {
    "tegra234": _NANO,
    "tegra194": {
        **_NANO,
        "cost.cpu_w": _ORIN,
        "cost.overhead": "overhead is near AGX Orin's; no module's reading of this chip under load is published",
    },
    "tegra264": {
        **_NANO,
        "cost": "the GPU's are of one reading of its rail in a matrix product; all else is AGX Orin's",
    },
    "tegra186": {**_NANO, "cost": "none under load are published: not known"},
    "tegra210": {"cost": "none of its GPU under load are published: not known"},
}


def main() -> int:
    chips = fit_all()
    for soc, fitted in chips.items():
        print(f"{soc}: {fitted.chip.cost} {fitted.chip.wall and fitted.chip.wall.carrier_w} {fitted.chip.accuracy}")
        for row, predicted in fitted.trials:
            print(
                f"  {row.board.name:20}{row.mode.name:12}{row.meter:7}{row.model:20}{row.watts:7.2f}{predicted:7.2f}"
                f"  x{predicted / row.watts:.2f}"
            )
    data = {soc: chips[soc].chip.model_dump(exclude_none=True, mode="json") for soc in sorted(chips)}
    text = yaml.safe_dump(rounded(data), sort_keys=False, width=118, allow_unicode=True)
    PUBLISHED.with_name("power.yaml").write_text(_HEAD + text, encoding="utf-8")
    return 0


@cache
def _ratios() -> list[tuple[Mode, float, float]]:
    """Return (mode, predicted speed ratio of a DLA core to the GPU, published ratio per watt)."""
    record, costs = board("agx-orin-64gb"), coefficients("tegra234")
    assert costs.dla is not None
    found = []
    for model, size, gpu_batch, dla_batch, *ratios in rows_of()["dla_over_gpu"]["rows"]:
        for name, ratio in zip(("MAXN", "MODE_50W", "MODE_30W", "MODE_15W"), ratios, strict=True):
            mode = record.mode(name)
            rows = [Timing(record, mode, model, size, "int8", batch, accelerator, 1.0, "", "")
                    for batch, accelerator in ((gpu_batch, "gpu"), (dla_batch, "dla0"))]  # fmt: skip
            gpu_ms = Design(rows[:1], 1.0).predict_ms(costs.gpu)[0] / gpu_batch
            dla_ms = Design(rows[1:], costs.dla.fp16_share).predict_ms(costs.dla)[0] / dla_batch
            found.append((mode, float(gpu_ms / dla_ms), float(ratio)))
    return found


def ratio_errors(cost: watts.PowerCost) -> list[float]:
    """Return relative errors of the ratio of images per joule of a DLA core and the GPU, compared with NVIDIA's."""
    return [abs(_ratio(cost, mode, gain) / ratio - 1) for mode, gain, ratio in _ratios()]


def _ratio(cost: watts.PowerCost, mode: Mode, gain: float) -> float:
    found = watts.power(board("agx-orin-64gb"), mode, cost)
    return gain * found.busy_gpu_w / found.dla_w
