"""Workers that die while they calibrate: processes of this machine, and of a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgert.errors import CalibrationError, DeviceError
from edgert.graph import Model
from edgert.quantization.calibrated import prepare
from edgert.quantization.calibration import workers
from edgert.quantization.calibration.range_calibrator import calibrate
from tests.helpers import models
from tests.helpers.feeds import Broken, Lethal, Noise


def small() -> Model:
    return prepare(models.conv())


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a Dask cluster of two processes."""
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
    table = calibrate(small(), Noise(40), dask=scheduler, progress=lambda n, total, name: done.append(n))
    assert done == list(range(4, 41, 4))
    assert table == calibrate(small(), Noise(40))
    with pytest.raises(CalibrationError, match=r"tensor 'x' .* image 'noise-9'"):
        calibrate(small(), Broken(20, victim=9), dask=scheduler)


def test_a_cluster_redoes_what_a_lost_worker_had(scheduler: str, tmp_path: Path) -> None:
    table = calibrate(small(), Lethal(40, victim=21, times=1, folder=tmp_path), dask=scheduler)
    assert len(list(tmp_path.iterdir())) == 1
    assert table.histograms == calibrate(small(), Noise(40)).histograms


def test_a_missing_cluster_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="needs the extra: pip install -e '.[dask]'")
    monkeypatch.setattr(workers, "_CONNECT_S", 0.3)
    with pytest.raises(CalibrationError, match=r"no Dask scheduler answers at 'tcp://127\.0\.0\.1:9'"):
        calibrate(small(), Noise(8), dask="tcp://127.0.0.1:9")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(DeviceError) as caught:
        calibrate(small(), Noise(8), dask="tcp://127.0.0.1:9")
    assert "[dask]" in caught.value.fix
