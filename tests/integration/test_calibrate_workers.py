"""Workers that calibrate and judge, and die meanwhile: processes of this machine, and of a Dask cluster."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgert.errors import CalibrationError
from edgert.graph import Model
from edgert.quantization.calibrated import prepare
from edgert.quantization.calibration.range_calibrator import calibrate
from tests.helpers import command, models
from tests.helpers.dask_cluster import dask_cluster, hides
from tests.helpers.feeds import Broken, Lethal, Noise
from tests.helpers.small_pipeline import small_pipeline


def small() -> Model:
    return prepare(models.conv())


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    distributed: Any = pytest.importorskip("distributed", reason="needs the extra: pip install -e '.[dask]'")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as running:
        yield running.scheduler_address


def test_a_killed_workers_shard_is_counted_again(tmp_path: Path) -> None:
    feed = Lethal(24, victim=13, times=1, folder=tmp_path)
    table = calibrate(small(), feed, workers=2, early_stop=False)
    assert len(list(tmp_path.iterdir())) == 1
    assert table.histograms == calibrate(small(), Noise(24), early_stop=False).histograms


def test_a_image_that_no_worker_survives_is_named(tmp_path: Path) -> None:
    feed = Lethal(24, victim=13, times=99, folder=tmp_path)
    with pytest.raises(CalibrationError, match="'noise-12', 'noise-13', 'noise-14', 'noise-15'") as caught:
        calibrate(small(), feed, workers=2, early_stop=False)
    assert "3 worker processes died" in caught.value.why
    assert len(list(tmp_path.iterdir())) == 3


def test_what_goes_wrong_in_a_process_is_reported_as_in_this_one() -> None:
    with pytest.raises(CalibrationError, match=r"tensor 'x' .* image 'noise-9'") as caught:
        calibrate(small(), Broken(20, victim=9), workers=2)
    assert caught.value.fix


def test_a_cluster_counts_the_same(scheduler: str) -> None:
    done: list[int] = []
    table = calibrate(small(), Noise(40), dask=scheduler, bar=lambda _, n, total: done.append(n))
    assert done == list(range(4, 41, 4))
    assert table == calibrate(small(), Noise(40))
    with pytest.raises(CalibrationError, match=r"tensor 'x' .* image 'noise-9'"):
        calibrate(small(), Broken(20, victim=9), dask=scheduler)


def test_a_cluster_redoes_what_a_lost_worker_had(scheduler: str, tmp_path: Path) -> None:
    table = calibrate(small(), Lethal(40, victim=21, times=1, folder=tmp_path), dask=scheduler)
    assert len(list(tmp_path.iterdir())) == 1
    assert table.histograms == calibrate(small(), Noise(40)).histograms


def test_a_cluster_judges_images_as_this_machine_does(scheduler: str, tmp_path: Path) -> None:
    small_pipeline(tmp_path / "p", photos=12)
    how = ("eval", "small.yaml", "--data", "photos", "--precision", "int8", "--emulate", "dla")
    for name, options in (("here", ()), ("there", ("--dask", scheduler))):
        done = command.in_process(*how, *options, "--json", f"{name}.json", cwd=tmp_path / "p")
        assert done.returncode == 0, done.stderr
    here, there = (json.loads((tmp_path / "p" / f"{name}.json").read_text()) for name in ("here", "there"))
    assert len(here["results"]) == 3
    assert [one["values"] for one in here["results"]] == [one["values"] for one in there["results"]]
    assert here["comparisons"] == there["comparisons"]


def test_an_image_that_a_worker_cannot_read_is_named_with_the_worker(tmp_path: Path) -> None:
    small_pipeline(tmp_path / "p", photos=12)
    name = sorted(path.name for path in (tmp_path / "p" / "photos").iterdir())[5]
    with dask_cluster(tmp_path, 0) as own:
        own.worker(before=hides(name))
        how = ("eval", "small.yaml", "--data", "photos", "--metric", "cosine", "--precision", "int8")
        done = command.in_process(*how, "--dask", own.address, cwd=tmp_path / "p")
        (worker,) = own.names()
    assert done.returncode == 1 and name in done.stderr and f"on Dask worker {worker}" in done.stderr
