"""Plans of engines whose kernels a CPU starts, and notes about error bars of chips that little was published for."""

from pathlib import Path

import pytest

from edgert.board.record import board
from edgert.config import load_pipeline
from edgert.errors import ConfigError
from edgert.placement.cost.coefficients import Accuracy, coefficients
from edgert.placement.cost.formulas import recorded_share
from edgert.planner.planning import plan_boards
from tests.unit.planner.test_planning import pipeline as planned_pipeline


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    return planned_pipeline(tmp_path, fps=10).document.path


def latency_ms(pipeline: Path, launch: str, name: str = "orin-nx-16gb") -> float:
    made = plan_boards(load_pipeline(pipeline), board=name, mode="15W", launch=launch, look=False)
    return made.boards[0].rows[0].models[0].latency_ms


def test_kernels_that_a_cpu_starts_take_longer(pipeline: Path) -> None:
    assert latency_ms(pipeline, "kernels") > latency_ms(pipeline, "graph")


def test_a_plan_says_how_kernels_are_started_and_what_the_other_way_changes(pipeline: Path) -> None:
    for launch, other in (("graph", "--launch kernels"), ("kernels", "edgert runs CUDA graphs")):
        notes = plan_boards(load_pipeline(pipeline), board="orin-nx-16gb", mode="15W", launch=launch, look=False).notes
        (note,) = [one for one in notes if one.startswith("GPU times are for")]
        assert other in note and "net 0." in note


def test_an_unknown_way_to_start_kernels_is_named(pipeline: Path) -> None:
    with pytest.raises(ConfigError, match="'graf'; did you mean 'graph'"):
        plan_boards(load_pipeline(pipeline), board="orin-nx-16gb", launch="graf", look=False)


def test_a_slower_processor_starts_kernels_more_slowly() -> None:
    nano, orin = (board(name).peak_mode for name in ("jetson-nano-4gb", "agx-orin-64gb"))
    assert recorded_share(nano, "kernels") < recorded_share(orin, "kernels") < recorded_share(orin, "graph") == 1


def test_a_chip_without_published_times_has_a_bar_that_is_not_known_well_enough(pipeline: Path) -> None:
    notes = plan_boards(load_pipeline(pipeline), board="jetson-tx2-8gb", look=False).notes
    assert any("error bar not known well enough" in one and "tegra186" in one for one in notes)


def test_a_bar_is_known_by_enough_rows_of_several_publishers() -> None:
    def accuracy(rows: int, publishers: int) -> Accuracy:
        return Accuracy(rows=rows, models=3, publishers=publishers, median=0.1, p90=0.2, bar=0.3)

    assert accuracy(12, 2).is_known
    assert not accuracy(11, 2).is_known
    assert not accuracy(100, 1).is_known
    assert coefficients("tegra234").accuracy["gpu"]["fp16"].is_known
