"""The shipped coefficients against what has been published, and the networks against what their makers count."""

from dataclasses import replace

import numpy as np
import pytest

from edgert.board.record import board
from edgert.placement.cost.coefficients import RELATIONS, coefficients, sisters
from edgert.placement.cost.work import units
from tools.fitting.chip import timed_twice
from tools.fitting.parts import GPU_START, contention_error
from tools.fitting.published import Design, Timing, timings
from tools.fitting.sisters import corrected, pairs, weight
from tools.fitting.solve import HIGHEST, Trial, fit
from tools.fitting.together import predict_fps, rates
from tools.networks.table import PUBLISHED, Published, build, known

LARGEST_ERROR = {
    "yolov9t": 0.07,  # the makers count after fusing; ours is the published layer table
    "googlenet": 0.06,  # Caffe's has 5x5 convolutions where the published count is of torchvision's 3x3
    "yoloxn": 0.04,  # the published number has two digits
}


@pytest.mark.parametrize("claim", PUBLISHED, ids=lambda claim: claim.name)
def test_networks_multiply_what_their_makers_count(claim: Published) -> None:
    macs = sum(work.macs for work in units(build(claim.name, claim.size)))
    assert macs / 1e9 == pytest.approx(claim.gmacs, rel=LARGEST_ERROR.get(claim.name, 0.02))


@pytest.mark.parametrize(
    ("scale", "size", "million"), [("n", 384, 30.5), ("s", 512, 32.1), ("m", 576, 33.7), ("l", 704, 33.9)]
)
def test_rf_detr_stores_what_its_makers_count(scale: str, size: int, million: float) -> None:
    """They count the queries and encoder's heads of 12 further groups, too, which only training has."""
    head = 256 * 256 + 256 + 2 * 256 + 256 * 91 + 91 + 2 * (256 * 256 + 256) + 256 * 4 + 4
    stored = sum(array.size for array in build(f"rf-detr-{scale}", size).constants.values())
    assert (stored + 12 * (head + 300 * (256 + 4))) / 1e6 == pytest.approx(million, rel=0.003)


def test_a_network_nobody_built_is_unknown() -> None:
    assert known("yolov8n") and known("resnet50")
    assert not known("gpt-large")
    assert not known("yolov6n")


def ratios(rows: list[Timing]) -> np.ndarray:  # type: ignore[type-arg]
    found = coefficients(rows[0].board.soc)
    cost = found.gpu if rows[0].accelerator == "gpu" else found.dla
    assert cost is not None
    return np.asarray(Design(rows, found.dla.fp16_share if found.dla else 1.0).predict_ms(cost) / [
        row.time_ms for row in rows
    ])  # fmt: skip


@pytest.mark.parametrize("soc", ["tegra194", "tegra210", "tegra234", "tegra264"])
def test_gpu_times_are_near_what_was_published(soc: str) -> None:
    rows = [row for row in timings(soc, "gpu") if not row.caller] or timings(soc, "gpu")
    assert np.median(np.abs(ratios(rows) - 1)) <= 0.15


def test_dla_times_are_near_what_was_published() -> None:
    assert np.median(np.abs(ratios(timings("tegra234", "dla0")) - 1)) <= 0.15


@pytest.mark.parametrize("model", ["googlenet", "alexnet"])
@pytest.mark.parametrize("accelerator", ["gpu", "dla0"])
def test_totals_of_haxconn(model: str, accelerator: str) -> None:
    rows = [row for row in timings("tegra194", accelerator) if row.model == model]
    assert len(rows) == 1
    assert ratios(rows)[0] == pytest.approx(1, abs=0.15)


def test_power_modes_scale_as_nvidia_measured() -> None:
    rows = [row for row in timings("tegra234", "dla0") if row.part is None and row.model != "yolov5s"]
    found = dict(zip(((row.model, row.mode.name) for row in rows), ratios(rows), strict=True))
    assert len(found) == 24
    for (model, mode), ratio in found.items():
        assert found[model, "MAXN"] / ratio == pytest.approx(1, abs=0.15), (model, mode)


def test_contention_fits_the_published_matrix() -> None:
    cost = coefficients("tegra194").contention
    assert contention_error(cost.ceiling, cost.floor) <= 0.06


@pytest.mark.parametrize("soc", ["tegra194", "tegra234"])
def test_rates_of_gpu_and_dla_together_are_near_what_was_published(soc: str) -> None:
    found = coefficients(soc)
    assert found.dla is not None
    slowed, plain = (
        [predict_fps(row, found.gpu, found.dla, shares) / row.fps for row in rates(soc)]
        for shares in (found.contention, None)
    )
    assert np.median(np.abs(np.array(slowed) - 1)) <= 0.2
    assert all(one <= other for one, other in zip(slowed, plain, strict=True))


def test_rows_name_boards_modes_and_networks_that_exist() -> None:
    rows = [row for soc in ("tegra194", "tegra210", "tegra234", "tegra264") for row in timings(soc, "gpu")]
    assert len(rows) > 200
    assert all(known(row.model) and row.source.startswith("https://") and row.time_ms > 0 for row in rows)
    assert {row.board.name for row in rows} <= {board(row.board.name).name for row in rows}


def test_larger_networks_take_longer() -> None:
    totals = [predicted_ms(chosen(f"yolo26{scale}")) for scale in "nsmlx"]
    assert totals == sorted(totals)


def predicted_ms(rows: list[Timing]) -> float:
    return float(np.sum(ratios(rows) * [row.time_ms for row in rows]))


def chosen(name: str) -> list[Timing]:
    return [row for row in timings("tegra234", "gpu") if row.model == name and row.board.name == "agx-orin-64gb"]


@pytest.mark.parametrize("soc", ["tegra186", "tegra194", "tegra210", "tegra234", "tegra264"])
def test_no_share_is_above_what_can_be_had(soc: str) -> None:
    found = coefficients(soc)
    for cost in filter(None, (found.gpu, found.dla)):
        assert all(value <= HIGHEST[key] for key, value in cost.model_dump().items() if key in HIGHEST)


def test_rows_that_ask_for_more_than_the_memory_gives_do_not_get_it() -> None:
    """Every time half of what one at the whole bandwidth takes."""
    rows = [row for row in timings("tegra194", "gpu") if row.model.startswith("vgg")]
    design = Design(rows, 1.0)
    design.measured_ms = design.predict_ms(GPU_START.model_copy(update={"bandwidth": 1.0})) / 2
    assert fit(design, GPU_START, ["bandwidth"]).cost.bandwidth == pytest.approx(HIGHEST["bandwidth"], rel=1e-3)  # type: ignore[union-attr]


def trial(name: str, model: str, measured_ms: float) -> Trial:
    at = board(name)
    what = (at, at.mode("MAXN"), model, 224, "fp16", 1, "gpu", measured_ms, "a test", "nobody")
    return Trial(Timing(*what), 1.0)


def test_a_network_that_is_slow_on_one_board_is_on_its_sister() -> None:
    """Twice as long here is √2 times as long there: the power is a half, by networks that it was not fitted to."""
    trials = [
        trial(name, model, time_ms)
        for model, there_ms in (("resnet50", 4.0), ("resnet18", 1 / 4), ("yolov8n", 16.0))
        for name, time_ms in (("agx-orin-64gb", there_ms), ("orin-nx-16gb", there_ms**0.5))
    ]
    known = [one for one in pairs(trials) if one.trial.row.board.name == "orin-nx-16gb"]
    assert {one.relation for one in known} == {"board"} and weight(known) == pytest.approx(0.5)
    assert [one.error for one in corrected(known)] == pytest.approx([0.0] * 3)
    assert not pairs(trials[::2])  # one board each


def test_two_publishers_of_the_same_are_a_pair() -> None:
    first = trial("agx-orin-64gb", "resnet50", 1.0)
    other = Trial(replace(first.row, publisher="somebody"), 1.0)
    slower = Trial(replace(other.row, mode=board("agx-orin-64gb").mode("MODE_30W")), 1.0)
    assert list(timed_twice([first, other, slower])) == [(first, other)]
    assert not list(timed_twice([first, first]))


def test_what_measured_boards_tell_is_never_more_than_they_measured() -> None:
    shipped = sisters()
    for relation in RELATIONS:
        assert 0 < shipped.weight(relation, "gpu") <= 1
        assert shipped.weight(relation, "dla0") == shipped.weight(relation, "dla1")
    assert shipped.bar("board", "tegra264", "gpu", "fp16") is None  # published for one board alone
    assert (shipped.bar("board", "tegra234", "gpu", "fp16") or 1) < (coefficients("tegra234").bar("gpu", "fp16") or 0)
