"""The five jobs of bench_jobs.py: its models are the demo's, edgert does each job, and figures are of what ran."""

from pathlib import Path

import numpy as np
import pytest

import edgert
from tests.bench import bench_jobs
from tests.bench.bench_jobs import JOBS, PEERS, Run
from tests.helpers.command import ROOT


def test_its_detector_finds_what_the_demo_finds(tmp_path: Path) -> None:
    bench_jobs.detector(tmp_path / "detector.onnx")
    own, given = (
        edgert.Model(str(path))(str(ROOT / "docs/hello.jpg"))
        for path in (ROOT / "pipelines/assets/parts.onnx", tmp_path / "detector.onnx")
    )
    assert len(own) > 5 and own.labels == given.labels
    np.testing.assert_allclose(own.boxes, given.boxes, atol=0.01)
    np.testing.assert_allclose(own.scores, given.scores, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_edgert_does_every_job(job: str, tmp_path: Path) -> None:
    bench_jobs.clips(tmp_path / "here", 40)
    done = bench_jobs.run("edgert", job, tmp_path / "here", {})
    frames = {"cameras": 160, "batch": 160}.get(job, 40)
    assert done.cpu_s > 0 and (done.frames == frames if job != "robot" else len(done.ages_ms) > 5)
    assert job in ("robot", "count") or done.objects > 5 * frames


def test_lines_are_those_that_somebody_writes() -> None:
    assert all((PEERS / peer / f"{job}.py").is_file() for peer in ("ultralytics", "supervision") for job in JOBS)
    counts = {peer: [bench_jobs.lines_of(peer, job) for job in JOBS] for peer in bench_jobs.PACKAGES}
    assert counts["edgert"][0] == 8 and counts["supervision"][0] > 30
    assert all(0 < count < 60 for some in counts.values() for count in some)


def test_what_a_longer_clip_takes_more_is_the_time_of_a_frame() -> None:
    pairs = [(Run(2.0, 1.5, 100, 900), Run(4.0, 2.5, 300, 2700))] * 3
    figure = bench_jobs.figure("edgert", "count", pairs, (100, 300))
    assert figure.value == pytest.approx(5.0) and figure.n == 3
    assert figure.detail["frames/s"] == pytest.approx(100) and figure.detail["start cpu s"] == pytest.approx(1.0)
    robot = [(Run(3.0, 1.0, 60, 0, [10.0]), Run(9.0, 2.0, 180, 0, [10.0, 20.0, 30.0]))]
    figure = bench_jobs.figure("edgert", "robot", robot, (90, 270))
    assert figure.detail["age p50 ms"] == 20.0 and figure.value == pytest.approx(1e3 / 180)
